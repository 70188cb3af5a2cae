"""Keeps one group running: replaces a failed consumer after a delay, without affecting other groups.

During the delay, the group's state is `failed`, with the reason. The delay doubles from one second to a minute, and
returns to one second after the group was healthy for a minute. The process is live if its event loop runs, and ready if
every group is ready.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import structlog

from rmqd.client.client_options import ClientOptions
from rmqd.config.model.group_model import GroupConfig
from rmqd.config.model.root_model import DEFAULT_CLUSTER
from rmqd.consumer.consumer_options import ConsumerOptions
from rmqd.consumer.pauses import WHOLE_GROUP, Pauses, PauseScope
from rmqd.consumer.services import Consumer
from rmqd.consumer.stats.stats_snapshot import GroupSnapshot, QueueSnapshot
from rmqd.daemon.groups.group_engine import HostSnapshot, add_ended_counters
from rmqd.handler_api.batch import leaf_exceptions
from rmqd.runtime.clock import Clock, backoff_seconds, wait_within
from rmqd.runtime.histogram import Histogram, HistogramSnapshot
from rmqd.runtime.plain_text import describe, duration
from rmqd.wire.topics import without_namespace, wrap_namespace


@dataclass(frozen=True, slots=True)
class WorkerShare:
    """One worker's share of the groups. `worker` is its number, from 1 to `workers`; None without `--workers`."""

    worker: int | None = None
    workers: int = 1

    def of_client(self, options: ClientOptions) -> ClientOptions:
        """Return the client's options with an instance name for this worker.

        Two members with the same client id would allocate the same queues. The instance name DEFAULT is unchanged,
        because the client replaces it with a name that no other process has.
        """
        if self.worker is None or options.instance_name == "DEFAULT":
            return options
        return replace(options, instance_name=f"{options.instance_name}-{self.worker}")

    def of_group(self, group: GroupConfig, options: ConsumerOptions) -> ConsumerOptions:
        """Return the options with this worker's part of the rate limit. A part is never 0, because 0 means no limit.

        A group that runs only in worker 1 has the whole limit.
        """
        if self.worker is None or not options.pull_rate_limit or not _runs_in_all_workers(group):
            return options
        part, rest = divmod(options.pull_rate_limit, self.workers)
        return replace(options, pull_rate_limit=max(1, part + (1 if self.worker <= rest else 0)))

    def runs(self, group: GroupConfig) -> bool:
        """Return whether this process runs the group.

        Broadcasting groups run only in worker 1, because every member would receive all messages. Groups on Spark run
        only in worker 1, because Spark starts its own processes.
        """
        return _runs_in_all_workers(group) or self.worker in (None, 1)


def _runs_in_all_workers(group: GroupConfig) -> bool:
    return group.message_model != "broadcasting" and group.engine != "spark"


TICK_SECONDS = 1.0
STALE_TICK_SECONDS = 10.0
LOOP_DELAY_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """The result of one check. `reason` is the problem, or empty if the check passed."""

    name: str
    reason: str

    @property
    def ok(self) -> bool:
        return not self.reason


def readiness(view: HostSnapshot, stopping: bool) -> tuple[HealthCheck, ...]:
    """Return the readiness checks: each group has a route and its first assignment, in every process."""
    checks = [HealthCheck("daemon", "draining: the process is stopping" if stopping else "")]
    checks += [HealthCheck("workers", reason) for reason in view.missing]
    for process in view.processes:
        suffix = "" if process.worker is None else f" in worker {process.worker}"
        for group in process.groups:
            reason = "" if group.ready else group.not_ready_reason or group.state
            checks.append(HealthCheck(f"group {group.name}{suffix}", reason))
    return tuple(checks)


