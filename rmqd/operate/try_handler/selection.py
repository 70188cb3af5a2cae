"""Reads the messages that `rmqd try` passes to a handler, and finds the handler's source line that failed."""

from __future__ import annotations

import asyncio
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from rmqd.client.brokers import Brokers
from rmqd.client.instance import ClientInstance
from rmqd.consumer.assembly import subscription_data_of
from rmqd.consumer.consumer_options import ConsumerOptions
from rmqd.consumer.health.consistency import check_filters
from rmqd.errors import RmqdError, RouteNotFoundError
from rmqd.operate.queries import topic_queries as windows
from rmqd.operate.queries.message_queries import FoundMessage, find_by_id, find_by_key
from rmqd.operate.queries.topic_queries import OffsetWindow
from rmqd.wire.bodies.heartbeat_data import SubscriptionData
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.decode import decode_messages
from rmqd.wire.messages.encode import StoredMessage, encode_message
from rmqd.wire.messages.message import CorruptMessage, Message
from rmqd.wire.topics import SUBSCRIPTION_ALL, dlq_topic, retry_topic

_OWN_FOLDER: Final = os.path.dirname(os.path.abspath(sys.modules["rmqd"].__file__ or "")) + os.sep
_STANDARD: Final = tuple(f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "platstdlib"))
_LIBRARIES: Final = re.compile(r"[/\\](?:site|dist)-packages[/\\]")
_FAULT_LINE: Final = re.compile(r'^  File "(.*)", line (\d+) in (.*)$')


class Frame(NamedTuple):
    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


@dataclass(frozen=True, slots=True)
class HandlerSource:
    """The folder of a handler's package or module. Recognises stack frames of the handler's own source code."""

    folder: str

    @classmethod
    def of(cls, function: Callable[..., object]) -> HandlerSource:
        """Return the source of a handler function. Partials and decorators are unwrapped first."""
        while hasattr(function, "func") or hasattr(function, "__wrapped__"):  # `functools.partial` and `wraps`
            function = getattr(function, "func", None) or function.__wrapped__  # type: ignore[attr-defined]
        module = sys.modules.get(getattr(function, "__module__", None) or type(function).__module__)
        top = None if module is None else sys.modules.get(module.__name__.partition(".")[0])
        file = getattr(top, "__file__", None) or getattr(module, "__file__", None) or ""
        return cls(os.path.dirname(os.path.abspath(file)) + os.sep if file else "")

    def innermost_line(self, innermost_first: Sequence[Frame]) -> Frame | None:
        """Return the innermost frame of the handler's code; else the innermost frame outside rmqd, or None."""
        for is_his in (self.contains, lambda frame: not frame.file.startswith(_OWN_FOLDER)):
            for frame in innermost_first:
                if is_his(frame):
                    return frame
        return None

    def contains(self, frame: Frame) -> bool:
        """Return whether a frame is in the handler's code, not in rmqd, the standard library or another package."""
        file = os.path.abspath(frame.file)
        if not self.folder or not file.startswith(self.folder) or file.startswith(_OWN_FOLDER):
            return False
        inner = file[len(self.folder) - 1 :]  # the folder of the handler may contain a virtual environment
        return not _LIBRARIES.search(inner) and not file.startswith(_STANDARD)


def failing_line(error: BaseException, author: HandlerSource) -> str | None:
    """Return the handler's innermost line in an exception's traceback, as FILE:LINE in FUNCTION; None if unknown."""
    frames = [Frame(one.filename, one.lineno or 0, one.name) for one in traceback.extract_tb(error.__traceback__)]
    frame = author.innermost_line(frames[::-1])
    return None if frame is None else str(frame)


def crashed_line(stacks: str, author: HandlerSource) -> str | None:
    """Return the handler's line that a dead process was running, from the stacks that Python's faulthandler wrote."""
    for stack in re.split(r"\n(?=(?:Current thread|Thread) )", stacks):
        lines = filter(None, map(_FAULT_LINE.match, stack.splitlines()))
        for frame in (Frame(one[1], int(one[2]), one[3]) for one in lines):
            if author.contains(frame):
                return str(frame)
    return None


