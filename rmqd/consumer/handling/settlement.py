"""What becomes of a batch that was not simply acknowledged: retries, dead letters, and what can be neither for now."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

import structlog

from rmqd.clock import Clock
from rmqd.consumer.cache.process_queue import ProcessQueue
from rmqd.consumer.services import WaysBack
from rmqd.consumer.stats.counters import TopicStats
from rmqd.handler import (
    ACK,
    Batch,
    DeadLetter,
    Decision,
    Outcome,
    Retry,
    Suspend,
    checked_level,
    checked_seconds,
    reason_text,
)
from rmqd.plain_text import class_name, text_of
from rmqd.wire.messages.message import Message

log = structlog.get_logger(__name__)

T = TypeVar("T")

LOCAL_RETRY_SECONDS: Final = 5.0  # Java: submitConsumeRequestLater
EXPIRED_DELAY_LEVEL: Final = 3  # Java: cleanExpiredMsg
DEAD_LETTER_LEVEL: Final = -1


class ConsumeTimeoutError(Exception):
    """A handler took longer than the group's consume_timeout."""


EXPIRED: Final = ConsumeTimeoutError("the handler took longer than consume_timeout")


class Settlement:
    """Carries out a handler's decisions. Never raises for what a broker refuses: such messages are tried again."""

    def __init__(
        self, send_back: WaysBack, delay_level: int, resubmit: Callable[[ProcessQueue], None], clock: Clock
    ) -> None:
        self._clock = clock
        self._send_back = send_back
        self._delay_level = delay_level
        self._resubmit = resubmit
        self.busy = 0  # batches that are being settled

    def acknowledge(self, queue: ProcessQueue, batch: Batch) -> bool:
        """Acknowledge each message, where nothing else was decided about any and all may be; whether that is done."""
        if queue.dropped or any(one.outcome is not Outcome.ACK for one in batch.decisions().values()):
            return False
        messages, stats = list(batch), queue.stats
        queue.finish(messages)
        for message in messages:
            stats.of(message).acked += 1
        return True

    async def settle(self, queue: ProcessQueue, batch: Batch, error: BaseException | None) -> None:
        """Acknowledge, send back or dead-letter each message of the batch, as decided or as the exception says."""
        report(queue, batch, error, self._clock.wall())
        rest = default_decision(error)
        decisions, stats = batch.decisions(), queue.stats
        acknowledged: list[Message] = []
        returned: list[tuple[Message, Decision]] = []
        for index, message in enumerate(batch):
            decision = decisions.get(index, rest)
            if decision.outcome is Outcome.ACK:
                acknowledged.append(message)
            else:
                returned.append((message, decision))
        if queue.dropped:
            # somebody else has the queue and will handle these again; sending them back would only add copies
            for message in batch:
                stats.of(message).may_repeat(queue.dropped_because, 1)
            return
        queue.finish(acknowledged)
        for message in acknowledged:
            stats.of(message).acked += 1
        self.busy += 1
        try:
            await self._return(queue, returned, error)
        finally:
            self.busy -= 1

    async def _return(
        self, queue: ProcessQueue, returned: list[tuple[Message, Decision]], error: BaseException | None
    ) -> None:
        late = [message for message, _ in returned if queue.is_late(message)]
        if late:
            queue.finish(late)
            returned = [one for one in returned if not one[0].finished]
        if not returned:
            return
        stats = queue.stats
        results = await asyncio.gather(*(self._return_alone(stats, *one, error) for one in returned))
        done, failed = [], []
        for (message, _), result in zip(returned, results, strict=True):
            if result is None:
                failed.append(message)
            else:
                done.append(message)
                queue.stats.of(message).count(result)
        if queue.dropped:
            return
        queue.finish(done)
        if failed:
            log.warning(
                "retry.postponed", queue=str(queue.message_queue), messages=len(failed), seconds=LOCAL_RETRY_SECONDS
            )
            queue.postpone(failed)
            self._clock.call_later(LOCAL_RETRY_SECONDS, self._again, queue, failed)

    async def _return_alone(
        self, stats: TopicStats, message: Message, decision: Decision, error: BaseException | None
    ) -> str | None:
        """As `_return_one`; a bug in rmqd concerns this message alone, which is tried again."""
        try:
            return await self._return_one(stats, message, decision, error)
        except Exception as fault:  # noqa: BLE001  logged in `told_of_fault`
            told_of_fault(message, fault)
            return None

    async def _return_one(
        self, stats: TopicStats, message: Message, decision: Decision, error: BaseException | None
    ) -> str | None:
        """How the attempt counts: `retried`, `expired` or `dead_lettered`; None if no broker took the message."""
        level = self._delay_level if decision.delay_level is None else decision.delay_level
        reason = decision.reason
        if decision.outcome is Outcome.RETRY:
            if level != DEAD_LETTER_LEVEL and not self._send_back.is_last_attempt(message):
                if not await self._send_back.retry(message, level):
                    return None
                stats.of(message).sent_back(self._send_back.delay_level(message, level))
                return "expired" if error is EXPIRED else "retried"
            reason = "delay level -1" if level == DEAD_LETTER_LEVEL else self._send_back.limit
        if not await self._send_back.dead_letter(message, reason, error):
            return None
        stats.of(message).dead_letters[dead_letter_cause(decision, level)] += 1
        return "dead_lettered"

    def _again(self, queue: ProcessQueue, messages: list[Message]) -> None:
        if queue.return_postponed(messages):
            self._resubmit(queue)


