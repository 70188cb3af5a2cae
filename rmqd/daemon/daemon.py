"""The daemon process from start to exit: read the configuration, open the port, run the groups, drain.

The first message should be handled soon after the start. So modules that handling does not need (the HTTP server,
Prometheus) are imported at the first HTTP connection.
"""

from __future__ import annotations

from rmqd.runtime import structlog_without_rich  # noqa: F401  before structlog, see there

# isort: split

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import structlog

from rmqd.config.load import configure_log
from rmqd.config.model.root_model import RootConfig
from rmqd.config.reading.config_source import exposed_secrets
from rmqd.consumer.pauses import WHOLE_GROUP, PauseScope
from rmqd.daemon.group_history import HistoryRecorder
from rmqd.daemon.groups.group_engine import GroupHost, ReloadedGroups, UnknownGroupError, local_engine
from rmqd.daemon.groups.group_reload import ReloadReport, config_hash, refused_changes
from rmqd.daemon.groups.local_groups import LocalGroups
from rmqd.daemon.groups.supervisor import LoopMonitor, readiness
from rmqd.daemon.http.http_access import AccessPolicy
from rmqd.daemon.http.http_endpoint import HttpEndpoint, ListenError, listen_on
from rmqd.daemon.systemd import ServiceManager, prepare_state_dir, refuse_second_process
from rmqd.errors import ConfigError, ExitCode, InUseError
from rmqd.handler_api.batch import leaf_exceptions
from rmqd.plugins.model_options import load_runnable
from rmqd.runtime.clock import Clock, SystemClock
from rmqd.runtime.event_loop import collect_as_memory_grows, handle_signals, run_in_loop
from rmqd.runtime.files import POLL_SECONDS
from rmqd.runtime.lazy_imports import import_lazily
from rmqd.runtime.logs import log_setup as logs
from rmqd.runtime.own_threads import call_in_thread
from rmqd.version import __version__

with import_lazily():
    from rmqd.daemon import handler_files
    from rmqd.daemon.http import daemon_status
    from rmqd.daemon.workers import worker_pool

log = structlog.get_logger(__name__)

START_PATIENCE_SECONDS = 0.5
HTTP_CLOSE_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class RunOptions:
    config: Path | None = None
    overrides: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    """The groups to run; empty for all."""
    workers: int = 1
    reload: bool = False
    """Whether a group restarts when a file of its handler changes."""


def run_daemon(options: RunOptions) -> int:
    """Run the daemon until a signal stops it. Returns the exit code (docs/operating.md)."""
    try:
        config, access = read_config(options)
        clock = SystemClock()
        configure_log(config)
        prepare_state_dir(config)
        refuse_second_process(config)
        monitor = LoopMonitor(clock)
        host = build_host(config, options, clock, monitor)
        sock = listen_on(config.http.listen)
    except ConfigError as error:
        return _refuse(error)
    except ListenError as error:
        log.error("http.listen_failed", error=str(error))  # noqa: TRY400 the text says it all
        return ExitCode.FAILURE
    except InUseError as error:
        log.error("state_dir.in_use", error=str(error))  # noqa: TRY400 as above
        return ExitCode.FAILURE
    return run_in_loop(Daemon(config, access, options, host, monitor, clock, sock).run())


def _refuse(error: ConfigError) -> int:
    for problem in error.problems:
        print(problem, file=sys.stderr)  # noqa: T201 configuration errors are output for the user, not log lines
    return ExitCode.CONFIG


def build_host(config: RootConfig, options: RunOptions, clock: Clock, monitor: LoopMonitor) -> GroupHost:
    """Build the groups of `config`, in this process or in a pool of workers. Raises ConfigError."""
    if options.workers > 1:
        return worker_pool.WorkerPool(config, options.workers, clock, imports_again=options.reload)
    return LocalGroups(config, local_engine(config, clock), clock, monitor, imports_again=options.reload)


def read_config(options: RunOptions) -> tuple[RootConfig, AccessPolicy]:
    """Return the configuration with `--set` and `--group` applied, and the HTTP access rules. Raises ConfigError."""
    config = load_runnable(options.config, options.overrides, groups=options.groups)
    if options.groups:
        unknown = [group for group in options.groups if group not in config.groups]
        if unknown:
            known = ", ".join(config.groups) or "none"
            raise ConfigError([f"--group {group}: unknown group; expected one of {known}" for group in unknown])
        config = config.model_copy(update={"groups": {name: config.groups[name] for name in options.groups}})
    return config, AccessPolicy(config.http.read_token(), frozenset(map(str.lower, config.http.allowed_hosts)))