def as_retried(letter: Message, group: str) -> Message:
    """Return a dead letter as if it were read from the group's retry topic, so that `topic` is its original topic.

    The message has no reconsume times, and keeps its queue id and offset of the DLQ topic.
    """
    topic = retry_topic(group)
    record = encode_message(
        StoredMessage(
            topic=topic,
            body=letter.stored_body,
            queue_id=letter.stored_queue_id,
            queue_offset=letter.queue_offset,
            commit_log_offset=letter.commit_log_offset,
            flag=letter.flag,
            sys_flag=letter.sys_flag,
            born_timestamp=letter.born_timestamp,
            born_host=letter.born_host,
            store_timestamp=letter.store_timestamp,
            store_host=letter.store_host,
            properties=letter.stored_properties,
        )
    )
    queue = MessageQueue(topic, letter.broker_name, letter.queue_id)
    return decode_messages(record, queue, namespace=letter.block.namespace).messages[0]


@dataclass(frozen=True, slots=True)
class TrialSelection:
    """The messages to try. They were stored at or after `from_ms`, and before `to_ms` (Unix milliseconds)."""

    ids: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    from_ms: int | None = None
    to_ms: int | None = None
    last: int | None = None
    waiting: bool = False
    """Whether to select only messages that the group has not committed."""
    topics: tuple[str, ...] = ()
    """The topics to read, by their names at the brokers; empty for all topics of the group."""
    dead_letters: bool = False
    """Whether to read the group's dead letters instead of its topics."""
    without: frozenset[str] = frozenset()
    """Ids of messages to skip."""
    most: int = 10_000
    """How many messages to select at most. If more match, the oldest are selected."""


@dataclass(slots=True)
class ChosenMessages:
    """The selected messages, ordered by store time. `remarks` explain why a message was not found or read."""

    messages: list[Message] = field(default_factory=list)
    corrupt: list[CorruptMessage] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    is_cut: bool = False
    """Whether more messages match than the limit allows."""
    are_dead_letters: bool = False
    """Whether the messages are dead letters, each converted by `as_retried`."""


def make_batches(messages: Iterable[Message], most: int) -> list[list[Message]]:
    """Divide messages into batches of up to `most`, as a consumer would. Each batch has messages of one queue.

    The batches are ordered by their first messages.
    """
    batches: list[list[Message]] = []
    open_batches: dict[MessageQueue, list[Message]] = {}
    for message in messages:
        batch = open_batches.get(message.message_queue)
        if batch is None or len(batch) == most:
            batch = open_batches[message.message_queue] = []
            batches.append(batch)
        batch.append(message)
    return batches


