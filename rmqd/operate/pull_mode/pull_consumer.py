"""PullConsumer: an asyncio program polls messages from it, instead of giving rmqd a handler."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from datetime import datetime
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from rmqd.client.api.offset_requests import get_max_offset, get_min_offset, query_consumer_offset, search_offset
from rmqd.client.instance import ClientInstance
from rmqd.client.remoting.remoting_client import RemotingClient
from rmqd.consumer.assembly import read_local_offsets
from rmqd.consumer.cache.process_queue import ProcessQueue
from rmqd.consumer.pauses import PauseScope
from rmqd.consumer.pull.assigned_queue import AssignedQueue
from rmqd.consumer.push_consumer import PushConsumer
from rmqd.errors import PullConsumerError, RmqdError, SettingError
from rmqd.operate.pull_mode.polled_queues import PolledQueue, PollService, polled_consumer
from rmqd.operate.pull_mode.pull_settings import Expression, Settings, as_iterable, check
from rmqd.runtime.logs.log_setup import use_standard_logging
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.message import Message
from rmqd.wire.topics import is_retry_topic, wrap_namespace

T = TypeVar("T")

START_SECONDS: Final = 10.0  # how long `subscribe` waits for queues; a previous owner may need 5 s to release them
POLL_SECONDS: Final = 0.5  # how often a poll without messages checks for a failure that only an operator can end


class PullConsumer:
    """Polls messages of a consumer group, for scripts, notebooks and batch jobs: docs/pull-consumer.md.

    `subscribe` shares topics with the other members of the group. `assign` reads the queues that the program names, and
    does not join the group. `commit` commits the messages that polls have returned. With `auto_commit=True`, each poll
    confirms the messages of earlier polls, and the consumer commits confirmed messages every 5 s, when it releases a
    queue, and when it closes. Only one task at a time may use the consumer.
    """

    def __init__(self, group: str, **settings: Any) -> None:
        """Check the settings, such as `nameserver="127.0.0.1:9876"`, and start nothing. Raises SettingError."""
        use_standard_logging()
        self._settings = Settings(group, settings)
        self._namespace = self._settings.client.namespace
        self._client: ClientInstance | None = None
        self._consumer: PushConsumer | None = None
        self._polls: PollService | None = None
        self._tasks: list[asyncio.Task[None]] = []  # the client's task, then the consumer's
        self._subscriptions: dict[str, Expression] = {}
        self._assigned_queues: dict[MessageQueue, Expression] = {}
        self._is_closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_closed = True  # first, so that no other task starts a consumer that nobody stops
        await self._stop(is_done=kind is None)
        if self._client is not None:
            self._client.stop()
            await _ended(self._tasks)

    async def close(self) -> None:
        """Leave the group. With `auto_commit`, commit all returned messages first. Other calls raise afterwards."""
        await self.__aexit__(None, None, None)

    async def subscribe(self, topic: str, expression: Expression = "*") -> None:
        """Consume a topic as a member of the group.

        `expression` is tags joined by `||`, `*` for all messages, or `{"sql": CONDITION}`. Returns once the member has
        its share of the queues, at the latest after 10 s. For a second topic, the consumer leaves the group and joins
        it again, and polls return uncommitted messages again. After an error, the earlier subscriptions stay.
        """
        check(topic, str, "the name of a topic")
        if self._assigned_queues:
            raise PullConsumerError("this consumer has assigned queues; to subscribe, create another consumer")
        subscriptions = {**self._subscriptions, topic: expression}
        self._settings.check_filters(subscriptions)
        if not await self.queues(topic):
            raise PullConsumerError(
                f"{topic} is not readable; allow reading: `mqadmin updateTopicPerm -t {topic} -p 6`"
            )
        await self._read(subscriptions)

    async def unsubscribe(self, topic: str) -> None:
        """End the subscription to a topic. After its last subscription, the consumer leaves the group."""
        check(topic, str, "the name of a topic")
        self._raise_closed()
        if topic not in self._subscriptions:
            raise PullConsumerError(
                f"{topic} is not subscribed; this consumer subscribes to {', '.join(self._subscriptions) or 'no topic'}"
            )
        await self._read({name: one for name, one in self._subscriptions.items() if name != topic})

    async def assign(self, queues: Iterable[MessageQueue], expression: Expression = "*") -> None:
        """Read only these queues, from the group's offsets. Queues that were assigned before keep their positions."""
        if self._subscriptions:
            has = f"this consumer subscribes to {', '.join(self._subscriptions)}"
            raise PullConsumerError(f"{has}; to assign queues, create another consumer")
        chosen = {self._stored(queue): queue for queue in as_iterable(queues)}
        existing = {queue for topic in {one.topic for one in chosen.values()} for queue in await self.queues(topic)}
        if not chosen or (missing := {*chosen.values()} - existing):
            which = f"there is no queue {', '.join(map(str, missing))}" if chosen else "no queue is named"
            raise PullConsumerError(f"{which}; queues(topic) returns the queues of a topic")
        self._settings.check_filters({queue.topic: expression for queue in chosen.values()})
        before = {queue: (_cache_of(one).position, _cache_of(one).confirmed) for queue, one in self._own().items()}
        try:
            await self._read({}, dict.fromkeys(chosen, expression))
        finally:
            for queue in before.keys() & self._own():
                await self._seek(self._own()[queue], *before[queue])

    async def poll(self, timeout: float = 5.0, max_messages: int = 32) -> list[Message]:  # noqa: ASYNC109  Java's name
        """Wait for messages and return up to `max_messages`; return an empty list after `timeout` seconds without any.

        A temporary failure, such as a broker restart, does not end the wait. Raises RmqdError for a lasting failure.
        """
        check(timeout, int | float, "a number of seconds")
        check(max_messages, int, "a number of messages")
        if not timeout >= 0 or max_messages < 1:
            raise SettingError(f"poll({timeout}, {max_messages}): expected timeout >= 0 and max_messages >= 1")
        (_, polls), clock = self._current(), self._connected().clock
        if self._settings.auto_commit:
            self._confirm()
        end = clock.monotonic() + timeout
        while not (messages := polls.take(max_messages)):
            left = end - clock.monotonic()
            if not await polls.wait_for_messages(min(left, POLL_SECONDS)):
                self._settings.raise_failure(self._current()[0], self._tasks)
                if left <= 0:
                    break
        return messages

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Commit `offsets`, the offset of the next message by queue; by default, all messages that polls have returned.

        Returns once the brokers have stored them. An offset may be lower than the stored offset. Raises RmqdError.
        """
        self._current()
        self._settings.raise_end(self._tasks)
        check(offsets, Mapping | None, "{queue: offset}, or nothing")
        committed = {self._assigned(queue, is_kept=False): offset for queue, offset in (offsets or {}).items()}
        for queue, offset in (offsets or {}).items():
            await self._check_offset(queue, offset, 0)
        for one, offset in committed.items():
            _cache_of(one).confirm(offset)
        if offsets is None:
            self._confirm()
        await asyncio.gather(*map(self._commit, self._own().values() if offsets is None else committed))

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the group's stored offset of a queue; None if the group has none.

        The offset is read from the queue's broker, or from the offsets file of a broadcasting consumer.
        """
        stored, client = self._stored(queue), self._connected()
        options = self._settings.options({queue.topic: "*"})
        await self._check_queue(queue)
        with self._request(queue.topic):
            if self._consumer is not None:
                return await self._consumer.context.store.read(stored)
            if options.message_model == "broadcasting":
                await client.cluster_id.learn(may_write=False)
                return read_local_offsets(options, client).get(stored)
        return await self._ask(queue, lambda at, address, one: query_consumer_offset(at, address, options.group, one))

    async def assignment(self) -> list[MessageQueue]:
        """Return the queues that this consumer owns now, sorted, without retry topics and queues being released."""
        self._raise_closed()
        kept = [queue for queue, one in self._own().items() if not (one.is_releasing or is_retry_topic(queue.topic))]
        return sorted(queue.without(self._namespace) for queue in kept)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return all readable queues of a topic, sorted."""
        check(topic, str, "the name of a topic")
        client, stored = self._connected(), wrap_namespace(topic, self._namespace)
        with self._request(topic):
            await client.routes.refresh(stored)
        return sorted(queue.without(self._namespace) for queue in client.routes.queues(stored))

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Discard a queue's cached messages, and continue at `offset`. With `auto_commit`, also commit `offset`."""
        assigned = self._assigned(queue)
        await self._check_offset(queue, offset, await self._ask(queue, get_min_offset))
        await self._seek(assigned, offset, _cache_of(assigned).confirmed)
        if self._settings.auto_commit:
            await self._commit(assigned)

    async def seek_to_first(self, queue: MessageQueue) -> None:
        """Continue reading a queue at the oldest message that the broker keeps."""
        await self.seek(queue, await self._ask(queue, get_min_offset))

    async def seek_to_last(self, queue: MessageQueue) -> None:
        """Continue reading a queue at its end: only messages that arrive from now on."""
        await self.seek(queue, await self._ask(queue, get_max_offset))

    async def offset_for_time(self, queue: MessageQueue, time: datetime) -> int:
        """Return the offset of the first message stored at `time` or later; the queue's end if there is none.

        Raises SettingError for a datetime without a time zone.
        """
        check(time, datetime, "a datetime with a time zone")
        if time.tzinfo is None:
            raise SettingError(f"{time} has no time zone; expected datetime(..., tzinfo=UTC), or time.astimezone()")
        milliseconds = round(time.timestamp() * 1000)
        return await self._ask(queue, lambda at, address, one: search_offset(at, address, one, milliseconds))

    async def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Stop polls from returning messages of these queues, even cached ones, until `resume`. Ownership is kept."""
        self._pause(queues, self._current()[0].context.pauses.pause)

    async def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Let polls return messages of these paused queues again."""
        self._pause(queues, self._current()[0].context.pauses.resume)

    # --- the consumer

    def _connected(self) -> ClientInstance:
        self._raise_closed()
        if self._client is None:
            self._client = ClientInstance(self._settings.client)
            self._tasks = [asyncio.create_task(self._client.run(), name="client")]
        if self._tasks[0].done():
            self._settings.raise_end(self._tasks)
        return self._client

    def _raise_closed(self) -> None:
        if self._is_closed:
            raise PullConsumerError("the consumer is closed; create another consumer")

    def _current(self) -> tuple[PushConsumer, PollService]:
        self._connected()
        if self._consumer is None or self._polls is None:
            raise PullConsumerError("no topic or queue to read; call subscribe(topic) or assign(queues) first")
        return self._consumer, self._polls

    async def _read(
        self, subscriptions: dict[str, Expression], chosen: dict[MessageQueue, Expression] | None = None
    ) -> None:
        """Read these topics or queues. If this fails, read the previous topics or queues again. Raises RmqdError."""
        self._connected()
        before = self._subscriptions, self._assigned_queues
        paused = () if self._consumer is None else self._consumer.context.pauses.scopes
        try:
            await self._stop(is_done=True)
            await self._start(subscriptions, chosen or {}, paused)
        except BaseException:
            await self._stop(is_done=False)
            with contextlib.suppress(RmqdError):  # the next poll raises this error
                await self._start(*before, paused)
            raise

    async def _start(
        self, subscriptions: dict[str, Expression], chosen: dict[MessageQueue, Expression], paused: Iterable[PauseScope]
    ) -> None:
        """Start a consumer if topics or queues are given, and wait up to 10 s for its queues. Raises RmqdError."""
        self._subscriptions, self._assigned_queues = subscriptions, chosen
        by_topic = subscriptions | {queue.without(self._namespace).topic: one for queue, one in chosen.items()}
        if not by_topic:
            return
        client, options = self._connected(), self._settings.options(by_topic)
        self._settings.hold(options, is_assigned=bool(chosen))
        self._polls = PollService(client.clock)
        self._consumer = consumer = polled_consumer(options, client, self._polls, chosen)
        for scope in paused:
            consumer.context.pauses.pause(scope)
        self._tasks.append(asyncio.create_task(consumer.run(), name=f"pull consumer {options.group}"))
        end = client.clock.monotonic() + START_SECONDS
        while client.clock.monotonic() < end:
            queues = (one for queue, one in consumer.assigned.items() if not is_retry_topic(queue.topic))
            if consumer.snapshot().ready and all(one.loop is not None for one in queues):
                return
            self._settings.raise_failure(self._current()[0], self._tasks)
            await client.clock.sleep(0.01)

    async def _stop(self, *, is_done: bool) -> None:
        """Stop the consumer and release all queues. With `is_done` and `auto_commit`, confirm all messages first."""
        if (consumer := self._consumer) is None:
            return
        if is_done and self._settings.auto_commit:
            self._confirm()
        for one in self._own().values():
            _cache_of(one).release()
        consumer.stop(shutdown_timeout_seconds=0.0)
        running = self._tasks[-1]
        await _ended([running])  # if this wait is cancelled, `_consumer` is still set, so the next call waits again
        if self._consumer is not consumer:  # `close` and another call have waited for the same end
            return
        self._tasks.remove(running)
        self._settings.release()  # not before the last commit: the next holder may use the same offsets file
        self._consumer, self._subscriptions, self._assigned_queues = None, {}, {}
        if not running.cancelled():
            running.exception()  # avoids asyncio's warning that the exception was never retrieved

    # --- queues

    def _stored(self, queue: MessageQueue) -> MessageQueue:
        """Return the queue with its topic's name on the brokers. Raises SettingError if it is not a MessageQueue."""
        check(queue, MessageQueue, "a queue, such as queues(topic) returns")
        return MessageQueue(wrap_namespace(queue.topic, self._namespace), queue.broker_name, queue.queue_id)

    def _own(self) -> dict[MessageQueue, AssignedQueue]:
        """Return the queues that this consumer has acquired, including queues that it is releasing."""
        assigned = {} if self._consumer is None else self._consumer.assigned
        return {queue: one for queue, one in assigned.items() if isinstance(one, AssignedQueue) and one.loop}

    def _assigned(self, queue: MessageQueue, *, is_kept: bool = True) -> AssignedQueue:
        """Return this consumer's queue. Raises PullConsumerError if not acquired or, with `is_kept`, being released."""
        self._current()
        assigned = self._own().get(self._stored(queue))
        if assigned is None or (is_kept and assigned.is_releasing):
            step = "another member may have it; assignment() returns this consumer's queues"
            raise PullConsumerError(f"{queue} is not assigned to this consumer now: {step}")
        return assigned

    def _pause(self, queues: Iterable[MessageQueue], change: Callable[[PauseScope], None]) -> None:
        for assigned in [self._assigned(queue) for queue in as_iterable(queues)]:
            queue = assigned.message_queue
            change(PauseScope(queue.topic, queue.broker_name, queue.queue_id))
            assigned.apply_pauses()

    def _confirm(self) -> None:
        """Confirm all messages that polls have returned or the filter has skipped, so that they can be committed."""
        for one in self._own().values():
            _cache_of(one).confirm()

    async def _seek(self, assigned: AssignedQueue, offset: int, confirmed: int) -> None:
        """Continue at `offset`. The offset to commit becomes `confirmed`; with `auto_commit` it becomes `offset`."""
        done = offset if self._settings.auto_commit else confirmed

        def begin(cache: ProcessQueue) -> None:
            assert isinstance(cache, PolledQueue)
            cache.confirm(done)

        await assigned.seek(offset, begin)

    async def _check_offset(self, queue: MessageQueue, offset: int, first: int) -> None:
        """Raise PullConsumerError if `offset` is not an integer from `first` to the queue's maximum offset."""
        end = await self._ask(queue, get_max_offset)
        if type(offset) is not int or not first <= offset <= end:
            raise PullConsumerError(f"{offset!r} is not an offset of {queue}; expected {first} to {end}")

    async def _commit(self, assigned: AssignedQueue) -> None:
        cache, store, queue = _cache_of(assigned), self._current()[0].context.store, assigned.message_queue
        with self._request(queue.without(self._namespace).topic):
            if assigned.is_releasing:
                await store.commit_upward(queue, cache.confirmed, lambda: not cache.dropped)
            elif not cache.dropped:
                is_lower = cache.confirmed < store.committed.get(queue, 0)
                await store.commit(queue, cache.confirmed, downward=is_lower)

    async def _ask(
        self, queue: MessageQueue, question: Callable[[RemotingClient, str, MessageQueue], Awaitable[T]]
    ) -> T:
        """Return the result of `question`, called with the address of the queue's broker. Raises RmqdError."""
        client, stored = self._connected(), self._stored(queue)
        await self._check_queue(queue)
        with self._request(queue.topic):
            return await question(client.remoting, client.routes.address_for(stored), stored)

    async def _check_queue(self, queue: MessageQueue) -> None:
        """Raise PullConsumerError if the broker does not have this queue, and RmqdError if the topic has no route."""
        if self._stored(queue) in self._connected().routes.queues(self._stored(queue).topic):
            return
        numbers = [one.queue_id for one in await self.queues(queue.topic) if one.broker_name == queue.broker_name]
        if numbers and queue.queue_id not in numbers:
            raise PullConsumerError(f"there is no queue {queue}; queues(topic) returns the queues of a topic")

    @contextlib.contextmanager
    def _request(self, topic: str) -> Iterator[None]:
        """Return a context that adds the next step to request errors; after `close`, it raises PullConsumerError."""
        try:
            with self._settings.with_next_step(topic):
                yield
        except (RmqdError, asyncio.CancelledError):
            if (task := asyncio.current_task()) is None or not task.cancelling():
                self._raise_closed()
            raise


def _cache_of(assigned: AssignedQueue) -> PolledQueue:
    (cache,) = assigned.process_queues
    assert isinstance(cache, PolledQueue)
    return cache


async def _ended(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Wait until the tasks have ended. Tasks of an earlier event loop count as done: they ended with their loop."""
    if running := [task for task in tasks if not task.done()]:
        await asyncio.wait(running)
