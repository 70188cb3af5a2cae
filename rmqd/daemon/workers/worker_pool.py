"""The parent of `--workers N`: starts, queries and replaces N processes that share the groups' queues.

All workers are members of the same groups, each with its own client id, so the rebalance divides the queues among them
like among any members. A worker that dies is replaced, and its counters stay in the sums.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import structlog

from rmqd.client.remoting.security import LOG_INTERVAL_SECONDS, log_refusals
from rmqd.config.model.root_model import RootConfig
from rmqd.consumer.pauses import WHOLE_GROUP, Pauses, PauseScope
from rmqd.daemon.groups.group_engine import (
    HostSnapshot,
    ProcessSnapshot,
    ReloadedGroups,
    WorkerReport,
    merge_processes,
    settings_of,
)
from rmqd.daemon.groups.group_reload import ConfigState, groups_with_changed_filters, plan_changes
from rmqd.daemon.groups.supervisor import Backoff, WorkerShare, wait_for_drain
from rmqd.errors import ConfigError
from rmqd.runtime.child_process import ChildGoneError, ChildNotUsableError, ChildProcess, describe_exit
from rmqd.runtime.clock import Clock, wait_within

HIDDEN_COMMAND: Final = "_worker"


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """The groups of a worker. The worker builds them first, and runs them after the request "run"."""

    config: RootConfig
    share: WorkerShare
    pauses: Mapping[str, tuple[PauseScope, ...]]
    imports_again: bool = False
    """See LocalGroups."""
    restarts: int = 0
    """The number of restarts with new code so far. If it differs from the pool's, the worker's imports are outdated."""


log = structlog.get_logger(__name__)


class WorkerProcess(ChildProcess[WorkerReport]):
    name = "worker"
    leads_group = False
    snapshot_type = WorkerReport
    queues: tuple[bytes, ...] = ()
    """The queues of the last report with queues."""
    log = log
    """The log, bound to the worker's number, or to the name of the worker's only group."""

    async def refresh(self, with_queues: object = True) -> WorkerReport | None:
        report = await super().refresh(with_queues)
        if report is not None and with_queues:
            self.queues = report.queues
        return report

    @property
    def last_report(self) -> WorkerReport | None:
        """The last report, with the last known queues."""
        return None if self.last_snapshot is None else replace(self.last_snapshot, queues=self.queues)

    def report_silence(self, is_silent: bool) -> None:
        if is_silent:
            self.log.warning("worker.silent", pid=self.pid, seconds=self.patience_seconds)
        else:
            self.log.info("worker.answers", pid=self.pid)

    async def apply(self, config: RootConfig) -> None:
        """Apply a configuration that a new process has accepted. If this process refuses it, kill it for a restart."""
        try:
            await self.ask("apply", config)
        except ChildGoneError:  # the process that replaces this one is built with the configuration
            return
        except ConfigError as error:
            self.log.error("worker.reload_failed", error=str(error), action="restart")  # noqa: TRY400
            self.kill()


SPAWN_SECONDS = 3.0
# A worker that has built its groups, and its specification.
_Built = tuple[WorkerProcess, WorkerSpec]
# A worker is forced to stop END_GRACE_SECONDS after its longest shutdown timeout, and killed HURRY_GRACE_SECONDS later.
END_GRACE_SECONDS = 20.0
HURRY_GRACE_SECONDS = 10.0
# How often the parent fetches the counters of every worker, even without scrapes. If a worker is killed, its counts
# since the last fetch are lost.
COUNTER_FETCH_SECONDS = 1.0


class WorkerPool:
    """A GroupHost that runs all groups in each of several worker processes."""

    def __init__(self, config: RootConfig, workers: int, clock: Clock, *, imports_again: bool = False) -> None:
        self._state = ConfigState.of(config)
        self._count = workers
        self._imports_again = imports_again
        self._clock = clock
        self._live: dict[int, WorkerProcess] = {}
        self._building: set[WorkerProcess] = set()  # killed at a stop, because a handler's import may hang
        self._past: dict[int, ProcessSnapshot] = {}
        self._pauses: dict[str, Pauses] = defaultdict(Pauses)
        self._restarts = self._code_restarts = 0
        self._stop = asyncio.Event()
        self._force_stop = asyncio.Event()
        self._changing = asyncio.Lock()
        self._all_run = asyncio.Event()
        self._logged_at = float("-inf")

    async def run(self) -> None:
        """Run the workers until `stop`. If a worker cannot build its groups, raise ConfigError before any worker
        connects.
        """
        numbers = range(1, self._count + 1)
        first = await asyncio.gather(*map(self._build, numbers), return_exceptions=True)
        refused = [one for one in first if isinstance(one, ConfigError)]
        if refused or self.stopping:
            await asyncio.gather(*(one[0].dispose() for one in first if isinstance(one, tuple)))
            if refused:
                raise refused[0]
            return
        async with asyncio.TaskGroup() as tasks:
            keeping = tasks.create_task(self._keep_counters(), name="worker counters")
            pairs = zip(numbers, first, strict=True)
            workers = [tasks.create_task(self._supervise(*pair), name=f"worker {pair[0]}") for pair in pairs]
            await asyncio.wait(workers)
            keeping.cancel()

    async def started(self, patience_seconds: float) -> None:
        """Wait until every worker runs, for at most `patience_seconds` plus the time to start a process."""
        await wait_within(self._clock, patience_seconds + SPAWN_SECONDS, self._all_run.wait())

    async def view(self, *, with_queues: bool = True) -> HostSnapshot:
        """Return the state of all workers; for a worker that does not respond, its last snapshot."""
        numbers = range(1, self._count + 1)
        answers = await asyncio.gather(*(self._report(number, with_queues=with_queues) for number in numbers))
        return HostSnapshot(
            processes=tuple([await report.unpacked() for report, _ in answers if report is not None]),
            past=tuple(self._past.values()),
            workers={"running": len(self._live), "restarting": self._count - len(self._live)},
            worker_restarts=self._restarts,
            missing=tuple(problem for _, problem in answers if problem),
            answering={number: not problem for number, (_, problem) in zip(numbers, answers, strict=True)},
        )

    async def pause(self, group: str, scope: PauseScope = WHOLE_GROUP) -> None:
        settings_of(self._state.config, group, scope)
        self._pauses[group].pause(scope)
        await self._ask_all("pause", (group, scope))

    async def resume(self, group: str, scope: PauseScope = WHOLE_GROUP) -> None:
        settings_of(self._state.config, group, scope)
        self._pauses[group].resume(scope)
        await self._ask_all("resume", (group, scope))

    async def restart(self, group: str) -> None:
        """Restart a group in all workers, after a new worker has loaded its code without an error."""
        settings_of(self._state.config, group)
        async with self._changing:
            await self._check(self._state.config.of_group(group), [])
            self._code_restarts += 1
            if refused := await self._ask_all("restart", group):
                raise ConfigError([f"worker {number}: {problem}" for number, problem in refused])

    async def apply(self, config: RootConfig) -> ReloadedGroups:
        """Check the configuration in a new worker, then apply it in all workers at the same time.

        Workers do not change one by one, because members of a group with different subscriptions lose each other's
        messages.
        """
        async with self._changing:
            if self.stopping:
                raise ConfigError(["the daemon is stopping and cannot apply a new configuration"])
            state = ConfigState.of(config)
            changes = plan_changes(self._state, state)
            await self._check(config, groups_with_changed_filters(self._state.config, config, changes))
            self._state = state
            for gone in self._pauses.keys() - config.groups.keys():
                del self._pauses[gone]
            await asyncio.gather(*(worker.apply(config) for worker in list(self._live.values())))
            self._logged_at = float("-inf")  # log a refusal of the new keys at once
            return changes

    def stop(self) -> None:
        self._stop.set()
        self._all_run.set()
        for worker in self._building:
            worker.kill()
        for worker in self._live.values():
            worker.post("stop")

    def force_stop(self) -> None:
        self._stop.set()
        self._force_stop.set()
        for worker in self._live.values():
            worker.post("force_stop")

    @property
    def stopping(self) -> bool:
        return self._stop.is_set()

    @property
    def longest_drain_seconds(self) -> float:
        groups = self._state.config.groups.values()
        return max((group.shutdown_timeout_seconds for group in groups), default=0.0)

    def _spec(self, number: int, config: RootConfig) -> WorkerSpec:
        pauses = {group: pauses.scopes for group, pauses in self._pauses.items()}
        return WorkerSpec(config, WorkerShare(number, self._count), pauses, self._imports_again, self._code_restarts)

    async def _supervise(self, number: int, built: _Built | BaseException | None) -> None:
        """Run worker `number`, and replace it when it dies. `built` is the first process, or the error of its start."""
        backoff = Backoff()
        while not self.stopping:
            started = self._clock.monotonic()
            exit_code: int | str | None
            stacks: dict[str, str] = {}
            try:
                if isinstance(built, BaseException):
                    raise built
                exit_code, stacks = await self._run_worker(number, *(built or await self._build(number)))
            except (ChildNotUsableError, ChildGoneError, ConfigError) as error:
                exit_code = str(error)
            built = None
            if self.stopping:
                break
            if exit_code is None:
                continue
            rest = backoff.next_delay_seconds(self._clock.monotonic() - started)
            self._restarts += 1
            code = exit_code if isinstance(exit_code, int) else None
            how = exit_code if code is None else describe_exit(code)
            log.error("worker.died", worker=number, exit_code=code, how=how, restart_in_seconds=rest, **stacks)
            await wait_within(self._clock, rest, self._stop.wait())

    async def _build(self, number: int, config: RootConfig | None = None) -> _Built:
        """Start a worker that builds its groups. Raises ConfigError, ChildNotUsableError, ChildGoneError."""
        spec = self._spec(number, config or self._state.config)
        worker = await WorkerProcess.begin("rmqd", HIDDEN_COMMAND)
        worker.log = log.bind(worker=number)
        self._building.add(worker)
        try:
            if self.stopping:
                worker.kill()
            await worker.ask("build", spec)
        except BaseException:
            await worker.dispose()
            raise
        finally:
            self._building.discard(worker)
        return worker, spec

    async def _run_worker(
        self, number: int, worker: WorkerProcess, spec: WorkerSpec
    ) -> tuple[int | None, dict[str, str]]:
        """Run a worker. Return its exit code, or None if it did not run; and its threads' stacks if it crashed."""
        try:
            # the worker missed these changes: while it imported its handlers, changes were sent only to live workers
            if self.stopping or spec != self._spec(number, self._state.config):
                return None, {}
            self._live[number] = worker  # set before the request, so that later changes are sent after it
            await worker.ask("run")
            if len(self._live) == self._count:
                self._all_run.set()
            log.info("worker.started", worker=number, pid=worker.pid)
            if self.stopping:
                worker.post("stop")
            await self._wait_for_end(worker)
        finally:
            self._live.pop(number, None)
            await worker.dispose()
        self._retire(number, worker)
        return worker.reading.result(), {"stacks": stacks} if (stacks := worker.thread_stacks()) else {}

    async def _wait_for_end(self, worker: WorkerProcess) -> None:
        stop = asyncio.ensure_future(self._stop.wait())
        await asyncio.wait((worker.reading, stop), return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        grace, force = self.longest_drain_seconds + END_GRACE_SECONDS, partial(worker.post, "force_stop")
        if not await wait_for_drain(worker.reading, grace, self._force_stop, force, HURRY_GRACE_SECONDS):
            log.error("worker.killed", pid=worker.pid, reason="the worker did not end in time")

    def _retire(self, number: int, worker: WorkerProcess) -> None:
        last = worker.last_snapshot
        if last is None:
            return
        past = self._past.get(number)
        self._past[number] = last.process if past is None else merge_processes([last.process], [past])

    async def _report(self, number: int, *, with_queues: bool) -> tuple[WorkerReport | None, str]:
        worker = self._live.get(number)
        if worker is None:
            return None, f"worker {number} of {self._count} is not running; it is being started"
        try:
            await worker.refresh(with_queues)
        except ChildGoneError:
            return None, f"worker {number} of {self._count} has died; it is being restarted"
        problem = f"worker {number} (pid {worker.pid}) does not respond" if worker.is_silent else ""
        return worker.last_report if with_queues else worker.last_snapshot, problem

    async def _ask_all(self, action: str, argument: object) -> list[tuple[int, str]]:
        """Send a request to every worker. Returns the numbers of the workers that refused, with the reasons.

        A worker that ended is skipped, because its replacement gets the new specification anyway.
        """

        async def ask(number: int, worker: WorkerProcess) -> tuple[int, str] | None:
            try:
                await worker.ask(action, argument)
            except ConfigError as error:
                return number, str(error)
            except ChildGoneError:
                return None
            return None

        answers: list[Any] = await asyncio.gather(*(ask(*item) for item in list(self._live.items())))
        return [answer for answer in answers if answer is not None]

    async def _check(self, config: RootConfig, filtered: list[str]) -> None:
        try:
            worker, _ = await self._build(1, config)
            try:
                await worker.ask("check", filtered)
            finally:
                await worker.dispose()
        except (ChildNotUsableError, ChildGoneError) as error:
            problem = f"a new worker could not load the configuration: {error}"
            raise ConfigError(["the daemon is stopping" if self.stopping else problem]) from error

    async def _keep_counters(self) -> None:
        while True:
            await asyncio.sleep(COUNTER_FETCH_SECONDS)
            answers = await asyncio.gather(*(self._report(number, with_queues=False) for number in list(self._live)))
            self._log_refusals(reason for report, _ in answers if report for reason in report.process.client.refused)

    def _log_refusals(self, reasons: Iterable[str]) -> None:
        """Log why brokers and name servers refused requests of workers, at most once a minute for all workers."""
        found = list(dict.fromkeys(reasons))
        if found and self._clock.monotonic() - self._logged_at >= LOG_INTERVAL_SECONDS:
            self._logged_at = self._clock.monotonic()
            log_refusals(found)
