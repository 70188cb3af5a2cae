"""The requests that acknowledge one group's popped messages, or change how long they stay invisible."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import structlog

from rmqd.client.api.pop_requests import (
    ACK_TIMEOUT_SECONDS,
    ack_message,
    batch_ack,
    change_invisible_time,
    change_invisible_time_header,
)
from rmqd.client.instance import ClientInstance
from rmqd.client.remoting.connection import RemotingConnection
from rmqd.consumer.cache.process_queue import ProcessQueue
from rmqd.consumer.pop.pop_block import PopBlock
from rmqd.consumer.stats.counters import TopicStats
from rmqd.errors import RmqdError
from rmqd.errors.broker_errors import BrokerError, RequestCodeNotSupportedError
from rmqd.runtime.clock import Clock
from rmqd.wire.bodies.pop_bodies import BatchAck
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.message import Message, MessageBlock
from rmqd.wire.receipt_handle import PopHandle


class PopProcessQueue(ProcessQueue):
    """The messages of one queue that this member popped. Other members may have other messages of the queue.

    The cache acknowledges finished messages, and has no offset to commit.
    """

    __slots__ = ("_on_room", "_receipts")

    def __init__(
        self, queue: MessageQueue, stats: TopicStats, namespace: str, receipts: PopReceipts, on_room: Callable[[], None]
    ) -> None:
        super().__init__(queue, 0, stats, namespace)
        self._receipts = receipts
        self._on_room = on_room  # called when messages are finished, though not for each message

    def put(self, block: MessageBlock, next_offset: int, held: Sequence[Message] = ()) -> None:
        """Add a response's messages of this queue. If the filter rejected all of them, acknowledge them at once."""
        assert isinstance(block, PopBlock)
        if not block.unfinished:
            self._receipts.acknowledge(block, block.unsettled_offsets(block.messages), self.stats)
        super().put(block, next_offset, held)

    def may_be_redelivered(self, message: Message) -> bool:
        """Whether the message is visible to other members by now, so that its result here does not count."""
        block = message.block
        return isinstance(block, PopBlock) and self._receipts.is_late(block, message.queue_offset)

    def return_postponed(self, messages: list[Message]) -> bool:
        """Hand postponed messages out again, unless they are visible to other members by now."""
        late = [] if self.dropped else [message for message in messages if self.may_be_redelivered(message)]
        if late:
            self.retrying -= len(late)
            self.finish(late)
        return super().return_postponed([message for message in messages if message not in late])

    def acknowledge_finished(self, block: PopBlock) -> None:
        """Acknowledge the finished messages of a block, even if other messages of the block are unfinished."""
        finished = block.unsettled_offsets(message for message in block.messages if message.finished)
        if finished:
            self._receipts.acknowledge(block, finished, self.stats)
            self._on_room()

    def unhandled_offsets(self, block: PopBlock) -> list[int]:
        """Return the queue offsets of a block's messages that wait for a handler."""
        return [message.queue_offset for message in self.waiting if message.block is block]

    def discard_waiting(self, block: PopBlock) -> None:
        """Discard a block's messages that wait for a handler, without acknowledging them."""
        block.settled.update(self.unhandled_offsets(block))
        self.discard_unwanted(lambda message: message.block is not block)

    def next_block_number(self) -> int:
        block = self.pending[0].block
        assert isinstance(block, PopBlock)
        return block.number

    def _order(self, message: Message) -> Any:
        """Sort by block first: after an operator's reset, two blocks may contain the same offsets."""
        block = message.block
        assert isinstance(block, PopBlock)
        return block.number, message.queue_offset

    def _forget(self, block: MessageBlock) -> None:
        assert isinstance(block, PopBlock)
        finished = block.unsettled_offsets(block.messages)
        super()._forget(block)
        if finished:
            self._receipts.acknowledge(block, finished, self.stats)
            self._on_room()


log = structlog.get_logger(__name__)

COLLECT_ACKS_SECONDS: Final = 0.01  # how long acknowledgements are collected before they are sent
ACK_RETRY_SECONDS: Final = 1.0
REDELIVER_AFTER_MS: Final = 100  # invisible time of discarded messages; brokers check about every second
LATE_ACK_CAUSE: Final = "invisible_time"  # cause of duplicates: handled for longer than the message was invisible
REFUSED_ACK_CAUSE: Final = "ack_refused"


@dataclass(frozen=True, slots=True)
class _Ack:
    body: BatchAck
    due: float  # end of the messages' invisible time (monotonic); a later acknowledgement has no effect
    stats: TopicStats
    lite_topic: str | None  # brokers do not accept batches for lite topics


