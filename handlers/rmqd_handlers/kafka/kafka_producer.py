"""Messages as Kafka records, the failures of records, and the librdkafka client that sends, retries and orders them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import BeforeValidator

from rmqd import Message
from rmqd_handlers.faults import KAFKA_ERRORS
from rmqd_handlers.message_values import InvalidBodyError, ParsedMessage, Value, as_text, parse_value

if TYPE_CHECKING:
    from confluent_kafka import KafkaError


TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
Header = tuple[str, str | bytes | None]
_PART: Final = ", which is part of its topic's name"
_EXPRESSION: Final = re.compile(r"\{([^{}]*)\}")


@dataclass(frozen=True, slots=True)
class KafkaRecord:
    topic: str
    key: bytes | None
    value: bytes
    headers: list[Header]
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class TopicName:
    """A topic's name, or a template of names: `orders`, `shop.{topic}`, `orders-{properties.region}`."""

    text: str
    """The text in the options."""
    parts: tuple[str | Value, ...]

    @property
    def fixed(self) -> str | None:
        """The name, if it is the same for all messages; else None."""
        return self.text if self.parts == (self.text,) else None

    def of(self, opened: ParsedMessage) -> str:
        """Return the name for a message. Raises InvalidBodyError if a value is missing, or Kafka refuses the name."""
        name = "".join(part if isinstance(part, str) else as_text(part.required(opened, _PART)) for part in self.parts)
        if not is_topic(name):
            raise InvalidBodyError(
                f"{name!r} is not a valid Kafka topic name; expected up to 249 letters, digits, '.', '_' and '-'"
            )
        return name


def parse_topic(text: object) -> TopicName:
    """Parse a topic's name or template. Raises ValueError."""
    if not isinstance(text, str):
        raise ValueError(f"{text!r} is not a topic name")  # noqa: TRY004 - pydantic reads a ValueError
    places = _EXPRESSION.split(text)
    parts = tuple(parse_value(part) if number % 2 else part for number, part in enumerate(places) if number % 2 or part)
    if not is_topic("".join(part if isinstance(part, str) else "x" for part in parts)):
        raise ValueError(
            f"{text!r} is not a valid topic name; expected letters, digits, '.', '_' and '-', and values of the "
            "message in braces, such as orders-{tags} or shop.{properties.region}"
        )
    return TopicName(text, parts)


Topic = Annotated[TopicName, BeforeValidator(parse_topic, json_schema_input_type=str)]


def is_topic(name: str) -> bool:
    return TOPIC.fullmatch(name) is not None and name not in (".", "..")


MessageRecord = tuple[Message, KafkaRecord]


@dataclass(frozen=True, slots=True)
class RecordFailure:
    """Why a record is not confirmed."""

    error: KafkaError
    is_sent: bool
    """Whether the client sent the record. False if the client itself refused it."""

    @property
    def is_refusal(self) -> bool:
        """Whether this record, or another record of its request, is invalid. False if a later attempt may succeed."""
        error = self.error
        return error.code() in [getattr(error, name) for name in KAFKA_ERRORS]

    @property
    def is_topic_failure(self) -> bool:
        """Whether the client refuses all records of the topic, because the topic had failed before."""
        return not (self.is_sent or self.is_refusal or self.error.fatal() or self.error.code() == self.error._FATAL)

    def __str__(self) -> str:
        return self.error.str()


def is_missing(error: KafkaError) -> bool:
    """Return whether the error says that the topic does not exist, or is just being created."""
    return error.code() in (error.UNKNOWN_TOPIC_OR_PART, error.LEADER_NOT_AVAILABLE)


def records_to_repeat(
    written: Sequence[MessageRecord], failures: Sequence[RecordFailure | None], fails: Callable[[RecordFailure], bool]
) -> list[MessageRecord]:
    """Return the records whose failure `fails` selects, and later records with the same keys, to keep their order."""
    again: list[MessageRecord] = []
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


logger = logging.getLogger(__name__)

POLL_SECONDS: Final = 0.1
QUEUE_POLL_SECONDS: Final = 0.02  # interval of checks whether the client's queue has room
REPORT_TIMEOUT_SECONDS: Final = 1.0
LOOKUP_TIMEOUT_SECONDS: Final = 5.0
CLOSE_SECONDS: Final = 5.0