class LoopMonitor:
    """Measures how late the event loop runs a timer, once a second."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last = clock.monotonic()
        self._delays = Histogram(LOOP_DELAY_SECONDS)

    async def run(self) -> None:
        """Measure until cancelled."""
        while True:
            self._last = self._clock.monotonic()
            await asyncio.sleep(TICK_SECONDS)
            self._delays.observe(max(0.0, self._clock.monotonic() - self._last - TICK_SECONDS))

    def liveness(self) -> HealthCheck:
        """Check that the loop ran its timer recently."""
        age = self._clock.monotonic() - self._last
        late = age > STALE_TICK_SECONDS
        return HealthCheck("event loop", f"it has not run its timer for {duration(age)}" if late else "")

    def snapshot(self) -> HistogramSnapshot:
        """Return all delays so far, in seconds."""
        return self._delays.snapshot()


log = structlog.get_logger(__name__)

FIRST_PAUSE_SECONDS = 1.0
MAX_RESTART_DELAY_SECONDS = 60.0
HEALTHY_SECONDS = 60.0
# A consumer ends within its shutdown timeout, plus this time for its last commits.
END_GRACE_SECONDS = 10.0
HURRY_GRACE_SECONDS = 5.0


class Backoff:
    """Delays before restarts. The delay doubles with each failure, and starts again at `first` after a long run."""

    def __init__(
        self,
        first: float = FIRST_PAUSE_SECONDS,
        longest: float = MAX_RESTART_DELAY_SECONDS,
        healthy: float = HEALTHY_SECONDS,
    ) -> None:
        self._first = first
        self._longest = longest
        self._healthy = healthy
        self._failures = 0  # consecutive failures

    def next_delay_seconds(self, lived_seconds: float) -> float:
        """Return the delay, in seconds, after a failure of a consumer that ran for `lived_seconds`."""
        if lived_seconds >= self._healthy:
            self._failures = 0
        self._failures += 1
        return backoff_seconds(self._first, self._failures, self._longest)


class GroupEndedError(Exception):
    """A consumer's `run` returned without a call of `stop`."""