class PopReceipts:
    """Reports the results of popped messages to brokers. Methods never raise: unreported messages become visible again.

    *Receipts.* A pop makes a message invisible to the other members for a time, and returns a handle (`PopHandle`),
    which RocketMQ calls a receipt handle. All later requests identify the message by its handle: the acknowledgement
    (ACK_MESSAGE, or BATCH_ACK_MESSAGE for many messages) and a change of the invisible time
    (CHANGE_MESSAGE_INVISIBLETIME). A retry is such a change, to the time of its delay level. A very short time makes
    the message visible again at once.

    *New handles.* Each change gives the message a new handle and invalidates the previous one. An acknowledgement with
    the previous handle has no effect, and the message is redelivered. So while a change is in progress
    (`PopBlock.changing`), an acknowledgement of the message waits for the response, and then uses the new handle
    (`PopBlock.renewed`).

    *Batches.* Acknowledgements are collected for a moment. `run` sends them to each broker, one request at a time. An
    acknowledgement after the end of the invisible time (`due`) has no effect: it is not sent, and the message counts as
    handled twice.
    """

    def __init__(self, client: ClientInstance, group: str, clock: Clock) -> None:
        self._client = client
        self._group = group
        self._clock = clock
        self._acks: dict[str, _BrokerAcks] = {}
        self._tasks: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        """Send acknowledgements until cancelled."""
        try:
            async with asyncio.TaskGroup() as self._tasks:
                for acks in self._acks.values():
                    self._start(acks)
                await asyncio.get_running_loop().create_future()
        finally:
            self._tasks = None

    @property
    def is_idle(self) -> bool:
        """Whether every acknowledgement so far has its response."""
        return all(acks.idle.is_set() for acks in self._acks.values())

    async def flush(self, seconds: float) -> None:
        """Wait until every acknowledgement so far has its response, for at most `seconds`."""
        busy = [acks for acks in self._acks.values() if not acks.idle.is_set()]
        for acks in busy:
            acks.flush_now.set()
        if busy:
            waits = [asyncio.ensure_future(acks.idle.wait()) for acks in busy]
            _, left = await self._clock.wait(waits, timeout=seconds)
            for wait in left:
                wait.cancel()

    def is_late(self, block: PopBlock, offset: int) -> bool:
        """Whether the invisible time of the message is over, so that it is visible to other members."""
        return self._clock.monotonic() >= block.due_of(offset)

    def acknowledge(self, block: PopBlock, offsets: list[int], stats: TopicStats) -> None:
        """Acknowledge finished messages. `run` sends the request."""
        block.settled.update(offsets)
        if block.changing or block.renewed:
            offsets = self._acknowledge_changed(block, offsets, stats)
        if offsets:
            body = self._body(block, block.handle, offsets)
            self._acks_at(block.handle.broker_name).add(_Ack(body, block.visible_at, stats, block.lite_topic))

    async def extend_invisible_time(self, block: PopBlock, offset: int, invisible_ms: int) -> bool:
        """Extend the invisible time of a message. Returns whether the broker accepted it.

        Acknowledgements of the message wait for the new handle meanwhile.
        """
        changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        block.changing[offset] = changed
        try:
            asked_at = self._clock.monotonic()
            handle = await self._change(block, offset, invisible_ms)
            if handle is not None:
                block.renewed[offset] = handle, asked_at + invisible_ms / 1000
            return handle is not None
        finally:
            del block.changing[offset]
            changed.set_result(None)

    async def retry_later(self, block: PopBlock, offset: int, seconds: float) -> None:
        """Make a message visible again after this number of seconds."""
        block.has_retries = True
        block.settled.add(offset)
        if (changing := block.changing.get(offset)) is not None:
            await asyncio.shield(changing)
        await self._change(block, offset, round(seconds * 1000))

    def make_visible(
        self, block: PopBlock, offsets: Iterable[int], connection: RemotingConnection | None = None
    ) -> None:
        """Make unhandled messages visible to other members. Pass `connection` if the group may have ended.

        This does not wait for the response. If the request is lost, the messages become visible at the end of their
        invisible time. No request is sent for a message that is visible by now: the broker would copy it once more.
        """
        if connection is None and (address := self._client.routes.master(block.handle.broker_name)) is not None:
            connection = self._client.remoting.connected(address)
        for offset in offsets:
            block.settled.add(offset)
            if connection is not None and connection.is_open and not self.is_late(block, offset):
                handle, topic = block.handle_of(offset), self._real_topic(block)
                header = change_invisible_time_header(self._group, topic, handle, REDELIVER_AFTER_MS, block.lite_topic)
                self._client.remoting.call(connection, header.code, header.ext_fields(), ACK_TIMEOUT_SECONDS)

    def _acknowledge_changed(self, block: PopBlock, offsets: list[int], stats: TopicStats) -> list[int]:
        """Acknowledge the messages whose handle has changed or is being changed. Returns the other offsets."""
        others = []
        for offset in offsets:
            if (changing := block.changing.get(offset)) is not None:
                changing.add_done_callback(lambda _, offset=offset: self.acknowledge(block, [offset], stats))  # type: ignore[misc]
            elif (renewed := block.renewed.get(offset)) is None:
                others.append(offset)
            else:
                body = self._body(block, renewed[0], [offset])
                self._acks_at(block.handle.broker_name).add(_Ack(body, renewed[1], stats, block.lite_topic))
        return others

    async def _change(self, block: PopBlock, offset: int, invisible_ms: int) -> PopHandle | None:
        handle = block.handle_of(offset)
        try:
            return await change_invisible_time(
                self._client.remoting,
                self._client.routes.master_for(block.topic, handle.broker_name),
                self._group,
                self._real_topic(block),
                handle,
                invisible_ms,
                lite_topic=block.lite_topic,
            )
        except RmqdError as error:
            if not error.is_reported:
                log.warning("pop.change_failed", queue=str(block.message_queue), offset=offset, error=str(error))
            return None

    def _real_topic(self, block: PopBlock) -> str:
        return block.handle.retry.real_topic(self._group, block.topic)

    def _body(self, block: PopBlock, handle: PopHandle, offsets: list[int]) -> BatchAck:
        return BatchAck(
            self._group,
            block.topic,
            handle.retry,
            handle.start_offset,
            handle.queue_id,
            handle.revive_queue_id,
            handle.pop_time,
            handle.invisible_time,
            tuple(offsets),
        )

    def _acks_at(self, broker_name: str) -> _BrokerAcks:
        acks = self._acks.get(broker_name)
        if acks is None:
            acks = self._acks[broker_name] = _BrokerAcks(self._client, self._clock, broker_name)
            self._start(acks)
        return acks

    def _start(self, acks: _BrokerAcks) -> None:
        if self._tasks is not None:
            self._tasks.create_task(acks.run(), name=f"acks:{acks.broker_name}")


