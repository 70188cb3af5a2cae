"""The decision about each message of a batch, derived from the end of its handler call."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from rmqd.consumer.services import RetryPolicy
from rmqd.errors import RmqdError
from rmqd.handler_api.batch import (
    AlreadyHandled,
    Batch,
    Decision,
    ManualCommitBatch,
    Outcome,
    Suspend,
    TransactionEnd,
    decision_for_error,
    is_made_of,
    leaf_exceptions,
)
from rmqd.handler_api.decisions import checked_field, checked_seconds
from rmqd.runtime.plain_text import RemoteFailure, hide_secrets
from rmqd.wire.messages.message import Message

EXPIRED_DELAY_LEVEL: Final = 3  # delay level of an expired message, as in Java's cleanExpiredMsg
DEAD_LETTER_LEVEL: Final = -1
DEADLINE_CANCEL_MESSAGE: Final = "past consume_timeout"
"""The argument of `Task.cancel` at a call's deadline, by which code around the handler recognizes the deadline."""


class ConsumeTimeoutError(Exception):
    """A handler took longer than the group's consume_timeout."""


class HandlerHungError(RmqdError):
    """All slots of the group are occupied by calls that did not end at their deadline."""


class HandlerProcessLostError(RemoteFailure, Exception):
    """A handler's process died, hung or exceeded its memory limit. The traceback is the process's own output."""


CALL_EXPIRED: Final = ConsumeTimeoutError("the handler took longer than consume_timeout")
HANDLED_BEFORE_DECISION: Final = Decision(
    Outcome.ACK, reason="handled before"
)  # an earlier call has handled the message
_EXPIRED_DECISION: Final = Decision(Outcome.RETRY, delay_level=EXPIRED_DELAY_LEVEL)


def log_fields_of(message: Message) -> dict[str, object]:
    """Return the fields that identify a message in log lines."""
    return {"queue": str(message.message_queue), "offset": message.queue_offset, "msg_id": message.msg_id}


def decisions_of(batch: Batch, error: BaseException | None) -> list[Decision]:
    """Return the decision about each message of a batch whose call ended with `error`."""
    decisions, rest = batch.decisions(), default_decision(error, batch)
    return [decisions.get(index, rest) for index in range(len(batch))]


def acknowledged_indexes(
    batch: Batch, decisions: list[Decision], dead: Collection[int], *, in_order: bool
) -> list[int]:
    """Return the indexes of the acknowledged messages, except the dead letters in `dead`.

    With `in_order`, a message without a decision by the handler waits behind an earlier message that is retried.
    """
    decided, done, has_backlog = batch.decisions(), list[int](), False
    for index, decision in enumerate(decisions):
        if index in dead:
            continue
        if decision.outcome is Outcome.ACK and (index in decided or not has_backlog):
            done.append(index)
        else:
            has_backlog = in_order
    return done


def failed_decisions(batch: Batch, error: BaseException | None) -> Mapping[int, Decision]:
    """Return the decisions about messages to be retried or dead-lettered, by index. `error` is the call's exception."""
    if error is None and batch.decided is None:
        return {}
    if isinstance(batch, ManualCommitBatch) and batch.closing is TransactionEnd.ROLLBACK:
        return dict.fromkeys(range(len(batch)), Decision(Outcome.RETRY))
    decisions = enumerate(decisions_of(batch, error))
    return {index: decision for index, decision in decisions if decision.outcome is not Outcome.ACK}


def is_duplicate(decision: Decision | None, error: BaseException | None) -> bool:
    """Return whether an acknowledged message had been handled by an earlier call.

    `decision` is the decision about this message alone, or None. `error` is the exception of the handler call.
    """
    if decision is not None:
        return decision is HANDLED_BEFORE_DECISION or is_made_of(decision.error, (AlreadyHandled,))
    return is_made_of(error, (AlreadyHandled,))


def default_decision(error: BaseException | None, batch: Batch) -> Decision:
    """Return the decision for messages that the handler did not decide about: the call's exception determines it."""
    meant = _EXPIRED_DECISION if error is CALL_EXPIRED else decision_for_error(error)
    if error is not None and meant.outcome is Outcome.ACK and len(batch) > 1:  # AlreadyHandled names single messages
        named = {checked_field(one, "message", id) for one in leaf_exceptions(error)}
        if any(id(message) not in named for message in batch.undecided()):
            return Decision(Outcome.RETRY)
    return meant


def requested_suspension_seconds(error: BaseException | None) -> float | None:
    """Return how many seconds the exception asks to suspend an orderly queue; None if it does not say."""
    if error is None:
        return None
    rests = (
        checked_field(one, "seconds", checked_seconds) for one in leaf_exceptions(error) if isinstance(one, Suspend)
    )
    return max((one for one in rests if one is not None), default=None)


def dlq_reason(retry_policy: RetryPolicy, message: Message, decision: Decision, group_level: int | None) -> str | None:
    """Return why a message must be dead-lettered; None if it is acknowledged or retried.

    A message is dead-lettered if the handler decided so, if the delay level of its retry is -1, or if its attempts are
    used up. `group_level` is the group's delay level, for a decision without a delay level.
    """
    if decision.outcome is Outcome.DEAD_LETTER:
        return hide_secrets(decision.reason)
    if decision.outcome in (Outcome.ACK, Outcome.AGAIN):
        return None
    if _is_dead(decision, group_level):
        return hide_secrets(decision.reason) or "delay level -1"
    return hide_secrets(decision.reason) or retry_policy.limit if retry_policy.is_last_attempt(message) else None


def dead_letter_cause(decision: Decision, group_level: int | None) -> str:
    """Return the cause under which a dead letter is counted (one of DEAD_LETTER_CAUSES)."""
    if decision.outcome is Outcome.DEAD_LETTER:
        return "handler"
    return "level" if _is_dead(decision, group_level) else "limit"


def _is_dead(decision: Decision, group_level: int | None) -> bool:
    """Return whether the delay level of a retry is -1, which means a dead letter."""
    return (group_level if decision.delay_level is None else decision.delay_level) == DEAD_LETTER_LEVEL
