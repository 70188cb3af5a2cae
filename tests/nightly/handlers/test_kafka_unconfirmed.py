"""`kafka`, if records of a batch are not confirmed: only they and later records with their key wait."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaError

from rmqd_handlers.kafka import Kafka
from rmqd_handlers.kafka.handler import NotConfirmedError
from tests.handlers.messages import make_batch, make_message, meant


class ScriptedClient:
    """A Kafka client whose results depend on the record's value; `beside` and `away` fail only in shared requests."""

    written: list[bytes]
    sent: list[bytes]

    def __init__(self, settings: dict[str, Any], logger: object) -> None:
        self._is_alone = settings.get("batch.num.messages") == 1
        self._reports: list[tuple[bytes, Callable[[KafkaError | None, None], None]]] = []

    def produce(
        self, topic: str, value: bytes, key: bytes, *, on_delivery: Callable[[KafkaError | None, None], None], **_: Any
    ) -> None:
        self.sent.append(value)
        self._reports.append((value, on_delivery))

    def poll(self, seconds: float) -> None:
        reports, self._reports = self._reports, []
        for value, on_delivery in reports:
            if value == b"denied" or (value == b"away" and self._is_alone):
                on_delivery(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED), None)
            elif value == b"large" or (value in (b"beside", b"away") and not self._is_alone):
                on_delivery(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE), None)
            else:
                self.written.append(value)
                on_delivery(None, None)
        time.sleep(0.001)  # the handler's thread polls in a loop

    def flush(self, seconds: float) -> None:
        pass

    def list_topics(self, topic: str, timeout_seconds: float) -> None:
        pass


@pytest.fixture(autouse=True)
def _scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confluent_kafka, "Producer", ScriptedClient)
    ScriptedClient.written, ScriptedClient.sent = [], []


async def outcomes(*records: tuple[str, bytes]) -> list[str]:
    """The outcomes of messages with these keys and bodies. Undecided ones have the error's outcome, or `none`."""
    batch = make_batch(*(make_message(body, keys=key, queue_offset=place) for place, (key, body) in enumerate(records)))
    handler = Kafka(Kafka.Options.model_validate({"bootstrap_servers": "kafka:9092", "topic": "orders-{keys}"}))
    await handler.start()
    waiting = "none"
    try:
        await handler.handle(batch)
    except NotConfirmedError as error:
        waiting = meant(error)
        if not batch.decisions():
            raise
    finally:
        await handler.stop()
    found = batch.decisions()
    return [found[place].outcome.value if place in found else waiting for place in range(len(records))]


async def test_an_unconfirmed_record_and_later_records_with_its_key_wait() -> None:
    found = await outcomes(("a", b"1"), ("b", b"2"), ("b", b"denied"), ("a", b"3"), ("b", b"4"), ("b", b"5"))
    assert found == ["ack", "ack", "again", "ack", "again", "again"]


async def test_records_of_a_refused_request_are_sent_again_one_by_one() -> None:
    found = await outcomes(("a", b"large"), ("b", b"denied"), ("b", b"beside"), ("c", b"beside"), ("c", b"1"))
    assert found == ["dead_letter", "again", "again", "ack", "ack"]
    assert ScriptedClient.written == [b"1", b"beside", b"1"]


async def test_sending_one_by_one_stops_at_the_first_unconfirmed_record() -> None:
    found = await outcomes(("a", b"1"), ("b", b"away"), ("c", b"beside"))
    assert found == ["ack", "again", "again"]
    assert ScriptedClient.sent == [b"1", b"away", b"beside", b"away"]


async def test_a_batch_without_confirmed_records_fails() -> None:
    with pytest.raises(NotConfirmedError, match="not confirmed 2 of 2 records"):
        await outcomes(("a", b"denied"), ("b", b"denied"))
