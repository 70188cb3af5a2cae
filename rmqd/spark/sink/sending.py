"""An executor's producer: one for each process and name server, kept from task to task.

Its event loop runs only while a batch of rows is sent, in the thread of the task. Between batches, Spark's process
reads the next batch, so a second thread would gain nothing; and sends waiting for a stopped loop would time out.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import Final

import structlog

from rmqd.broker_errors import BrokerError
from rmqd.client.instance import ClientInstance
from rmqd.client.options import ClientOptions
from rmqd.client.sending.passing import may_pass
from rmqd.client.sending.queue_selector import MessageQueueSelector, by_hash, by_id
from rmqd.codes import ResponseCode
from rmqd.errors import InvalidMessageError, RmqdError
from rmqd.spark.access import Access
from rmqd.spark.process_log import log_to_stderr
from rmqd.spark.sink.bundles import bundles
from rmqd.spark.sink.outgoing import OutgoingRow, refuse
from rmqd.spark.sink.sink_options import SinkOptions

log = structlog.get_logger(__name__)

PAUSE_SECONDS: Final = 0.5

_senders: dict[tuple[int, int, Access], Sender] = {}


def sender_to(access: Access) -> Sender:
    """Return the sender of this process and thread. Raises RmqdError if a required file or secret is missing."""
    key = os.getpid(), threading.get_ident(), access
    if key not in _senders:
        _senders[key] = Sender(access)
    return _senders[key]


def close_senders() -> None:
    """Close the senders of this process and thread. A later `sender_to` creates new ones."""
    for key in [key for key in _senders if key[:2] == (os.getpid(), threading.get_ident())]:
        _senders.pop(key).close()


class Sender:
    """Sends rows, and waits until each is stored. For one thread, without a running event loop."""

    def __init__(self, access: Access) -> None:
        log_to_stderr()
        options = access.client_options()
        self._loop = asyncio.new_event_loop()
        self._client = self._loop.run_until_complete(_make_client(options))
        self._served: set[str] = set()

    def send(self, rows: Iterable[OutgoingRow], options: SinkOptions) -> tuple[int, int]:
        """Store all rows, with `in_flight` concurrent requests. Return their number, and the size of their bodies.

        A row is retried for `tolerance_seconds` while brokers or name servers are unavailable. Raises the RmqdError of
        the first row that could not be stored; others may be stored by then.
        """
        try:
            return self._loop.run_until_complete(self._send(rows, options))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None  # the others are from concurrent rows

    def close(self) -> None:
        """Close the connections. Send nothing after that."""
        self._loop.run_until_complete(self._client.close())
        self._loop.close()

    def look_again(self) -> None:
        """Refresh the topics' routes before the next row, because queues may have changed."""
        for topic in self._served:
            with contextlib.suppress(RmqdError):
                self._loop.run_until_complete(self._client.routes.refresh(topic))

    async def _send(self, rows: Iterable[OutgoingRow], options: SinkOptions) -> tuple[int, int]:
        turn = _Turn(bundles(rows))
        async with asyncio.TaskGroup() as tasks:
            for _ in range(options.in_flight):
                tasks.create_task(self._send_in_turn(turn, options))
        return turn.count, turn.size_bytes

    async def _send_in_turn(self, turn: _Turn, options: SinkOptions) -> None:
        for bundle in turn.bundles:
            lane = bundle[0].lane
            if lane is None:
                stored = await self._store_bundle(bundle, options)
            else:
                async with turn.in_order(lane):
                    stored = await self._store_bundle(bundle, options)
            turn.count += len(stored)
            turn.size_bytes += sum(len(row.message.body) for row in stored)

    async def _store_bundle(self, bundle: Sequence[OutgoingRow], options: SinkOptions) -> Sequence[OutgoingRow]:
        """Store the rows with one request. If it is refused, send the rows one by one to find the rejected ones."""
        if len(bundle) > 1:
            try:
                await self._store(bundle, options.tolerance_seconds)
            except (BrokerError, InvalidMessageError) as error:
                if may_pass(error, self._served):
                    raise
            else:
                return bundle
        stored = []
        for row in bundle:
            try:
                await self._store([row], options.tolerance_seconds)
                stored.append(row)
            except (BrokerError, InvalidMessageError) as error:
                if isinstance(error, BrokerError) and error.code != ResponseCode.MESSAGE_ILLEGAL:
                    raise
                refuse(row.place, row.message.properties, error, options)
        return stored

    async def _store(self, rows: Sequence[OutgoingRow], tolerance: float) -> None:
        topic, selector = rows[0].message.topic, _selector(rows[0])
        until = asyncio.get_running_loop().time() + tolerance
        while True:
            try:
                if len(rows) == 1:
                    await self._client.producer.send(rows[0].message, selector=selector)
                else:
                    await self._client.producer.send_batch([row.message for row in rows], selector=selector)
                self._served.add(topic)
                return
            except RmqdError as error:
                if not may_pass(error, self._served) or asyncio.get_running_loop().time() + PAUSE_SECONDS > until:
                    raise
                log.warning("spark.send_retried", topic=topic, error=str(error))
            await asyncio.sleep(PAUSE_SECONDS)
            with contextlib.suppress(RmqdError):
                await self._client.routes.refresh(topic)


class _Turn:
    """The bundles still to be sent, shared by several coroutines, and the totals sent so far."""

    def __init__(self, all_bundles: Iterator[Sequence[OutgoingRow]]) -> None:
        self.bundles = all_bundles
        self.count = 0
        self.size_bytes = 0
        self._last: dict[object, asyncio.Event] = {}

    @contextlib.asynccontextmanager
    async def in_order(self, lane: object) -> AsyncIterator[None]:
        """Enter when the previous user of the lane has left it. After an error no user leaves, and all tasks end."""
        former, mine = self._last.get(lane), asyncio.Event()
        self._last[lane] = mine
        if former is not None:
            await former.wait()
        yield
        mine.set()
        if self._last[lane] is mine:
            del self._last[lane]


def _selector(row: OutgoingRow) -> MessageQueueSelector | None:
    if row.queue_id is not None:
        return by_id(row.queue_id, row.broker)
    return by_hash(row.message.sharding_key) if row.message.sharding_key else None


async def _make_client(options: ClientOptions) -> ClientInstance:
    return ClientInstance(options)
