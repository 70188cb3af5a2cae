"""How a call of the handler settles each message of its batch, by the rules of the group's settlement."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rmqd.consumer.handling.orderly_settlement import rest_seconds
from rmqd.consumer.handling.settlement import given_up
from rmqd.consumer.handling.verdict import default_decision
from rmqd.consumer.options import ConsumerOptions
from rmqd.handler_api import (
    Batch,
    Closing,
    DeadLetter,
    InvalidPayloadError,
    ManualBatch,
    Outcome,
    Retry,
    Suspend,
    is_only,
)
from rmqd.trying.order import Verdict

if TYPE_CHECKING:
    from rmqd.consumer.services import WaysBack

_ACKED = Verdict("acked")


def is_failure(error: BaseException | None) -> bool:
    """Return whether a call failed, other than by a decision or an invalid body."""
    return error is not None and not is_only(error, (Retry, DeadLetter, Suspend, InvalidPayloadError))


def verdicts_of(
    batch: Batch, error: BaseException | None, options: ConsumerOptions, ways_back: WaysBack
) -> tuple[Verdict, ...]:
    """Return a verdict for each message of a batch."""
    if options.consume_mode == "orderly" and not options.order_by:
        return tuple(_in_order(batch, error, options, ways_back))
    return tuple(_each_alone(batch, error, options, ways_back))


def _each_alone(
    batch: Batch, error: BaseException | None, options: ConsumerOptions, ways_back: WaysBack
) -> Iterator[Verdict]:
    decisions, rest = batch.decisions(), default_decision(error, batch)
    for index, message in enumerate(batch):
        decision = decisions.get(index, rest)
        level = decision.delay_level
        level = options.delay_level_when_next_consume if level is None else level
        reason = given_up(ways_back, message, decision, level)
        if decision.outcome is Outcome.ACK:
            yield _ACKED
        elif reason is not None:
            yield _given_up(reason, options)
        elif decision.outcome is Outcome.AGAIN:  # no call started with it
            yield Verdict("retried", rest_seconds=decision.seconds)
        elif options.order_by:
            yield Verdict("retried", rest_seconds=rest_seconds(error, options.suspend_current_queue_time_seconds))
        else:
            yield Verdict("retried", delay_level=ways_back.delay_level(message, level))


def _in_order(
    batch: Batch, error: BaseException | None, options: ConsumerOptions, ways_back: WaysBack
) -> Iterator[Verdict]:
    decisions, rest = batch.decisions(), default_decision(error, batch)
    again = Verdict("retried", rest_seconds=rest_seconds(error, options.suspend_current_queue_time_seconds))
    is_rolled_back = isinstance(batch, ManualBatch) and batch.closing is Closing.ROLLBACK
    has_failed = False
    for index, message in enumerate(batch):
        decision = decisions.get(index, rest)
        reason = None if is_rolled_back else given_up(ways_back, message, decision, decision.delay_level)
        if reason is not None:
            yield _given_up(reason, options)
        elif decision.outcome is Outcome.ACK and not is_rolled_back and (index in decisions or not has_failed):
            yield _ACKED
        else:
            has_failed = True
            yield again


def _given_up(reason: str, options: ConsumerOptions) -> Verdict:
    return Verdict("dropped" if options.message_model == "broadcasting" else "dead_lettered", reason=reason)
