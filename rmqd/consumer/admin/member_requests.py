"""Answers mqadmin requests that brokers forward to a member: its offsets, its running info, and direct consumption."""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any, Final

import structlog

from rmqd.client.api.remoting_request import SharedCalls
from rmqd.client.heartbeat import PushedResets
from rmqd.client.remoting.peer_requests import Reply
from rmqd.codes import RequestCode, ResponseCode
from rmqd.consumer.admin.running_info_report import SAMPLE_SECONDS, ConsumeRates, running_info
from rmqd.consumer.cache.process_queue import ProcessQueue
from rmqd.consumer.context import GroupContext
from rmqd.consumer.handling.batch_worker import exception_of_background_call, make_background_batch
from rmqd.consumer.handling.handler_failures import ConsumeTimeoutError
from rmqd.consumer.health.group_status import GroupStatus
from rmqd.consumer.pull.accept import decompress_bodies
from rmqd.consumer.rebalance.rebalance import Rebalance
from rmqd.errors import ProtocolError, RmqdError
from rmqd.handler_api.batch import (
    DECISION_CLASSES,
    Batch,
    ManualCommitBatch,
    Outcome,
    TransactionEnd,
    decision_for_error,
    is_made_of,
    leaf_exceptions,
)
from rmqd.runtime.clock import wait_for_tick
from rmqd.runtime.plain_text import describe, duration, text_of
from rmqd.wire.bodies.group_bodies import CMResult, ConsumeMessageDirectlyResult, GetConsumerStatusBody
from rmqd.wire.command import RemotingCommand
from rmqd.wire.headers.group_headers import (
    ConsumeMessageDirectlyResultRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetConsumerStatusRequestHeader,
)
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.decode import frame_messages
from rmqd.wire.messages.message import Message

MAX_STACKS_CHARACTERS: Final = 128 * 1024
MAX_FRAMES_PER_STACK: Final = 40
MAX_NAMES_PER_STACK: Final = 20


def stacks_of_tasks_and_threads() -> str:
    """Return the stacks of all tasks of the running event loop, and of all threads, in place of Java's jstack.

    Equal stacks are grouped. The size is limited; the last line counts the omitted stacks.
    """
    tasks = sorted(asyncio.all_tasks(), key=lambda task: task.get_name())
    named = ((task.get_name(), _lines(_awaiting(task.get_coro()))) for task in tasks)
    frames = sys._current_frames()
    threads = (
        (thread.name, _lines(list(traceback.walk_stack(frames[thread.ident]))[::-1]))
        for thread in threading.enumerate()
        if thread.ident in frames
    )
    return _bounded([*_together(f"of {len(tasks)} tasks", named), *_together(f"of {len(frames)} threads", threads)])


def _awaiting(coroutine: Any) -> Iterator[tuple[FrameType, int]]:
    """Yield the frame and line of a coroutine, then of the coroutine that it awaits, and so on."""
    while coroutine is not None:
        for prefix, waits_for in (("cr", "cr_await"), ("gi", "gi_yieldfrom"), ("ag", "ag_await")):
            if hasattr(coroutine, waits_for):
                frame, after = getattr(coroutine, f"{prefix}_frame"), getattr(coroutine, waits_for)
                break
        else:
            return
        if frame is not None:
            yield frame, frame.f_lineno
        coroutine = after


def _lines(frames: Iterable[tuple[FrameType, int]]) -> tuple[str, ...]:
    """Return a stack's lines, the innermost frame first, as in Java."""
    lines = [f"    at {frame.f_code.co_qualname} ({frame.f_code.co_filename}:{line})" for frame, line in frames][::-1]
    left_out = len(lines) - MAX_FRAMES_PER_STACK
    return (*lines[:MAX_FRAMES_PER_STACK], f"    and {left_out} more") if left_out > 0 else tuple(lines)


def _together(what: str, stacks: Iterable[tuple[str, tuple[str, ...]]]) -> Iterator[str]:
    """Yield one text for each different stack, with the names of all tasks or threads that have it."""
    names: dict[tuple[str, ...], list[str]] = {}
    for name, lines in stacks:
        names.setdefault(lines, []).append(name)
    for lines, same in names.items():
        rest = f" and {len(same) - MAX_NAMES_PER_STACK} more" if len(same) > MAX_NAMES_PER_STACK else ""
        yield "\n".join([f"{len(same)} {what}: {', '.join(same[:MAX_NAMES_PER_STACK])}{rest}", *lines])


