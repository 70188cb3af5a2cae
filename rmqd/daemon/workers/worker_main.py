"""The main program of a worker process, which runs the groups that its parent specifies.

SIGTERM is the only signal that it handles. It drains and ends when the parent ends, because that closes the channel.
"""

from __future__ import annotations

from rmqd.runtime import structlog_without_rich  # noqa: F401  before structlog, see there

# isort: split

import asyncio
import signal
import socket
import sys

import structlog

from rmqd.config.model.root_model import RootConfig
from rmqd.consumer.pauses import PauseScope
from rmqd.daemon.groups.group_engine import local_engine
from rmqd.daemon.groups.local_groups import LocalGroups
from rmqd.daemon.groups.supervisor import LoopMonitor, WorkerShare
from rmqd.errors import ConfigError, ExitCode
from rmqd.plugins.child_process import BuildSpec, ChildAnswer, ChildChannel, Request
from rmqd.runtime.clock import SystemClock
from rmqd.runtime.event_loop import collect_as_memory_grows, run_in_loop, settle_garbage_collection
from rmqd.runtime.logs import log_setup as logs

log = structlog.get_logger(__name__)


def run_worker(descriptor: int) -> int:
    """Serve the parent over the inherited socket. Returns the exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    return run_in_loop(_serve(socket.socket(fileno=descriptor)))


async def _serve(sock: socket.socket) -> int:
    channel = await ChildChannel.over(sock)
    first = await channel.receive()
    if not isinstance(first, Request) or not isinstance(first.argument, BuildSpec):
        return ExitCode.USAGE
    monitor = LoopMonitor(SystemClock())
    try:
        groups = await _build(first.argument, monitor)
    except ConfigError as error:
        channel.post(ChildAnswer(first.number, problems=tuple(str(problem) for problem in error.problems)))
        await channel.close()
        return ExitCode.CONFIG
    channel.post(ChildAnswer(first.number))
    second = await channel.receive()
    if isinstance(second, Request) and second.action == "check":
        await _check(second, channel, groups)
        return ExitCode.OK
    if not isinstance(second, Request) or second.action != "run":
        return ExitCode.OK  # the parent only wanted a check, or has ended
    channel.post(ChildAnswer(second.number))
    return await WorkerMain(first.argument.worker, channel, groups, monitor).run()


async def _check(request: Request, channel: ChildChannel, groups: LocalGroups) -> None:
    try:
        await groups.check_filters(request.argument)
        channel.post(ChildAnswer(request.number))
    except ConfigError as error:
        channel.post(ChildAnswer(request.number, problems=tuple(str(problem) for problem in error.problems)))
    await channel.close()


async def _build(spec: BuildSpec, monitor: LoopMonitor) -> LocalGroups:
    sys.path[:] = spec.import_path
    _configure_logging(spec.config, spec.worker)
    clock = SystemClock()
    share = WorkerShare(spec.worker, spec.workers)
    groups = LocalGroups(spec.config, local_engine(spec.config, clock), clock, monitor, share)
    for group in spec.pauses.keys() & set(groups.names):
        for scope in spec.pauses[group]:
            await groups.pause(group, scope)
    return groups


class WorkerMain:
    """A running worker: its groups, and its responses to the parent's requests."""

    def __init__(self, number: int, channel: ChildChannel, groups: LocalGroups, monitor: LoopMonitor) -> None:
        self._number = number
        self._channel = channel
        self._groups = groups
        self._monitor = monitor

    async def run(self) -> int:
        """Run until the parent requests a stop, or has ended."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._groups.stop)
        try:
            async with asyncio.TaskGroup() as tasks:
                running = tasks.create_task(self._groups.run(), name="groups")
                helpers = [
                    tasks.create_task(self._monitor.run(), name="loop monitor"),
                    tasks.create_task(collect_as_memory_grows(), name="garbage"),
                    tasks.create_task(self._listen(tasks), name="requests"),
                    tasks.create_task(logs.flush_repeats(), name="log flush"),
                ]
                settle_garbage_collection()
                await asyncio.wait({running})
                for helper in helpers:
                    helper.cancel()
        except Exception as error:
            log.critical("worker.failed", exc_info=error)
            return ExitCode.FAILURE
        finally:
            self._channel.post(ChildAnswer(0, self._groups.snapshot()))
            await self._channel.close()
        return ExitCode.OK

    async def _listen(self, tasks: asyncio.TaskGroup) -> None:
        while (request := await self._channel.receive()) is not None:
            assert isinstance(request, Request)
            # One task for each request: a reload waits for drains, and must not delay a snapshot.
            tasks.create_task(self._answer(request), name=f"request {request.action}")
        if not self._groups.stopping:
            log.warning("worker.parent_gone", action="drain")
        self._groups.stop()

    async def _answer(self, request: Request) -> None:
        value: object = None
        try:
            match request.action:
                case "snapshot":
                    value = self._groups.snapshot()
                case "pause" | "resume":
                    await self._switch(request.action, *request.argument)
                case "apply":
                    value = await self._groups.apply(request.argument)
                    _configure_logging(request.argument, self._number)
                case "stop":
                    self._groups.stop()
                case "force_stop":
                    self._groups.force_stop()
                case "build" | "run" | "check":
                    log.error("worker.request_repeated", action=request.action)
        except ConfigError as error:
            problems = tuple(str(problem) for problem in error.problems)
            self._channel.post(ChildAnswer(request.number, problems=problems))
        else:
            self._channel.post(ChildAnswer(request.number, value))

    async def _switch(self, action: str, group: str, scope: PauseScope) -> None:
        if group in self._groups.names:  # other groups run in other workers
            await (self._groups.pause if action == "pause" else self._groups.resume)(group, scope)


def _configure_logging(config: RootConfig, worker: int) -> None:
    logs.configure_logging(config.log.level, config.log.format, worker=worker, namespaces=config.namespaces)