class GroupSupervisor:
    """One group of this process, and the successive consumers that run it."""

    def __init__(
        self,
        name: str,
        build: Callable[[], Consumer],
        shutdown_timeout_seconds: float,
        clock: Clock,
        backoff: Backoff,
        *,
        cluster: str = DEFAULT_CLUSTER,
        namespace: str = "",
    ) -> None:
        """`build` creates the next consumer. If `build` raises, the group counts as failed. `namespace` is a part of
        the group's name and of its topics' names at the brokers.
        """
        self.name = name
        self.shutdown_timeout_seconds = shutdown_timeout_seconds
        self._build = build
        self._clock = clock
        self._backoff = backoff
        self._cluster = cluster
        self._namespace = namespace
        self._log = log.bind(group=name)
        self.consumer = build()
        self._past: GroupSnapshot | None = None
        self.failure: str | None = None
        """The last failure, while the group waits for a restart."""
        self.pauses = Pauses()
        self._stop = asyncio.Event()
        self._force_stop = asyncio.Event()
        self._following: Consumer | None = None  # the consumer that replaces the current one, set by `restart`
        self._wanted = asyncio.Event()  # set to end the current consumer, for a stop or a restart
        self._taken_over = asyncio.Event()

    async def run(self) -> None:
        """Run the group until `stop` has drained it. A failure of the group is not raised: the group restarts."""
        while not self._stop.is_set():
            started = self._clock.monotonic()
            try:
                await self._run_consumer()
            except Exception as error:  # noqa: BLE001 a failure is reported, and the group restarts
                await self._wait_and_replace(error, self._clock.monotonic() - started)
            if self._following is not None and not self._stop.is_set():
                self._replace(self._following)
                self._following = None
                self._wanted.clear()
                self._taken_over.set()
        self._taken_over.set()
        if self._following is not None:
            self._following.stop()
            await self._following.run()

    def stop(self) -> None:
        """Request a graceful stop."""
        self._stop.set()
        self._wanted.set()

    def force_stop(self) -> None:
        """End now: abandon running handlers, and commit finished messages."""
        self.stop()
        self._force_stop.set()

    async def restart(self, following: Consumer) -> None:
        """Drain the current consumer, and continue with `following`."""
        if self._stop.is_set():  # `run` may have ended while `following` was loaded
            following.stop()
            await following.run()
            return
        self._following = following
        self._taken_over.clear()
        self._wanted.set()
        await self._taken_over.wait()

    def pause(self, scope: PauseScope = WHOLE_GROUP) -> None:
        """Stop giving messages to the handler, but keep the queues. The pause survives a restart of the group."""
        self.pauses.pause(scope)
        self.consumer.pause(self._to_broker_names(scope))

    def resume(self, scope: PauseScope = WHOLE_GROUP) -> None:
        """End all pauses whose scope is inside this scope."""
        self.pauses.resume(scope)
        self.consumer.resume(self._to_broker_names(scope))

    async def change(self, options: ConsumerOptions) -> None:
        self.shutdown_timeout_seconds = options.shutdown_timeout_seconds
        await self.consumer.change(options)

    def adopt_counters(self, past: GroupSnapshot, pauses: Iterable[PauseScope]) -> None:
        """Continue the counters and the pauses of the supervisor that this supervisor replaces."""
        self._past = past
        for scope in pauses:
            self.pause(scope)

    def queue_snapshots(self) -> Iterable[QueueSnapshot]:
        """Return the snapshots of the queues. Each snapshot is made when the caller reads it from the iterable."""
        queues = self.consumer.queue_snapshots()
        return (without_namespace(queue, self._namespace) for queue in queues) if self._namespace else queues

    def snapshot(self, queues: Iterable[QueueSnapshot] = ()) -> GroupSnapshot:
        """Return the group's snapshot with these `queues`, and with the counters of all consumers so far."""
        group = self._consumer_snapshot(queues)
        if self.failure is not None:
            failure = without_namespace(self.failure, self._namespace)
            group = replace(
                group,
                state="failed",
                failure=failure,
                ready=False,
                not_ready_reason=failure,
                paused=self.pauses.is_whole_group_paused,
                pauses=self.pauses.scopes,
                problems=(),
                queues=(),
                assigned={},
            )
        return add_ended_counters(group, self._past)

    def _consumer_snapshot(self, queues: Iterable[QueueSnapshot] = ()) -> GroupSnapshot:
        """Return the consumer's snapshot with the cluster's name and `queues`. Names in it have no namespace."""
        group = without_namespace(self.consumer.snapshot(with_queues=False), self._namespace)
        return replace(group, cluster=self._cluster, queues=tuple(queues))

    def _to_broker_names(self, scope: PauseScope) -> PauseScope:
        """Return the scope of a pause with the topic's name at the brokers, which includes the namespace."""
        return scope if scope.topic is None else replace(scope, topic=wrap_namespace(scope.topic, self._namespace))

    async def _run_consumer(self) -> None:
        running = asyncio.create_task(self.consumer.run(), name=f"group {self.name}")
        stop = asyncio.create_task(self._wanted.wait(), name=f"stop of {self.name}")
        try:
            await asyncio.wait({running, stop}, return_when=asyncio.FIRST_COMPLETED)
            if running.done() and not self._wanted.is_set():
                if running.cancelled():
                    raise GroupEndedError("the group was cancelled unexpectedly")
                running.result()
                raise GroupEndedError("the group ended unexpectedly")
            self.consumer.stop()
            drain_seconds = self.shutdown_timeout_seconds + END_GRACE_SECONDS
            force = self.consumer.force_stop
            if not await wait_for_drain(running, drain_seconds, self._force_stop, force, HURRY_GRACE_SECONDS):
                self._log.error("group.abandoned", after_seconds=drain_seconds + HURRY_GRACE_SECONDS)
            elif running.exception() is not None:
                self._log.error("group.drain_failed", exc_info=running.exception())
        finally:
            stop.cancel()
            if not running.done():
                running.cancel()
                await asyncio.wait({running})

    async def _wait_and_replace(self, error: Exception, lived_seconds: float) -> None:
        while True:
            seconds = self._backoff.next_delay_seconds(lived_seconds)
            self.failure = describe(leaf_exceptions(error)[0])
            self._log.error("group.failed", error=self.failure, retry_in_seconds=seconds, exc_info=error)
            if await wait_within(self._clock, seconds, self._wanted.wait()):
                return
            try:
                consumer = self._build()
            except Exception as again:  # noqa: BLE001 such as a handler whose constructor needs an unavailable service
                error, lived_seconds = again, 0.0
            else:
                self._replace(consumer)
                return

    def _replace(self, consumer: Consumer) -> None:
        self._past = add_ended_counters(self._consumer_snapshot(), self._past)
        self.consumer, self.failure = consumer, None
        for scope in self.pauses.scopes:
            consumer.pause(self._to_broker_names(scope))
        self._log.info("group.restarted")


async def wait_for_drain(
    running: asyncio.Future[Any],
    seconds: float,
    force_stop: asyncio.Event,
    force: Callable[[], None],
    hurry_seconds: float,
) -> bool:
    """Wait until `running` has ended. After `seconds`, or at `force_stop`, call `force`, and wait `hurry_seconds` more.

    Returns whether `running` has ended.
    """
    forced = asyncio.ensure_future(force_stop.wait())
    try:
        await asyncio.wait((running, forced), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            force()
            await asyncio.wait((running,), timeout=hurry_seconds)
    finally:
        forced.cancel()
    return running.done()