class TrialMessageReader:
    """Reads the messages of a selection that match a group's subscriptions. Call `read` once."""

    def __init__(self, client: ClientInstance, options: ConsumerOptions, selection: TrialSelection) -> None:
        self._client = client
        self._options = options
        self._asked = selection
        self._chosen = ChosenMessages()
        retries, dead = retry_topic(options.group), dlq_topic(options.group)
        self._subscriptions = subscription_data_of(options, 0)
        if selection.dead_letters:
            self._subscriptions = {dead: SubscriptionData(dead, SUBSCRIPTION_ALL)}
        elif selection.topics:
            self._subscriptions = {topic: self._subscriptions[topic] for topic in selection.topics}
        elif not (selection.waiting or selection.ids):
            self._subscriptions.pop(retries, None)  # retries are copies of messages in the group's topics

    async def read(self) -> ChosenMessages:
        """Return the selected messages. Raises RmqdError if a filter is invalid, or a broker cannot be read."""
        asked, chosen = self._asked, self._chosen
        # brokers return all messages for a pull with an invalid SQL condition
        await check_filters(self._client, self._options.group, self._subscriptions.values())
        if asked.ids or asked.keys:
            places = [place async for place in self._named()]
            await self._read(places)
        elif asked.last is not None:
            newest = await windows.read_newest(
                self._client, await self._windows(), asked.last + len(asked.without), self._options.namespace
            )
            self._take(newest.messages, newest.corrupt)
            chosen.messages = chosen.messages[-asked.last :]
        else:
            await self._read(await self._windows())
        chosen.messages.sort(key=lambda one: one.store_timestamp)
        if len(chosen.messages) > asked.most:
            chosen.messages, chosen.is_cut = chosen.messages[: asked.most], True
        if asked.dead_letters:
            chosen.are_dead_letters = True
            chosen.messages = [as_retried(one, self._options.group) for one in chosen.messages]
        return chosen

    async def _windows(self) -> list[tuple[OffsetWindow, SubscriptionData]]:
        found: list[tuple[OffsetWindow, SubscriptionData]] = []
        for topic, subscription in self._subscriptions.items():
            try:
                if self._asked.waiting:
                    parts = await windows.not_committed(self._client, topic, self._options.group)
                else:
                    parts = await windows.windows_between(self._client, topic, self._asked.from_ms, self._asked.to_ms)
            except RouteNotFoundError:
                if topic != retry_topic(self._options.group):
                    self._chosen.remarks.append(f"no broker has topic {topic}")
                continue
            found += [(part, subscription) for part in parts if part.size]
        return found

    async def _named(self) -> AsyncIterator[tuple[OffsetWindow, SubscriptionData]]:
        """Yield the queue and offset of each message that the selection names by id or key, and its subscription."""
        brokers = await Brokers.from_name_server(self._client)
        for msg_id in self._asked.ids:
            found, errors = await find_by_id(brokers, msg_id)
            ours = [one for one in found if one.topic in self._subscriptions]
            self._remark(f"id {msg_id}", found, ours, errors)
            for one in ours[:1]:  # further copies are retries of this message
                yield await self._place(one)
        for key in self._asked.keys:
            for topic in self._subscriptions:
                found, errors = await find_by_key(brokers, topic, key, most=self._asked.most)
                self._remark(f"key {key} in {topic}", found, found, errors)
                for one in found:
                    yield await self._place(one)

    async def _place(self, found: FoundMessage) -> tuple[OffsetWindow, SubscriptionData]:
        await self._client.routes.lookup(found.topic)
        queue = MessageQueue(found.topic, found.broker, found.queue)
        return OffsetWindow(queue, found.offset, found.offset + 1), self._subscriptions[found.topic]

    def _remark(
        self, what: str, found: Sequence[FoundMessage], ours: Sequence[FoundMessage], errors: dict[str, RmqdError]
    ) -> None:
        remarks = self._chosen.remarks
        remarks += [f"{what}: {where}: {error}" for where, error in errors.items()]
        if not found:
            remarks.append(f"{what}: no broker has this message")
        elif not ours:
            elsewhere = ", ".join(sorted({one.topic for one in found}))
            remarks.append(f"{what}: it is in {elsewhere}, which is not among the selected topics")

    async def _read(self, parts: Iterable[tuple[OffsetWindow, SubscriptionData]]) -> None:
        """Read parts of queues concurrently. A part is read until it has more messages than the selection's limit."""

        async def read(window: OffsetWindow, subscription: SubscriptionData) -> None:
            taken = 0
            async for read in windows.read_window(self._client, window, subscription, self._options.namespace):
                taken += self._take(read.messages, read.corrupt)
                if taken > self._asked.most:
                    break
            if not taken and window.size == 1 and (self._asked.ids or self._asked.keys):
                place = f"{window.queue.topic}, {window.queue.broker_name}, queue {window.queue.queue_id}"
                self._chosen.remarks.append(
                    f"the message at {place}, offset {window.start} does not match the group's subscriptions"
                )

        await asyncio.gather(*(read(*part) for part in parts))

    def _take(self, messages: Sequence[Message], corrupt: Sequence[CorruptMessage]) -> int:
        asked = self._asked
        low, high = asked.from_ms or 0, 2**63 - 1 if asked.to_ms is None else asked.to_ms
        taken = [one for one in messages if low <= one.store_timestamp < high and one.msg_id not in asked.without]
        self._chosen.messages += taken
        self._chosen.corrupt += corrupt
        return len(taken)
