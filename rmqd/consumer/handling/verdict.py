"""What a handler call means for each message of its batch; `settlement` carries it out, and traces tell it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rmqd.decisions import asked, checked_seconds
from rmqd.handler_api import (
    AlreadyHandled,
    Batch,
    Closing,
    Decision,
    ManualBatch,
    Outcome,
    Suspend,
    decision_of,
    is_only,
    leaves_of,
)
from rmqd.plain_text import RaisedElsewhere

EXPIRED_DELAY_LEVEL: Final = 3  # Java: cleanExpiredMsg
DEAD_LETTER_LEVEL: Final = -1
PAST_DEADLINE: Final = "past consume_timeout"
"""What a call is cancelled with at its deadline, for who stands between the slot and the handler."""


class ConsumeTimeoutError(Exception):
    """A handler took longer than the group's consume_timeout."""


class HandlerProcessLostError(RaisedElsewhere, Exception):
    """A handler's process died, hung or used up its memory limit. The traceback is what it wrote of itself."""


EXPIRED: Final = ConsumeTimeoutError("the handler took longer than consume_timeout")
HANDLED_BEFORE: Final = Decision(Outcome.ACK, reason="handled before")  # by another call than the one that ends
_EXPIRED_DECISION: Final = Decision(Outcome.RETRY, delay_level=EXPIRED_DELAY_LEVEL)


def not_acknowledged(batch: Batch, error: BaseException | None) -> Mapping[int, Decision]:
    """By index in the batch: the messages that are to come again or are given up. `error` is what the call raised."""
    if error is None and batch.decided is None:
        return {}
    if isinstance(batch, ManualBatch) and batch.closing is Closing.ROLLBACK:
        return dict.fromkeys(range(len(batch)), Decision(Outcome.RETRY))
    decisions, rest = batch.decisions(), default_decision(error, batch)
    decided = ((index, decisions.get(index, rest)) for index in range(len(batch)))
    return {index: decision for index, decision in decided if decision.outcome is not Outcome.ACK}


def is_duplicate(decision: Decision | None, error: BaseException | None) -> bool:
    """Whether a message that is acknowledged had its effect before this call, which ended with `error`.

    `decision` is what was decided about it by itself, if anything was.
    """
    if decision is not None:
        return decision is HANDLED_BEFORE or is_only(decision.error, (AlreadyHandled,))
    return is_only(error, (AlreadyHandled,))


def default_decision(error: BaseException | None, batch: Batch) -> Decision:
    """What the end of a call means for the messages that the handler did not decide about."""
    meant = _EXPIRED_DECISION if error is EXPIRED else decision_of(error)
    if error is not None and meant.outcome is Outcome.ACK and len(batch) > 1:  # AlreadyHandled is about one of them
        return Decision(Outcome.RETRY)
    return meant


def rest_asked_for(error: BaseException | None) -> float | None:
    """The seconds that an orderly queue is to rest, if the exception says so."""
    if error is None:
        return None
    rests = (asked(one, "seconds", checked_seconds) for one in leaves_of(error) if isinstance(one, Suspend))
    return max((one for one in rests if one is not None), default=None)


def dead_letter_cause(decision: Decision, level: int | None) -> str:
    """The cause under which a dead letter is counted (one of DEAD_LETTER_CAUSES), for this decision about it."""
    if decision.outcome is Outcome.DEAD_LETTER:
        return "handler"
    return "level" if level == DEAD_LETTER_LEVEL else "limit"