class Daemon:
    """The running daemon: its groups (in this process or in workers), its HTTP endpoint, reloads and signals."""

    def __init__(
        self,
        config: RootConfig,
        access: AccessPolicy,
        options: RunOptions,
        host: GroupHost,
        monitor: LoopMonitor,
        clock: Clock,
        sock: socket.socket,
    ) -> None:
        self.host = host
        self.monitor = monitor
        self.access = access
        self.config = config
        self.held: dict[str, str] = {}
        self.recorder = HistoryRecorder(clock, host.view)
        self._options = options
        self._files: handler_files.HandlerFiles | None = None
        self._clock = clock
        self._http = HttpEndpoint(sock)
        self._manager = ServiceManager()
        self._reloading = asyncio.Lock()
        self._reloads: set[asyncio.Task[ReloadReport]] = set()
        self._started_at = self._reload_time = clock.wall()
        self._reload_ok = True
        self._stop_signals = 0
        self._exit_code: int = ExitCode.OK
        self._tasks: asyncio.TaskGroup | None = None

    async def run(self) -> int:
        """Run the groups until a signal, then drain. Returns the exit code."""
        began = self._clock.monotonic()
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                with handle_signals(self._on_stop, self._on_reload):
                    await self._serve(tasks)
        except ExceptionGroup as error:
            # Workers build their groups before any of them connects, so a ConfigError still prevents the start.
            refused, _ = error.split(ConfigError)
            if refused is not None:
                first = leaf_exceptions(refused)[0]
                assert isinstance(first, ConfigError)
                return _refuse(first)
            log.critical("daemon.failed", exc_info=error)
            return ExitCode.FAILURE
        except asyncio.CancelledError:  # rmqd itself never cancels this task
            log.critical("daemon.failed", error="a handler, or a module that it imports, cancelled the daemon's tasks")
            return ExitCode.FAILURE
        finally:
            self._http.close()
        log.info("daemon.stopped", seconds=round(self._clock.monotonic() - began, 1), exit_code=int(self._exit_code))
        return self._exit_code

    async def reload(self) -> ReloadReport:
        """Read the configuration again and apply it. If it has problems, report them and keep the old configuration."""
        async with self._reloading:
            self._manager.report_reloading(self._clock.monotonic())
            report = await self._try_reload(partial(read_config, self._options))
            self._reload_ok = report.successful
            if report.successful:
                self._reload_time = self._clock.wall()
                log.info("config.reloaded", **report.as_document())
            else:
                log.error("config.reload_refused", problems=list(report.problems))
            self._manager.report_ready(self._status_line())
            return report

    async def change(self, edit: Callable[[RootConfig], RootConfig]) -> ReloadReport:
        async with self._reloading:
            config = edit(self.config)
            return await self._try_reload(lambda: (config, self.access))

    async def restart(self, group: str, action: str = "continue the old code", **details: object) -> ReloadReport:
        """Load a group's code again. If loading fails, `action` and `details` are logged. Raises UnknownGroupError."""
        async with self._reloading:
            try:
                await self.host.restart(group)
            except ConfigError as error:
                problems = tuple(str(problem) for problem in error.problems)
                log.warning("handler.reload_refused", group=group, problems=list(problems), action=action, **details)
                return ReloadReport(problems=problems, refusal="the new code cannot be loaded; the old code continues")
            await self._release(group)
            return ReloadReport(ReloadedGroups(restarted=(group,)))

    async def _release(self, group: str) -> None:
        """Resume a group that was paused because its code could not be loaded. An operator's pauses remain."""
        if self.held.pop(group, None) is not None:
            scopes = {scope for scope in await self._pauses(group) if scope != WHOLE_GROUP}
            await self.host.resume(group)
            for scope in scopes:
                await self.host.pause(group, scope)

    async def _restart_edited(self) -> None:
        """Restart each group whose handler was edited. While the code cannot be loaded, the group is paused."""
        while True:
            await self._clock.sleep(POLL_SECONDS)
            async with self._reloading:  # an applied configuration replaces the watch
                assert self._files is not None
                edited = await call_in_thread(self._files.changes)
            for group, changed in edited.items():
                names = [str(file) for file in changed]
                with contextlib.suppress(UnknownGroupError):  # a reload has removed the group
                    report = await self.restart(group, "pause", files=names)
                    if report.successful:
                        log.info("handler.reloaded", group=group, files=names)
                    elif WHOLE_GROUP not in await self._pauses(group):
                        self.held[group] = "; ".join(report.problems)
                        await self.host.pause(group)

    async def _pauses(self, group: str) -> set[PauseScope]:
        processes = (await self.host.view(with_queues=False)).processes
        return {scope for process in processes for one in process.groups if one.name == group for scope in one.pauses}

    def about(self) -> daemon_status.DaemonInfo:
        return daemon_status.DaemonInfo(
            host=socket.gethostname(),
            pid=os.getpid(),
            started_at=self._started_at,
            now=self._clock.wall(),
            config_hash=config_hash(self.config),
            reloaded_at=self._reload_time,
            reload_successful=self._reload_ok,
            token_required=bool(self.access.token),
            problems=tuple(
                f"group {group} is paused until its changed code can be loaded: {problem}"
                for group, problem in self.held.items()
            ),
        )

    async def _serve(self, tasks: asyncio.TaskGroup) -> None:
        log.info(
            "daemon.starting",
            version=__version__,
            groups=list(self.config.groups),
            http=self._http.address,
            config_hash=config_hash(self.config),
            workers=self._options.workers,
        )
        self._http.warn_if_exposed(self.access.token)
        groups = tasks.create_task(self.host.run(), name="groups")
        background = [
            tasks.create_task(self.monitor.run(), name="loop monitor"),
            tasks.create_task(collect_as_memory_grows(), name="garbage"),
            tasks.create_task(self._manager.keep_watchdog_quiet(), name="watchdog"),
            tasks.create_task(logs.flush_repeats(), name="log flush"),
            tasks.create_task(self.recorder.run(), name="history"),
        ]
        if self._options.reload:
            async with self._reloading:
                self._files = await call_in_thread(partial(handler_files.HandlerFiles, self.config))
            background.append(tasks.create_task(self._restart_edited(), name="edited handlers"))
        await self.host.started(START_PATIENCE_SECONDS)
        http = tasks.create_task(self._http.serve(self), name="http") if not self.host.stopping else None
        await self._report_start()
        await asyncio.wait({groups})
        if http is not None:
            self._http.stop()
            await asyncio.wait({http}, timeout=HTTP_CLOSE_SECONDS)
            http.cancel()
        for task in (*background, *self._reloads):  # the groups have ended, so a reload would have no effect
            task.cancel()

    async def _report_start(self) -> None:
        if self.host.stopping:
            return
        for check in readiness(await self.host.view(with_queues=False), stopping=False):
            if not check.ok:
                log.warning("daemon.not_ready", check=check.name, reason=check.reason)
        self._manager.report_ready(self._status_line())
        log.info("daemon.started", http=self._http.address)
        for exposed in await asyncio.to_thread(exposed_secrets, self._options.config):
            log.warning("config.exposed", problem=str(exposed))

    async def _try_reload(self, read: Callable[[], tuple[RootConfig, AccessPolicy]]) -> ReloadReport:
        try:
            config, access = await call_in_thread(read)
            refused = refused_changes(self.config, config)
            if refused:
                return ReloadReport(problems=refused)
            await call_in_thread(partial(prepare_state_dir, config))
            files = self._files and await call_in_thread(partial(handler_files.HandlerFiles, config, self._files))
            changes = await self.host.apply(config)
        except ConfigError as error:
            return ReloadReport(problems=tuple(str(problem) for problem in error.problems))
        except Exception as error:  # a bug in rmqd or in a handler's constructor must not end the running groups
            log.exception("config.reload_failed")
            return ReloadReport(problems=(f"{type(error).__name__}: {error}",))
        self.config, self.access, self._files = config, access, files
        for group in self.held.keys() - (config.groups.keys() - set(changes.started)):
            del self.held[group]
        for group in changes.restarted:  # these groups have just loaded the current code
            await self._release(group)
        configure_log(config)
        return ReloadReport(changes)

    def _status_line(self) -> str:
        count = len(self.config.groups)
        return f"{count} group{'s' if count != 1 else ''}, http on {self._http.address}"

    def _on_reload(self) -> None:
        assert self._tasks is not None
        log.info("signal.received", signal="SIGHUP", action="reload")
        task = self._tasks.create_task(self.reload(), name="reload")
        self._reloads.add(task)
        task.add_done_callback(self._reloads.discard)

    def _on_stop(self, number: signal.Signals) -> None:
        self._stop_signals += 1
        if self._stop_signals == 1:
            drain_seconds = self.host.longest_drain_seconds
            log.info("signal.received", signal=number.name, action="drain", drain_seconds=drain_seconds)
            # The stop itself (commits, unregistering, HTTP) needs some seconds more than the longest drain.
            self._manager.report_stopping(drain_seconds + 15)
            self.host.stop()
            return
        log.warning("signal.received", signal=number.name, action="hurry")
        self._exit_code = 128 + number
        self.host.force_stop()
