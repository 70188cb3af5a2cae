"""What a handler call means for each message of its batch, as traces tell it."""

from __future__ import annotations

from collections.abc import Mapping

from rmqd.consumer.handling.settlement import default_decision
from rmqd.handler import Batch, Closing, Decision, ManualBatch, Outcome


def not_acknowledged(batch: Batch, error: BaseException | None) -> Mapping[int, Decision]:
    """By index in the batch: the messages that are to come again or are given up. `error` is what the call raised."""
    if error is None and batch.decided is None:
        return {}
    if isinstance(batch, ManualBatch) and batch.closing is Closing.ROLLBACK:
        return dict.fromkeys(range(len(batch)), Decision(Outcome.RETRY))
    decisions, rest = batch.decisions(), default_decision(error)
    decided = ((index, decisions.get(index, rest)) for index in range(len(batch)))
    return {index: decision for index, decision in decided if decision.outcome is not Outcome.ACK}