class KafkaProducer:
    """Sends records with a librdkafka client, which is replaced by a new client after a fatal error."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """Create the first client. Raises KafkaException for unknown settings."""
        self._settings = settings
        self._client = _Client(settings)

    @property
    def trouble(self) -> str:
        """The client's last error about its brokers; empty after a record was confirmed."""
        return self._client.trouble

    async def close(self) -> None:
        """Wait up to `CLOSE_SECONDS` for records in flight, and end the client's thread."""
        await self._client.close()

    async def look_up(self, topic: str | None, timeout_seconds: float) -> KafkaError | None:
        """Query a topic, which may create it. Returns its error, or None. Raises KafkaException without a response."""
        listed = await asyncio.to_thread(self._client.kafka.list_topics, topic or "", timeout_seconds)
        return listed.topics[topic].error if topic else None

    async def send(self, records: Sequence[KafkaRecord]) -> list[RecordFailure | None]:
        """Send the records in order. Returns the failure of each record; None for confirmed records."""
        if self._client.is_broken:
            broken, self._client = self._client, _Client(self._settings)
            logger.warning("handler.client_replaced", extra={"counterpart": "kafka", "error": broken.trouble})
            await broken.close()
        client, reports = self._client, _Reports(len(records))
        asked: set[str] = set()
        for place, record in enumerate(records):
            failure = await client.produce(record, partial(reports.note, place))
            if failure is not None and failure.is_topic_failure and record.topic not in asked:
                asked.add(record.topic)
                await self._look_up_again(record.topic)
                failure = await client.produce(record, partial(reports.note, place))
            if failure is not None:
                reports.note(place, failure)
        if not await reports.are_all_there(REPORT_TIMEOUT_SECONDS):
            if client.trouble:
                logger.warning("handler.counterpart_away", extra={"counterpart": "kafka", "error": client.trouble})
            await reports.are_all_there()
        return reports.failures

    async def _look_up_again(self, topic: str) -> None:
        """Query a failed topic again: the client refuses it for minutes unless it learns that the topic works."""
        from confluent_kafka import KafkaException

        with contextlib.suppress(KafkaException):
            await self.look_up(topic, LOOKUP_TIMEOUT_SECONDS)


class _Client:
    """A librdkafka client, and the thread that receives its reports."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        from confluent_kafka import Producer

        self.trouble = ""
        self.is_broken = False
        log = logging.getLogger(f"{__name__}.client")
        self.kafka = Producer({**settings, "error_cb": self._note_trouble}, logger=log)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._poll_reports, name="kafka handler: reports", daemon=True)
        self._thread.start()

    async def close(self) -> None:
        self._ending.set()
        await asyncio.to_thread(self._thread.join)

    async def produce(self, record: KafkaRecord, note: Callable[[RecordFailure | None], None]) -> RecordFailure | None:
        """Pass a record to the client. Returns the failure if the client refuses the record.

        If the client accepts the record, this returns None, and `note` is called later with the result, in any thread.
        """
        from confluent_kafka import KafkaException

        def delivered(error: KafkaError | None, _: object) -> None:
            if error is None:
                self.trouble = ""
            else:
                self._note_fatal(error)
            note(None if error is None else RecordFailure(error, is_sent=True))

        while True:
            try:
                self.kafka.produce(
                    record.topic,
                    record.value,
                    record.key,
                    on_delivery=delivered,
                    timestamp=record.timestamp_ms,
                    headers=record.headers,
                )
                return None
            except BufferError:  # wait until the client's buffer has room, because records were confirmed or expired
                await asyncio.sleep(QUEUE_POLL_SECONDS)
            except KafkaException as error:
                self._note_fatal(error.args[0])
                return RecordFailure(error.args[0], is_sent=False)

    def _note_trouble(self, error: KafkaError) -> None:
        self.trouble = error.str()
        self._note_fatal(error)

    def _note_fatal(self, error: KafkaError) -> None:
        self.is_broken = self.is_broken or error.fatal() or error.code() == error._FATAL

    def _poll_reports(self) -> None:
        from confluent_kafka import KafkaException

        while not self._ending.is_set():
            try:
                self.kafka.poll(POLL_SECONDS)
            except KafkaException as error:  # a fatal error, but the client still reports its records
                self._note_trouble(error.args[0])
                self._ending.wait(POLL_SECONDS)
        with contextlib.suppress(KafkaException):
            self.kafka.flush(CLOSE_SECONDS)


class _Reports:
    """The results of one call's records. The client's thread records them, and the event loop waits for them."""

    def __init__(self, count: int) -> None:
        self.failures: list[RecordFailure | None] = [None] * count
        self._left = count
        self._lock = threading.Lock()
        self._loop = asyncio.get_running_loop()
        self._all = asyncio.Event()

    def note(self, place: int, failure: RecordFailure | None) -> None:
        """Called once for each record, in any thread."""
        with self._lock:
            self.failures[place] = failure
            self._left -= 1
            is_last = not self._left
        if is_last:
            self._loop.call_soon_threadsafe(self._all.set)

    async def are_all_there(self, timeout_seconds: float | None = None) -> bool:
        """Wait for the last result, or until the timeout. Returns whether all results arrived."""
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._all.wait()
        except TimeoutError:
            return False
        return True
