"""Settlement of batches that were not acknowledged as a whole: retries, dead letters and postponed messages."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from operator import attrgetter
from typing import Final, Protocol, TypeVar

import structlog

from rmqd.consumer.cache.process_queue import ProcessQueue
from rmqd.consumer.handling.handler_failures import (
    CALL_EXPIRED,
    acknowledged_indexes,
    dead_letter_cause,
    decisions_of,
    default_decision,
    dlq_reason,
    is_duplicate,
    log_fields_of,
)
from rmqd.consumer.health.causes import Problem, make_problem
from rmqd.consumer.services import RetryPolicy
from rmqd.consumer.stats.counters import TopicStats
from rmqd.handler_api.batch import (
    AGAIN_DECISION,
    DECISION_CLASSES,
    AlreadyHandled,
    Batch,
    Decision,
    InvalidPayloadError,
    OrderlyBatch,
    Outcome,
    decision_for_error,
    is_made_of,
    leaf_exceptions,
)
from rmqd.handler_api.decisions import checked_field
from rmqd.runtime.clock import Clock
from rmqd.runtime.plain_text import class_name, describe, duration, text_of
from rmqd.wire.messages.message import Message

log = structlog.get_logger(__name__)

T = TypeVar("T")


class ConfirmSettled(Protocol):
    """Called with the finished messages of a batch, by index, before they are acknowledged."""

    async def __call__(self, batch: Batch, done: Sequence[int], *, more_follows: bool = False) -> None:
        """With `more_follows`, this function will be called again for the same batch."""


UNAVAILABLE_SHOWN_SECONDS: Final = 60.0  # the problem is shown this long after the wait: the next call may be slow
LOCAL_RETRY_SECONDS: Final = 5.0  # delay of a postponed message, as in Java's submitConsumeRequestLater


NextAttempt = Callable[[Message, Decision], str]
"""Returns a text for the log: when a message is handled again after this decision."""


class Settlement:
    """Carries out a handler's decisions about a batch of a group that sends failed messages back.

    Acknowledged messages are finished at once. Each other message is sent to a broker separately: as a retry, or as a
    dead letter if the handler decided so or the attempts are used up. Meanwhile the queue continues, and the commit
    offset stays below the messages that are being sent. If no broker accepts a message, the message is *postponed*:
    it is handed to the handler again after `LOCAL_RETRY_SECONDS`. So a broker's refusal raises no exception here.
    """

    def __init__(
        self,
        retry_policy: RetryPolicy,
        delay_level: int,
        resubmit: Callable[[ProcessQueue], None],
        clock: Clock,
        confirm_settled: ConfirmSettled | None = None,
    ) -> None:
        self._clock = clock
        self._confirm_settled = confirm_settled
        self.retry_policy = retry_policy
        self._delay_level = delay_level
        self._resubmit = resubmit
        self.busy = 0  # batches that are being settled

    def settle_at_once(self, process_queue: ProcessQueue, batch: Batch) -> bool | None:
        """Acknowledge all messages of a batch, without waiting.

        Returns None and does nothing if `settle` must be called: the handler decided something else about a message,
        messages must be confirmed in a store first, or this member has lost the queue.
        """
        decisions = batch.decisions().values()
        if self._confirm_settled is not None or process_queue.dropped:
            return None
        if any(one.outcome is not Outcome.ACK or one.error is not None for one in decisions):
            return None
        batch.end()
        messages, stats = list(batch), process_queue.stats
        process_queue.finish(messages)
        for message in messages:
            stats.of(message).acked += 1
        return False

    async def settle(
        self, process_queue: ProcessQueue, batch: Batch, error: BaseException | None, *, is_reported: bool = False
    ) -> bool:
        """Acknowledge, send back or dead-letter each message of the batch, by its decision or by the exception.

        `is_reported` means that the exceptions are already counted and logged. Returns False: the queue continues.
        """
        if not is_reported:
            report_errors(process_queue, batch, error, self._clock.wall(), self.describe_next_attempt)
        self.busy += 1
        try:
            await self._settle(process_queue, batch, error)
        finally:
            self.busy -= 1
        return False

    def describe_next_attempt(self, message: Message, decision: Decision) -> str:
        """Return a text for the log: when a failed message is handled again."""
        if (reason := dlq_reason(self.retry_policy, message, decision, self._delay_level)) is not None:
            return f"none: {reason}"
        level = self._delay_level if decision.delay_level is None else decision.delay_level
        level = self.retry_policy.delay_level(message, level)
        return f"in {duration(self.retry_policy.delay_seconds(message, level))} (delay level {level})"

    async def _settle(self, process_queue: ProcessQueue, batch: Batch, error: BaseException | None) -> None:
        acknowledged: list[int] = []
        again: dict[float, list[Message]] = {}
        returned: list[tuple[Message, Decision]] = []
        for index, (message, decision) in enumerate(zip(batch, self._decisions_of(batch, error), strict=True)):
            if decision.outcome is Outcome.ACK:
                acknowledged.append(index)
            elif decision.outcome is Outcome.AGAIN:
                again.setdefault(decision.seconds, []).append(message)
            else:
                returned.append((message, decision))
        rest_of_batch: Iterable[Message] = batch
        if self._confirm_settled is not None:  # for a dropped queue too: its next owner then skips finished messages
            async with asyncio.TaskGroup() as tasks:
                if returned and not process_queue.dropped:  # failed messages need not wait for the store
                    tasks.create_task(self._return(process_queue, returned, error), name="return")
                    sent = {id(message) for message, _ in returned}
                    rest_of_batch = [message for message in batch if id(message) not in sent]
                    returned = []
                await self._confirm_settled(batch, acknowledged)
        if not still_owns(process_queue, rest_of_batch):
            return
        process_queue.finish([batch[index] for index in acknowledged])
        for index in acknowledged:
            count_acknowledged(process_queue.stats, batch[index], batch.decisions().get(index), error)
        for seconds, waiting in again.items():
            if seconds:
                self._postpone(process_queue, waiting, seconds)
            else:
                process_queue.postpone(waiting)
                self._again(process_queue, waiting)
        await self._return(process_queue, returned, error)

    def _decisions_of(self, batch: Batch, error: BaseException | None) -> list[Decision]:
        """Return the decision about each message. In a lite topic, undecided messages wait behind a retried message."""
        decisions = decisions_of(batch, error)
        if not isinstance(batch, OrderlyBatch):
            return decisions
        pairs = zip(batch, decisions, strict=True)
        reasons = (dlq_reason(self.retry_policy, *pair, self._delay_level) for pair in pairs)
        dead = [index for index, reason in enumerate(reasons) if reason is not None]
        done = acknowledged_indexes(batch, decisions, dead, in_order=True)
        waiting = [one.outcome is Outcome.ACK and index not in done for index, one in enumerate(decisions)]
        return [AGAIN_DECISION if waits else one for waits, one in zip(waiting, decisions, strict=True)]

    async def _return(
        self, process_queue: ProcessQueue, returned: list[tuple[Message, Decision]], error: BaseException | None
    ) -> None:
        late = [message for message, _ in returned if process_queue.may_be_redelivered(message)]
        if late:
            process_queue.finish(late)
            returned = [one for one in returned if one[0] not in late]
        if not returned:
            return
        stats = process_queue.stats
        results = await asyncio.gather(*(send_one(one[0], self._return_one(stats, *one, error)) for one in returned))
        done: list[Message] = []
        failed: list[Message] = []
        for (message, _), result in zip(returned, results, strict=True):
            if result is None:
                failed.append(message)
            else:
                done.append(message)
                process_queue.stats.of(message).count(result)
        if not still_owns(process_queue, [message for message, _ in returned]):
            return
        process_queue.finish(done)
        if failed:
            queue = str(process_queue.message_queue)
            log.warning("retry.postponed", queue=queue, messages=len(failed), seconds=LOCAL_RETRY_SECONDS)
            for message in failed:  # counted here, as in Java, because no broker counts this attempt
                message.count_attempt()
            self._postpone(process_queue, failed, LOCAL_RETRY_SECONDS)

    def _postpone(self, process_queue: ProcessQueue, messages: list[Message], seconds: float) -> None:
        process_queue.postpone(messages)
        self._clock.call_later(seconds, self._again, process_queue, messages)

    async def _return_one(
        self, stats: TopicStats, message: Message, decision: Decision, error: BaseException | None
    ) -> str | None:
        """Send one failed message. Return `retried`, `expired` or `dead_lettered`; None if no broker accepted it."""
        reason = dlq_reason(self.retry_policy, message, decision, self._delay_level)
        if reason is None:
            level = self._delay_level if decision.delay_level is None else decision.delay_level
            if not await self.retry_policy.retry(message, level):
                return None
            stats.of(message).count_sent_back(self.retry_policy.delay_level(message, level))
            return "expired" if error is CALL_EXPIRED else "retried"
        if not await self.retry_policy.dead_letter(message, reason, decision.error or error):
            return None
        stats.of(message).count_dead_letter(dead_letter_cause(decision, self._delay_level), reason)
        return "dead_lettered"

    def _again(self, process_queue: ProcessQueue, messages: list[Message]) -> None:
        if process_queue.return_postponed(messages):
            self._resubmit(process_queue)


def report_errors(
    process_queue: ProcessQueue, batch: Batch, error: BaseException | None, at: float, next_attempt: NextAttempt
) -> None:
    """Count and log the exception of an ended call, and the errors in its decisions. `at` is the Unix time."""
    batch.end()
    told: set[int] = set()
    for index, decision in batch.decisions().items():
        if decision.error is not None and id(decision.error) not in told:
            told.add(id(decision.error))
            is_acknowledged = decision.outcome is Outcome.ACK
            following = partial(next_attempt, batch[index], decision)
            report_error(process_queue, [batch[index]], decision.error, at, following, is_acknowledged=is_acknowledged)
    if error is not None:
        undecided = next((message for index, message in enumerate(batch) if index not in batch.decisions()), batch[0])
        following = partial(next_attempt, undecided, default_decision(error, batch))
        report_error(process_queue, batch, error, at, following)


def explain_unavailable(process_queue: ProcessQueue, at: float, group: str) -> Problem | None:
    """Return a problem if messages of this queue wait for a service that the handler calls. `at` is the Unix time."""
    until, error = process_queue.unavailable
    if at >= until + UNAVAILABLE_SHOWN_SECONDS:
        return None
    step = "check the service that the error names; the group continues automatically"
    return make_problem(
        "failing_handler", f"messages wait for a service, and attempts do not count: {error}", step=step, group=group
    )


def count_acknowledged(
    stats: TopicStats, message: Message, decision: Decision | None, error: BaseException | None
) -> None:
    """Count an acknowledged message. `decision` is about this message alone; `error` is the exception of the call."""
    stats = stats.of(message)
    stats.acked += 1
    stats.deduplicated += is_duplicate(decision, error)


def still_owns(process_queue: ProcessQueue, messages: Iterable[Message]) -> bool:
    """Return whether this member still owns the queue. If the queue was dropped, count the messages as duplicates.

    The next owner of a dropped queue handles the messages again, so a send-back would only add copies.
    """
    if process_queue.dropped:
        for message in messages:
            process_queue.stats.of(message).count_possible_duplicates(process_queue.dropped_because, 1)
    return not process_queue.dropped


async def send_one(message: Message, sending: Awaitable[T]) -> T | None:
    """Return the result of sending one message; None after an unexpected exception, so that other messages continue."""
    try:
        return await sending
    except Exception as fault:
        # not log.exception, because the error's text is a separate field
        log.error("settlement.failed", **log_fields_of(message), error=text_of(fault, repr), exc_info=fault)  # noqa: TRY400
        return None


def report_error(
    process_queue: ProcessQueue,
    messages: Sequence[Message],
    error: BaseException,
    at: float,
    next_attempt: Callable[[], str] = str,
    *,
    is_acknowledged: bool = False,
) -> None:
    """Count and log one error of all these messages. `at` is the Unix time.

    `next_attempt` returns a text for the log: when the first message is handled again. With `is_acknowledged`, the log
    says that a message with an invalid body is acknowledged anyway.
    """
    first, stats = messages[0], process_queue.stats.of(messages[0])
    leaves = leaf_exceptions(error)
    if is_made_of(error, (AlreadyHandled,)):
        for one in leaves:
            msg_id = checked_field(one, "message", attrgetter("msg_id")) or first.msg_id
            log.info("message.already_handled", msg_id=msg_id, queue=str(process_queue.message_queue))
        return
    meant = decision_for_error(error)
    text = describe(error) if meant.outcome is Outcome.AGAIN else text_of(error, repr)  # AGAIN: the service's message
    is_invalid = isinstance(error, InvalidPayloadError)
    is_decision = is_made_of(error, DECISION_CLASSES)
    stats.count_exception(error, text, first, at, declined=is_decision or is_invalid or error is CALL_EXPIRED)
    logger = log.bind(
        msg_id=first.msg_id,
        queue=str(process_queue.message_queue),
        first_offset=first.queue_offset,
        messages=len(messages),
        keys=first.keys,
        attempt=first.reconsume_times + 1,
        **({"variant": stats.variant} if stats.variant else {}),
    )
    if is_invalid:
        stats.invalid_payloads += 1
        logger.warning("payload.invalid", error=text_of(error), **{"acknowledged": True} if is_acknowledged else {})
        return
    if error is CALL_EXPIRED:
        logger.error("handler.timed_out")
        return
    if meant.outcome is Outcome.AGAIN:
        process_queue.unavailable = at + meant.seconds, text
        logger.warning("handler.counterpart_away", error=text, seconds=meant.seconds)
        return
    if is_decision:
        logger.info("handler.declined", decision=class_name(leaves[0]))
        return
    logger = logger.bind(next_attempt=next_attempt())
    try:
        logger.error("handler.failed", error=text, exc_info=error)
    except BaseException:  # noqa: BLE001  formatting a traceback reads the exception's attributes, which may raise
        logger.error("handler.failed", error=text)  # noqa: TRY400  without the traceback
