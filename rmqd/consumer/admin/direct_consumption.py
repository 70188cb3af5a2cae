"""One message that a member handles for an operator, outside its queues and slots and without effect on them."""

from __future__ import annotations

import asyncio
import traceback
from typing import Final

import structlog

from rmqd.consumer.context import GroupContext
from rmqd.consumer.handling.apart import batch_apart, called_apart
from rmqd.consumer.handling.verdict import ConsumeTimeoutError
from rmqd.consumer.pull.opening import open_bodies
from rmqd.errors import ProtocolError, RmqdError
from rmqd.handler_api import DECISIONS, Batch, Closing, ManualBatch, Outcome, decision_of, is_only, leaves_of
from rmqd.plain_text import describe, text_of
from rmqd.wire.bodies.running_info import CMResult, ConsumeMessageDirectlyResult
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.decode import frame_messages
from rmqd.wire.messages.message import Message

log = structlog.get_logger(__name__)

ANSWER_SECONDS: Final = 9.0  # the broker waits 10 s, and then reports only a timeout to the operator
SHORTEST_SECONDS: Final = 0.1  # for a call that had to wait long
MOST_WAITING: Final = 100  # messages; further requests are refused
CANCEL_GRACE_SECONDS: Final = 0.5
MOST_REMARK_CHARACTERS: Final = 2000
_QUEUE_ID: Final = slice(12, 16)  # position in a stored message


class DirectConsumption:
    """Calls the handler with single messages. Commits nothing, sends nothing back, counts nothing.

    As many calls as the group's concurrency may run at once, in addition to the calls in the slots. So a message is
    handled even if all slots are in use or the group is paused. Further messages wait, within the time for the
    response.
    """

    def __init__(self, context: GroupContext) -> None:
        self._context = context
        self._turns = asyncio.Semaphore(context.options.concurrency)
        self._waiting = 0
        self._calls: set[asyncio.Task[BaseException | None]] = set()
        self._closed = False

    async def consume(self, record: bytes, broker_name: str) -> ConsumeMessageDirectlyResult:
        """Handle one stored message within 9 s, including the wait for a free call.

        Raises RmqdError if the message cannot be decoded, if too many others wait, and when the group stops.
        """
        self._check_open()
        clock, options = self._context.clock, self._context.options
        message = await _decode(record, broker_name, options.namespace, options.max_body_size_bytes)
        self._check_open()
        batch = batch_apart(options, [message])
        asked = clock.monotonic()
        await self._take_turn()
        started = clock.monotonic()
        error = await self._call(batch, max(ANSWER_SECONDS - (started - asked), SHORTEST_SECONDS))
        seconds = clock.monotonic() - started
        outcome, remark = _outcome(batch, error)
        log.info("message.handled_directly", msg_id=message.msg_id, queue=str(message.message_queue), result=outcome)
        orderly = options.consume_mode == "orderly"
        return ConsumeMessageDirectlyResult(
            outcome, orderly, not isinstance(batch, ManualBatch), remark, round(seconds * 1000)
        )

    async def close(self) -> None:
        """Cancel the running calls and accept no more, because the handler is about to be stopped."""
        self._closed = True
        for call in self._calls:
            call.cancel()
        if self._calls:
            await self._context.clock.wait(self._calls, timeout=CANCEL_GRACE_SECONDS)

    def _check_open(self) -> None:
        if self._closed:
            raise RmqdError(f"consumer group {self._context.options.group} is stopping")

    async def _take_turn(self) -> None:
        """Wait until a call may start; the end of the call releases `_turns`. Raises RmqdError."""
        taken = f"the handler is busy with {self._context.options.concurrency} messages of operators"
        if self._turns.locked() and self._waiting >= MOST_WAITING:
            raise RmqdError(f"{taken}, and {self._waiting} more wait; try again later")
        self._waiting += 1
        try:
            async with self._context.clock.timeout(ANSWER_SECONDS):
                await self._turns.acquire()
        except TimeoutError:
            raise RmqdError(f"{taken}, and none finished within {ANSWER_SECONDS:g} s; try again later") from None
        finally:
            self._waiting -= 1
        if self._closed:
            self._turns.release()
            self._check_open()

    async def _call(self, batch: Batch, seconds: float) -> BaseException | None:
        """Call the handler and return its exception; None if it returned.

        A call that exceeds the time is cancelled; the thread of a synchronous handler keeps running.
        """
        call = asyncio.create_task(
            called_apart(self._context.service, batch, self._turns.release),
            name=f"direct consumption:{batch[0].msg_id}",
        )
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        try:
            await self._context.clock.wait((call,), timeout=seconds)
            self._check_open()
            if call.done():
                return call.result()
            return ConsumeTimeoutError(f"the handler took longer than {ANSWER_SECONDS:g} s and was cancelled")
        finally:
            call.cancel()


async def _decode(record: bytes, broker_name: str, namespace: str, max_body_size: int) -> Message:
    """Decode a stored message as if it had been pulled from its queue; a retried one has its original topic."""
    queue_id = int.from_bytes(record[_QUEUE_ID], signed=True)
    block = frame_messages(record, MessageQueue("", broker_name, queue_id), namespace=namespace)
    if block.is_closed:
        await open_bodies(block, max_body_size)
    if block.corrupt:
        raise ProtocolError(f"the message is corrupt: {block.corrupt[0].reason}")
    if len(block.messages) != 1:
        raise ProtocolError(f"the body contains {len(block.messages)} messages; expected one message")
    block.message_queue = MessageQueue(block.messages[0].record_topic, broker_name, queue_id).without(namespace)
    return block.messages[0]


def _outcome(batch: Batch, error: BaseException | None) -> tuple[CMResult, str | None]:
    """Return RocketMQ's name for the handler's decision, and a remark if that name omits something."""
    decision = batch.decisions().get(0)
    if decision is not None and decision.outcome is not Outcome.ACK:
        dead = decision.outcome is Outcome.DEAD_LETTER
        return CMResult.LATER, f"the handler asks for a dead letter: {decision.reason}" if dead else None
    if decision is not None:  # the decision stands even if the handler raises afterwards
        return CMResult.SUCCESS, None if error is None else _describe(error)
    if error is not None:
        meant = decision_of(error)
        if meant.outcome is Outcome.DEAD_LETTER:
            return CMResult.LATER, f"the handler asks for a dead letter: {meant.reason}"
        if not is_only(error, DECISIONS):
            return CMResult.THROW_EXCEPTION, _describe(error)
        return CMResult.SUCCESS if meant.outcome is Outcome.ACK else CMResult.LATER, text_of(leaves_of(error)[0])
    match batch.closing if isinstance(batch, ManualBatch) else None:
        case Closing.COMMIT:
            return CMResult.COMMIT, None
        case Closing.ROLLBACK:
            return CMResult.ROLLBACK, None
    return CMResult.SUCCESS, None


def _describe(error: BaseException) -> str:
    """Return the exception and its origin in one line."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f", at {frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name}" if frames else ""
    return describe(error)[:MOST_REMARK_CHARACTERS] + place
