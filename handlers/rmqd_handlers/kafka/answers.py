"""The errors of records: which ones concern the record itself, and which records to send again."""

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
    """Whether it left the client. The client refuses some records itself."""

    @property
    def is_refusal(self) -> bool:
        """Whether a record can never be written: this one, or another one in the same request."""
        error = self.error
        return error.code() in [getattr(error, name) for name in KAFKA_ERRORS]

    @property
    def is_of_topic(self) -> bool:
        """Whether the client refuses all records of the topic, because the topic failed before."""
        return not (self.is_sent or self.is_refusal or self.error.fatal() or self.error.code() == self.error._FATAL)

    def __str__(self) -> str:
        return self.error.str()


def is_missing(error: KafkaError) -> bool:
    """Return whether the topic does not exist, or not yet."""
    return error.code() in (error.UNKNOWN_TOPIC_OR_PART, error.LEADER_NOT_AVAILABLE)


def is_refused(failure: Failure) -> bool:
    """Return whether brokers refused a record: this one, or another one in the same request."""
    return failure.is_sent and failure.is_refusal


def is_unknown(failure: Failure) -> bool:
    """Return whether the record may be written later."""
    return not failure.is_refusal


def again_for(
    written: Sequence[Written], failures: Sequence[Failure | None], fails: Callable[[Failure], bool]
) -> list[Written]:
    """Return the records with such a failure, and later records with the same keys, because their order must be
    kept.
    """
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
