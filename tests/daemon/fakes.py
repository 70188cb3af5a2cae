"""An engine with fake consumers: the test controls them, and they have no connection to a broker."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from rmqd.client.client_options import ClientOptions
from rmqd.client.instance import ClientInstance
from rmqd.client.remoting.pending import ClientSnapshot
from rmqd.config.model.group_model import GroupConfig
from rmqd.config.model.root_model import RootConfig
from rmqd.consumer.consumer_options import ConsumerOptions
from rmqd.consumer.pauses import WHOLE_GROUP, Pauses, PauseScope
from rmqd.consumer.services import Consumer
from rmqd.consumer.stats.stats_snapshot import (
    DEAD_LETTER_CAUSES,
    FALL_CAUSES,
    FLOW_CONTROL_REASONS,
    HANDLED_RESULTS,
    GroupSnapshot,
    QueueSnapshot,
    TopicSnapshot,
)
from rmqd.daemon.groups.group_engine import LocalEngine
from rmqd.daemon.http.daemon_status import DaemonInfo
from rmqd.errors import ConfigError, FilterRefusedError
from rmqd.handler_api.batch import LoadedHandler
from rmqd.runtime.histogram import Histogram

EMPTY = Histogram((0.1, 1.0)).snapshot()
ABOUT = DaemonInfo("shop-1", 42, 1_700_000_000.0, 1_700_000_100.0, "abc", 1_700_000_000.0, True, False)
"""A daemon that has run for 100 s."""


def topic_snapshot(
    topic: str = "orders", *, is_retry: bool = False, received: int = 0, acked: int = 0
) -> TopicSnapshot:
    """Counters of a topic."""
    return TopicSnapshot(
        topic=topic,
        is_retry=is_retry,
        received=received,
        handled=dict.fromkeys(HANDLED_RESULTS, 0) | {"acked": acked},
        flow_control=dict.fromkeys(FLOW_CONTROL_REASONS, 0),
        held_seconds=dict.fromkeys(FLOW_CONTROL_REASONS, 0.0),
        retries={3: 2},
        dead_letters=dict.fromkeys(DEAD_LETTER_CAUSES, 0),
        falls=dict.fromkeys(FALL_CAUSES, 0),
        handler_duration=EMPTY,
        message_age=EMPTY,
        duplicates={},
        exceptions={},
    )


def queue_snapshot(
    queue: int = 0, *, broker: str = "broker-a", state: str = "waiting", since: float = 1.0
) -> QueueSnapshot:
    """A queue of the topic orders with a lag of 40."""
    return QueueSnapshot(
        topic="orders",
        is_retry=False,
        broker=broker,
        queue=queue,
        state=state,
        since=since,
        committed=60,
        max=100,
        lag=40,
        lag_seconds=2.5,
        cached=7,
        handling=2,
        cached_bytes=7000,
        span=9,
        position=75,
        last_commit=1_700_000_000.0,
        stall=None,
    )


def group_snapshot(name: str = "mailer", *, received: int = 0, queues: tuple[QueueSnapshot, ...] = ()) -> GroupSnapshot:
    """A running group."""
    return GroupSnapshot(
        name=name,
        engine="local",
        message_model="clustering",
        state="running",
        paused=False,
        pauses=(),
        client_id="10.0.0.1@1",
        failure=None,
        ready=True,
        not_ready_reason=None,
        topics=(topic_snapshot(received=received, acked=received),),
        queues=queues,
        assigned={"orders": len(queues)},
        rebalances=1,
        handover_timeouts=0,
        commit_failures=0,
        hook_failures={},
        left_out_by_hooks={},
        handler_hung=False,
        problems=(),
    )


def client_snapshot(client_id: str = "10.0.0.1@1") -> ClientSnapshot:
    """A client that has talked to one broker."""
    return ClientSnapshot(client_id, {("broker-9", 0): True}, {11: EMPTY, 34: EMPTY}, {(11, "timeout"): 2}, 1)


class FakeConsumer:
    """A consumer that runs until `stop` or `fail`. A drain waits for `drained`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.running = asyncio.Event()
        self.drained = asyncio.Event()
        self.drained.set()
        self.hurried = False
        self.pauses = Pauses()
        self.received = 0
        self.ended = False
        self.changes: list[ConsumerOptions] = []
        self._stop = asyncio.Event()
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        """Run until stopped and drained, or failed."""
        self.running.set()
        stop = asyncio.create_task(self._stop.wait())
        try:
            waited: list[asyncio.Future[Any]] = [stop, self._failure]
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if self._failure.done():
                self._failure.result()
                return
            await self.drained.wait()
        finally:
            stop.cancel()
            self.ended = True

    async def change(self, options: ConsumerOptions) -> None:
        """Record the options."""
        self.changes.append(options)

    def fail(self, error: Exception) -> None:
        """Make `run` raise."""
        self._failure.set_exception(error)

    def end(self) -> None:
        """Make `run` return without a stop."""
        self._failure.set_result(None)

    def stop(self, *, shutdown_timeout_seconds: float | None = None) -> None:
        """Stop gracefully."""
        self._stop.set()

    def force_stop(self) -> None:
        """Stop without waiting for `drained`."""
        self.hurried = True
        self._stop.set()
        self.drained.set()

    @property
    def paused(self) -> bool:
        """Whether the whole group is paused."""
        return self.pauses.is_whole_group_paused

    def pause(self, scope: PauseScope = WHOLE_GROUP) -> None:
        """Record the pause."""
        self.pauses.pause(scope)

    def resume(self, scope: PauseScope = WHOLE_GROUP) -> None:
        """Record the end of the pause."""
        self.pauses.resume(scope)

    def queue_snapshots(self) -> Iterator[QueueSnapshot]:
        """The queues of the snapshot."""
        return iter(self.snapshot().queues)

    def snapshot(self, *, with_queues: bool = True) -> GroupSnapshot:
        """The current state, with `received` messages."""
        state = "stopped" if self.ended else "running" if self.running.is_set() else "starting"
        group = group_snapshot(self.name, received=self.received)
        return replace(group, state=state, paused=self.paused, pauses=self.pauses.scopes, ready=self.running.is_set())


