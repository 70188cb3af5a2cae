"""What brokers say about records: which of it is about the record itself, and what is to be sent once more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rmqd import Message
from rmqd_handlers.faults import KAFKA_ERRORS

from .records import Record

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

Written = tuple[Message, Record]


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a record is not confirmed."""

    error: KafkaError
    is_sent: bool
    """Whether it left the client, which refuses some by itself."""

    @property
    def is_refusal(self) -> bool:
        """Whether a record can never be written: this one, or one that went out in the same request."""
        error = self.error
        return error.code() in [getattr(error, name) for name in KAFKA_ERRORS]

    @property
    def is_of_topic(self) -> bool:
        """Whether the client takes nothing for the topic, as that failed before."""
        return not (self.is_sent or self.is_refusal or self.error.fatal() or self.error.code() == self.error._FATAL)

    def __str__(self) -> str:
        return self.error.str()


def is_missing(error: KafkaError) -> bool:
    """Whether there is no such topic, or none yet."""
    return error.code() in (error.UNKNOWN_TOPIC_OR_PART, error.LEADER_NOT_AVAILABLE)


def is_refused(failure: Failure) -> bool:
    """Whether brokers refused a record: this one, or one that went out in the same request."""
    return failure.is_sent and failure.is_refusal


def is_unknown(failure: Failure) -> bool:
    """Whether a record may be written another time."""
    return not failure.is_refusal


def again_for(
    written: Sequence[Written], failures: Sequence[Failure | None], fails: Callable[[Failure], bool]
) -> list[Written]:
    """Those that failed so, and those behind them that have their key: their order is kept."""
    again: list[Written] = []
    keys: set[tuple[str, bytes]] = set()
    for (message, record), failure in zip(written, failures, strict=True):
        key = (record.topic, record.key) if record.key is not None else None
        if failure is not None and fails(failure):
            again.append((message, record))
            if key is not None:
                keys.add(key)
        elif key in keys and (failure is None or failure.is_sent):
            again.append((message, record))
    return again