class _BrokerAcks:
    """The unsent acknowledgements for one broker."""

    def __init__(self, client: ClientInstance, clock: Clock, broker_name: str) -> None:
        self.broker_name = broker_name
        self.idle = asyncio.Event()  # set while no acknowledgement waits or is being sent
        self.idle.set()
        self.flush_now = asyncio.Event()  # set while a caller waits in `flush`: acknowledgements are sent at once
        self._client = client
        self._clock = clock
        self._waiting: list[_Ack] = []
        self._came = asyncio.Event()
        self._singly = False  # True if the broker does not support batches of acknowledgements

    def add(self, ack: _Ack) -> None:
        self._waiting.append(ack)
        self._came.set()
        self.idle.clear()

    async def run(self) -> None:
        """Send the added acknowledgements, one request after the other, until cancelled."""
        while True:
            await self._came.wait()
            if not self.flush_now.is_set():
                await self._clock.sleep(COLLECT_ACKS_SECONDS)
            self._came.clear()
            acks, self._waiting = self._waiting, []
            failed = await self._send(acks)
            if failed:
                self._waiting[:0] = failed
                self._came.set()
                await self._clock.sleep(ACK_RETRY_SECONDS)
            elif not self._waiting:
                self.flush_now.clear()
                self.idle.set()

    async def _send(self, acks: list[_Ack]) -> list[_Ack]:
        """Send acknowledgements, and return the ones to retry. Late ones are not sent, and count as duplicates."""
        now = self._clock.monotonic()
        for late in [ack for ack in acks if now >= ack.due]:
            late.stats.count_possible_duplicates(LATE_ACK_CAUSE, len(late.body.offsets))
            acks.remove(late)
        if not acks:
            return []
        try:
            address = self._client.routes.master_for(acks[0].body.topic, self.broker_name)
            together = [] if self._singly else [ack for ack in acks if ack.lite_topic is None]
            if together:
                await batch_ack(self._client.remoting, address, self.broker_name, [ack.body for ack in together])
                acks = [ack for ack in acks if ack.lite_topic is not None]
        except RequestCodeNotSupportedError:
            self._singly = True
            log.info("ack.batch_refused", broker=self.broker_name)
        except RmqdError as error:
            if not isinstance(error, BrokerError) or error.retriable:
                self._warn(error, sum(len(ack.body.offsets) for ack in acks))
                return acks
        left = await asyncio.gather(*(self._send_singly(address, ack) for ack in acks))
        return [ack for ack in left if ack is not None]

    async def _send_singly(self, address: str, ack: _Ack) -> _Ack | None:
        body = ack.body
        left = []
        for offset in body.offsets:
            handle = PopHandle(
                body.start_offset, body.pop_time, body.invisible_time, body.revive_queue_id, body.retry,
                self.broker_name, body.queue_id, offset,
            )  # fmt: skip
            topic = body.retry.real_topic(body.consumer_group, body.topic)
            try:
                await ack_message(
                    self._client.remoting, address, body.consumer_group, topic, handle, lite_topic=ack.lite_topic
                )
            except RmqdError as error:
                self._warn(error, 1)
                if isinstance(error, BrokerError) and not error.retriable:
                    ack.stats.count_possible_duplicates(REFUSED_ACK_CAUSE, 1)
                else:
                    left.append(offset)
        return replace(ack, body=replace(body, offsets=tuple(left))) if left else None

    def _warn(self, error: RmqdError, messages: int) -> None:
        if not error.is_reported:
            log.warning("ack.failed", broker=self.broker_name, messages=messages, error=str(error))