class FakeClient(ClientInstance):
    """A client that connects to nothing."""

    def __init__(self, options: ClientOptions) -> None:
        self.options = options
        self.running = self.closed = False
        self.secured: list[ClientOptions] = []
        self._stop = asyncio.Event()

    async def close(self) -> None:
        """Record the call."""
        self.closed = True

    async def run(self) -> None:
        """Run until stopped."""
        self.running = True
        await self._stop.wait()
        self.running = False

    def stop(self) -> None:
        """End `run`."""
        self._stop.set()

    def update_security(self, options: ClientOptions) -> None:
        """Record the options with the new keys."""
        self.secured.append(options)

    def snapshot(self) -> ClientSnapshot:
        """A snapshot of a client that has talked to one broker."""
        return client_snapshot(self.options.instance_name)


@dataclass
class FakeEngine(LocalEngine):
    """An engine that builds and keeps fakes: `consumers` by group, oldest first."""

    consumers: dict[str, list[FakeConsumer]] = field(default_factory=dict)
    clients: list[FakeClient] = field(default_factory=list)
    options: dict[str, ConsumerOptions] = field(default_factory=dict)
    refused_plugins: set[str] = field(default_factory=set)
    refused_filters: set[str] = field(default_factory=set)
    """Expressions that no broker takes."""
    on_spark: list[str] = field(default_factory=list)
    """The groups that were built to run there."""
    checked: list[str] = field(default_factory=list)
    """The groups whose filters brokers were asked about."""

    def build_client(self, options: ClientOptions) -> FakeClient:
        """A FakeClient."""
        self.clients.append(FakeClient(options))
        return self.clients[-1]

    def load_handler(self, group: str, settings: GroupConfig, options: ConsumerOptions) -> LoadedHandler:
        """A handler with the plugin's name. Raises ConfigError for `refused_plugins`."""
        assert settings.handler is not None
        if settings.handler.plugin in self.refused_plugins:
            raise ConfigError([f"groups.{group}.handler.plugin: {settings.handler.plugin} is unknown"])
        return LoadedHandler(settings.handler.plugin, lambda batch: None, False, None, None)

    def build_consumer(self, options: ConsumerOptions, handler: LoadedHandler, client: ClientInstance) -> Consumer:
        """A FakeConsumer."""
        consumer = FakeConsumer(options.group)
        self.options[options.group] = options
        self.consumers.setdefault(options.group, []).append(consumer)
        return consumer

    def build_spark_consumer(self, name: str, options: ConsumerOptions, config: RootConfig) -> Consumer:
        """A FakeConsumer."""
        self.on_spark.append(options.group)
        return self.build_consumer(options, LoadedHandler("", lambda batch: None, False, None, None), self.clients[-1])

    async def check_filters(self, options: ConsumerOptions, client: ClientInstance) -> None:
        """Raise FilterRefusedError for `refused_filters`."""
        self.checked.append(options.group)
        for topic, wanted in options.subscriptions.items():
            if wanted.expression in self.refused_filters:
                raise FilterRefusedError(topic, f"broker-a refuses {wanted.expression}")

    async def close(self) -> None:
        """There is nothing to close."""

    def last(self, group: str) -> FakeConsumer:
        """The group's newest consumer."""
        return self.consumers[group][-1]
