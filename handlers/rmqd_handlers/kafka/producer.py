"""The client, librdkafka, which sends, retries and keeps the order, and the thread that receives its reports."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from .answers import Failure
from .records import Record

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

logger = logging.getLogger(__name__)

POLL_SECONDS: Final = 0.1
FULL_SECONDS: Final = 0.02  # how often it checks whether the client's queue has room
TOLD_AFTER_SECONDS: Final = 1.0
ASK_SECONDS: Final = 5.0
CLOSE_SECONDS: Final = 5.0


class KafkaProducer:
    """Sends records with a client, and with a new client after a fatal error."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """Raises KafkaException for unknown settings."""
        self._settings = settings
        self._client = _Client(settings)

    @property
    def trouble(self) -> str:
        """The client's last error of its brokers, since they last confirmed a record."""
        return self._client.trouble

    async def close(self) -> None:
        """Wait a while for records in flight, and end the client's thread."""
        await self._client.close()

    async def look_up(self, topic: str | None, timeout_seconds: float) -> KafkaError | None:
        """Return why the cluster does not have the topic; it may create the topic at this query. Raises KafkaException
        without a response.
        """
        listed = await asyncio.to_thread(self._client.kafka.list_topics, topic or "", timeout_seconds)
        return listed.topics[topic].error if topic else None

    async def send(self, records: Sequence[Record]) -> list[Failure | None]:
        """Send the records in order. Returns why each was not written; None for confirmed records."""
        if self._client.is_broken:
            broken, self._client = self._client, _Client(self._settings)
            logger.warning("handler.client_replaced", extra={"counterpart": "kafka", "error": broken.trouble})
            await broken.close()
        client, reports = self._client, _Reports(len(records))
        asked: set[str] = set()
        for place, record in enumerate(records):
            failure = await client.produce(record, partial(reports.note, place))
            if failure is not None and failure.is_of_topic and record.topic not in asked:
                asked.add(record.topic)
                await self._ask_anew(record.topic)
                failure = await client.produce(record, partial(reports.note, place))
            if failure is not None:
                reports.note(place, failure)
        if not await reports.are_all_there(TOLD_AFTER_SECONDS):
            if client.trouble:
                logger.warning("handler.counterpart_away", extra={"counterpart": "kafka", "error": client.trouble})
            await reports.are_all_there()
        return reports.failures

    async def _ask_anew(self, topic: str) -> None:
        """Query a failed topic again: the client refuses it for minutes unless it learns that the topic works."""
        from confluent_kafka import KafkaException

        with contextlib.suppress(KafkaException):
            await self.look_up(topic, ASK_SECONDS)


class _Client:
    """A librdkafka client, and the thread that receives its reports."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        from confluent_kafka import Producer

        self.trouble = ""
        self.is_broken = False
        log = logging.getLogger(f"{__name__}.client")
        self.kafka = Producer({**settings, "error_cb": self._note_trouble}, logger=log)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._hear, name="kafka handler: reports", daemon=True)
        self._thread.start()

    async def close(self) -> None:
        self._ending.set()
        await asyncio.to_thread(self._thread.join)

    async def produce(self, record: Record, note: Callable[[Failure | None], None]) -> Failure | None:
        """Pass a record to the client. Returns why the client refuses it.

        If the client accepts it, `note` is called later, in any thread, with the result.
        """
        from confluent_kafka import KafkaException

        def delivered(error: KafkaError | None, _: object) -> None:
            if error is None:
                self.trouble = ""
            else:
                self._note_fatal(error)
            note(None if error is None else Failure(error, is_sent=True))

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
            except BufferError:  # it has room again when brokers confirm its records, or when their time is over
                await asyncio.sleep(FULL_SECONDS)
            except KafkaException as error:
                self._note_fatal(error.args[0])
                return Failure(error.args[0], is_sent=False)

    def _note_trouble(self, error: KafkaError) -> None:
        self.trouble = error.str()
        self._note_fatal(error)

    def _note_fatal(self, error: KafkaError) -> None:
        self.is_broken = self.is_broken or error.fatal() or error.code() == error._FATAL

    def _hear(self) -> None:
        from confluent_kafka import KafkaException

        while not self._ending.is_set():
            try:
                self.kafka.poll(POLL_SECONDS)
            except KafkaException as error:  # a fatal error; it still reports the records that it holds
                self._note_trouble(error.args[0])
                self._ending.wait(POLL_SECONDS)
        with contextlib.suppress(KafkaException):
            self.kafka.flush(CLOSE_SECONDS)


class _Reports:
    """The results of one call's records. The client's thread records them, and the event loop waits for them."""

    def __init__(self, count: int) -> None:
        self.failures: list[Failure | None] = [None] * count
        self._left = count
        self._lock = threading.Lock()
        self._loop = asyncio.get_running_loop()
        self._all = asyncio.Event()

    def note(self, place: int, failure: Failure | None) -> None:
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