def _bounded(texts: list[str]) -> str:
    size = 0
    for number, text in enumerate(texts):
        size += len(text) + 2
        if size > MAX_STACKS_CHARACTERS:
            return "\n\n".join([*texts[:number], f"{len(texts) - number} more stacks are left out"])
    return "\n\n".join(texts)


log = structlog.get_logger(__name__)

DIRECT_RESPONSE_SECONDS: Final = 9.0  # the broker waits 10 s, and then reports only a timeout to the operator
MIN_CALL_LIMIT_SECONDS: Final = 0.1  # time limit of a handler call that had to wait for almost DIRECT_RESPONSE_SECONDS
MAX_WAITING_MESSAGES: Final = 100  # limit of waiting messages; further requests are refused
CANCEL_GRACE_SECONDS: Final = 0.5
MAX_REMARK_CHARACTERS: Final = 2000
_QUEUE_ID: Final = slice(12, 16)  # bytes of the queue id in a stored message


class DirectConsumption:
    """Calls the handler with single messages for operators. Commits nothing, sends nothing back, counts nothing.

    Up to `concurrency` of these calls run at a time, in addition to the group's normal calls. So an operator's call
    runs even if all slots are busy or the group is paused. Further messages wait, until their response would be late.
    """

    def __init__(self, context: GroupContext) -> None:
        self._context = context
        self._turns = asyncio.Semaphore(context.options.concurrency)
        self._waiting = 0
        self._calls: set[asyncio.Task[BaseException | None]] = set()
        self._closed = False

    async def consume(self, record: bytes, broker_name: str) -> ConsumeMessageDirectlyResult:
        """Handle one stored message within 9 s, including the wait for a free slot.

        Raises RmqdError if the message cannot be decoded, if too many messages wait, and when the group stops.
        """
        self._check_open()
        clock, options = self._context.clock, self._context.options
        message = await _decode(record, broker_name, options.namespace, options.max_body_size_bytes)
        self._check_open()
        batch = make_background_batch(options, [message])
        asked = clock.monotonic()
        await self._take_turn()
        started = clock.monotonic()
        error = await self._call(batch, max(DIRECT_RESPONSE_SECONDS - (started - asked), MIN_CALL_LIMIT_SECONDS))
        seconds = clock.monotonic() - started
        outcome, remark = _outcome(batch, error)
        log.info("message.handled_directly", msg_id=message.msg_id, queue=str(message.message_queue), result=outcome)
        orderly = options.consume_mode == "orderly"
        return ConsumeMessageDirectlyResult(
            outcome, orderly, not isinstance(batch, ManualCommitBatch), remark, round(seconds * 1000)
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
        """Wait for a free slot. The slot is released when the call ends. Raises RmqdError if the wait is too long."""
        taken = f"the handler already has {self._context.options.concurrency} messages from operators"
        if self._turns.locked() and self._waiting >= MAX_WAITING_MESSAGES:
            raise RmqdError(f"{taken}, and {self._waiting} more wait; try again later")
        self._waiting += 1
        try:
            async with self._context.clock.timeout(DIRECT_RESPONSE_SECONDS):
                await self._turns.acquire()
        except TimeoutError:
            raise RmqdError(
                f"{taken}, and none finished within {duration(DIRECT_RESPONSE_SECONDS)}; try again later"
            ) from None
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
            exception_of_background_call(self._context.service, batch, self._turns.release),
            name=f"direct consumption:{batch[0].msg_id}",
        )
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        try:
            await self._context.clock.wait((call,), timeout=seconds)
            self._check_open()
            if call.done():
                return call.result()
            return ConsumeTimeoutError(
                f"the handler took longer than {duration(DIRECT_RESPONSE_SECONDS)} and was cancelled"
            )
        finally:
            call.cancel()


