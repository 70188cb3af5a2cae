"""Messages that can never be written as they are, and how they are settled."""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Any, Final, Literal

from pydantic import Field

from rmqd import Batch, Message

logger = logging.getLogger(__name__)

OnInvalid = Literal["dead_letter", "retry", "skip"]
ON_INVALID: Final[Any] = Field(
    "dead_letter", description="how to settle a message that cannot be written as it is: dead_letter, retry or skip"
)


def refuse(batch: Batch, message: Message, why: object, on_invalid: OnInvalid) -> None:
    """Decide about a message that cannot be written. The reason is stored in the dead letter, or logged."""
    if on_invalid == "dead_letter":
        batch.dead_letter(message, why)
    elif on_invalid == "retry":
        batch.retry(message, reason=why)
    else:
        logger.warning("handler.skipped", extra={"msg_id": message.msg_id, "reason": str(why)})
        batch.ack(message)


def trial_of(batch: Batch) -> Batch:
    """Return a batch of the same messages for one attempt. Its decisions apply after the attempt (`adopt`)."""
    return Batch(list(batch), batch.message_queue)


def adopt(batch: Batch, trial: Batch) -> None:
    """Apply the decisions of an attempt that succeeded."""
    for index, decision in trial.decisions().items():
        batch.overrule(index, decision)


def acknowledge_written(batch: Batch, waiting: Collection[Message] = ()) -> None:
    """Acknowledge the written messages, that is all undecided ones, if others of the batch are retried or `waiting`.

    In an orderly group, undecided messages after a retried message are handled again with it, and would be written
    twice.
    """
    decided = batch.decisions()
    if waiting or any(one.outcome.value == "retry" for one in decided.values()):
        left_out = set(map(id, waiting))
        for message in [message for index, message in enumerate(batch) if index not in decided]:
            if id(message) not in left_out:
                batch.ack(message)