def report(queue: ProcessQueue, batch: Batch, error: BaseException | None, at: float) -> None:
    """Count and log what a handler raised, if it did, at a Unix time."""
    if error is None:
        return
    first = batch[0]
    text = text_of(error, repr)
    queue.stats.of(first).raised(error, text, first, at)
    logger = log.bind(
        msg_id=first.msg_id, queue=str(queue.message_queue), first_offset=first.queue_offset, messages=len(batch)
    )
    if error is EXPIRED:
        logger.error("handler.timed_out")
        return
    if isinstance(error, Retry | DeadLetter | Suspend):
        logger.info("handler.declined", decision=class_name(error))
        return
    try:
        logger.error("handler.failed", error=text, exc_info=error)
    except BaseException:  # noqa: BLE001  its traceback cannot be printed, which asks the exception for its attributes
        logger.error("handler.failed", error=text)  # noqa: TRY400  without the traceback


def told_of_fault(message: Message, fault: Exception) -> None:
    """Log that a bug in rmqd kept a decision about a message from being carried out."""
    log.error(
        "settlement.failed",
        queue=str(message.message_queue),
        offset=message.queue_offset,
        msg_id=message.msg_id,
        error=text_of(fault, repr),
        exc_info=fault,
    )


def dead_letter_cause(decision: Decision, level: int | None) -> str:
    """Why a message is given up that the handler decided so about: one of DEAD_LETTER_CAUSES."""
    if decision.outcome is Outcome.DEAD_LETTER:
        return "handler"
    return "level" if level == DEAD_LETTER_LEVEL else "limit"


def default_decision(error: BaseException | None) -> Decision:
    """What an exception means for the messages that the handler did not decide about."""
    if error is None:
        return ACK
    if error is EXPIRED:
        return Decision(Outcome.RETRY, delay_level=EXPIRED_DELAY_LEVEL)
    # classes that inherit from ours may set the attributes later, to anything
    if isinstance(error, Retry):
        return Decision(Outcome.RETRY, delay_level=_asked(error, "delay_level", checked_level))
    if isinstance(error, DeadLetter):
        return Decision(Outcome.DEAD_LETTER, reason=_asked(error, "reason", reason_text) or "")
    return Decision(Outcome.RETRY)


def rest_asked_for(error: BaseException | None) -> float | None:
    """The seconds that an orderly queue is to rest, if the exception says so."""
    return _asked(error, "seconds", checked_seconds) if isinstance(error, Suspend) else None


def _asked(error: BaseException, name: str, check: Callable[[object], T]) -> T | None:
    """An attribute of the handler's own exception, checked; None where it is of no use."""
    try:
        return check(getattr(error, name))
    except Exception:  # noqa: BLE001  it may be a property that raises
        return None