async def _decode(record: bytes, broker_name: str, namespace: str, max_body_size: int) -> Message:
    """Decode a stored message as if it had been pulled. A message in a retry topic gets its original topic."""
    queue_id = int.from_bytes(record[_QUEUE_ID], signed=True)
    block = frame_messages(record, MessageQueue("", broker_name, queue_id), namespace=namespace)
    if block.is_closed:
        await decompress_bodies(block, max_body_size)
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
        meant = decision_for_error(error)
        if meant.outcome is Outcome.DEAD_LETTER:
            return CMResult.LATER, f"the handler asks for a dead letter: {meant.reason}"
        if not is_made_of(error, DECISION_CLASSES):
            return CMResult.THROW_EXCEPTION, _describe(error)
        return CMResult.SUCCESS if meant.outcome is Outcome.ACK else CMResult.LATER, text_of(leaf_exceptions(error)[0])
    match batch.closing if isinstance(batch, ManualCommitBatch) else None:
        case TransactionEnd.COMMIT:
            return CMResult.COMMIT, None
        case TransactionEnd.ROLLBACK:
            return CMResult.ROLLBACK, None
    return CMResult.SUCCESS, None


def _describe(error: BaseException) -> str:
    """Return the exception and its origin in one line."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f", at {frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name}" if frames else ""
    return describe(error)[:MAX_REMARK_CHARACTERS] + place


class OperatorRequests:
    """Answers operators' requests about one group. `run` samples the group's counters, to compute rates."""

    def __init__(self, context: GroupContext, rebalance: Rebalance, status: GroupStatus) -> None:
        self._context = context
        self._rebalance = rebalance
        self._status = status
        self._rates = ConsumeRates(context.stats, context.clock)
        self._direct = DirectConsumption(context)
        self._started_at = context.clock.wall()
        self._resets = PushedResets()
        self._running_infos = SharedCalls(self._running_info)

    async def run(self) -> None:
        """Sample the group's counters until cancelled. Then cancel the handler calls that still run for operators."""
        try:
            while True:
                await wait_for_tick(self._context.clock, SAMPLE_SECONDS)
                self._rates.sample()
                self._rates.record_progress(self._pulled())
        finally:
            await self._direct.close()

    async def answer(self, command: RemotingCommand) -> Reply | None:
        """Return the response to a request; None if the sender expects no response. Raises ProtocolError."""
        with structlog.contextvars.bound_contextvars(group=self._context.options.group):
            match command.code:
                case RequestCode.RESET_CONSUMER_CLIENT_OFFSET:
                    await self._reset(command)
                    return None
                case RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT:
                    body = self._offsets(GetConsumerStatusRequestHeader.from_ext_fields(command.ext_fields).topic)
                case RequestCode.GET_CONSUMER_RUNNING_INFO:
                    asked = GetConsumerRunningInfoRequestHeader.from_ext_fields(command.ext_fields)
                    body = await self._running_infos(bool(asked.jstack_enable))
                case RequestCode.CONSUME_MESSAGE_DIRECTLY:
                    header = ConsumeMessageDirectlyResultRequestHeader.from_ext_fields(command.ext_fields)
                    body = (await self._direct.consume(command.body, header.broker_name or "")).to_json()
                case _:
                    remark = f"request type {command.code} not supported"
                    return (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark, {}, b"")
        return (int(ResponseCode.SUCCESS), "", {}, body)

    async def _reset(self, command: RemotingCommand) -> None:
        """Reset this member's queues of a topic. All members get the same offsets, and each resets its own queues."""
        reset = await self._resets.read(command)
        ours = self._rebalance.reset_queues(reset.offsets)
        log.warning(
            "reset.pushed",
            topic=reset.topic,
            moved={str(queue): offset for queue, offset in sorted(ours.items())},
            not_ours=reset.named - len(ours),
        )

    def _offsets(self, topic: str) -> bytes:
        """Return the first unfinished offset of each queue of a topic, as JSON. It may not be committed yet."""
        assigned = self._rebalance.assigned.items()
        offsets = {queue: one.commit_offset() for queue, one in assigned if queue.topic == topic}
        return GetConsumerStatusBody({queue: at for queue, at in offsets.items() if at is not None}).to_json()

    async def _running_info(self, with_stacks: bool) -> bytes:
        await asyncio.sleep(0)  # lets concurrent requests share one result
        self._rates.record_progress(self._pulled())
        return running_info(
            self._context,
            self._rebalance.assigned,
            self._rates,
            self._status.state,
            self._started_at,
            stacks_of_tasks_and_threads() if with_stacks else None,
        ).to_json()

    def _pulled(self) -> dict[MessageQueue, ProcessQueue]:
        idle, assigned = self._context.idle_queues, self._rebalance.assigned
        pulled = [one for queue, one in assigned.items() if queue not in idle and not one.is_popped]
        return {one.message_queue: process_queue for one in pulled for process_queue in one.process_queues}
