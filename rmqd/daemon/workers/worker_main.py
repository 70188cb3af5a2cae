"""The main program of a worker process, which runs the groups that its parent specifies.

After SIGTERM, or when the parent has ended, the process drains its groups and ends. It ignores SIGINT and SIGHUP.
"""

from __future__ import annotations

from rmqd.runtime import structlog_without_rich  # noqa: F401  before structlog, see there

# isort: split

import asyncio
import signal
from collections.abc import Awaitable
from dataclasses import dataclass

import structlog

from rmqd.config.load import configure_log
from rmqd.daemon.groups.group_engine import WorkerReport, local_engine
from rmqd.daemon.groups.local_groups import LocalGroups
from rmqd.daemon.groups.supervisor import LoopMonitor
from rmqd.daemon.workers.worker_pool import WorkerSpec
from rmqd.errors import ConfigError, ExitCode
from rmqd.runtime.child_process import ChildAnswer, ChildChannel, ChildRequest
from rmqd.runtime.clock import SystemClock
from rmqd.runtime.event_loop import collect_as_memory_grows, enable_gc_after_start, run_in_loop
from rmqd.runtime.logs import log_setup as logs

log = structlog.get_logger(__name__)


def run_worker(descriptor: int) -> int:
    """Run the worker: serve its parent's requests over the inherited socket. Returns the exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    return run_in_loop(_serve(descriptor))


async def _serve(descriptor: int) -> int:
    channel, first = await ChildChannel.to_parent(descriptor)
    if first is None:
        return ExitCode.USAGE
    spec: WorkerSpec = first.argument
    monitor = LoopMonitor(SystemClock())
    try:
        groups = await _build(spec, monitor)
    except ConfigError as error:
        channel.refuse(first, error)
        await channel.close()
        return ExitCode.CONFIG
    channel.answer(first)
    second = await channel.receive()
    if second is None:  # the parent has ended
        return ExitCode.OK
    if second.action == "check":
        await _answer(channel, second, groups.check_filters(second.argument))
        await channel.close()
        return ExitCode.OK
    for scope in second.argument or ():  # the pauses of a restarted group, which is this process's only group
        await groups.pause(groups.names[0], scope)
    channel.answer(second)
    return await WorkerMain(spec.share.worker, channel, groups, monitor).run()


async def _answer(channel: ChildChannel, request: ChildRequest, work: Awaitable[object]) -> None:
    try:
        channel.answer(request, await work)
    except ConfigError as error:
        channel.refuse(request, error)


async def _build(spec: WorkerSpec, monitor: LoopMonitor) -> LocalGroups:
    configure_log(spec.config, worker=spec.share.worker)
    clock = SystemClock()
    engine, again = local_engine(spec.config, clock), spec.imports_again
    groups = LocalGroups(spec.config, engine, clock, monitor, spec.share, imports_again=again)
    for group in spec.pauses.keys() & set(groups.names):
        for scope in spec.pauses[group]:
            await groups.pause(group, scope)
    return groups


@dataclass(frozen=True, slots=True)
class WorkerMain:
    """A running worker: its groups, and its responses to the parent's requests."""

    _number: int | None
    _channel: ChildChannel
    _groups: LocalGroups
    _monitor: LoopMonitor

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
                enable_gc_after_start()
                await asyncio.wait({running})
                for helper in helpers:
                    helper.cancel()
        except Exception as error:
            log.critical("worker.failed", exc_info=error)
            return ExitCode.FAILURE
        finally:
            self._channel.post(ChildAnswer(0, WorkerReport(self._groups.snapshot())))
            await self._channel.close()
        return ExitCode.OK

    async def _listen(self, tasks: asyncio.TaskGroup) -> None:
        while (request := await self._channel.receive()) is not None:
            # One task for each request: a reload waits for drains, and must not delay a snapshot.
            work = _answer(self._channel, request, self._result(request))
            tasks.create_task(work, name=f"request {request.action}")
        if not self._groups.stopping:
            log.warning("worker.parent_gone", action="drain")
        self._groups.stop()

    async def _result(self, request: ChildRequest) -> object:
        match request.action:
            case "snapshot":
                view = await self._groups.view(with_queues=request.argument)
                return await WorkerReport.of(view.processes[0])
            case "pause" | "resume":
                group, scope = request.argument
                if group in self._groups.names:  # other groups run in other workers
                    await (self._groups.pause if request.action == "pause" else self._groups.resume)(group, scope)
            case "restart":
                if request.argument in self._groups.names:  # other groups run in other workers
                    await self._groups.restart(request.argument)
            case "apply":
                changes = await self._groups.apply(request.argument)
                configure_log(request.argument, worker=self._number)
                return changes
            case "stop":
                self._groups.stop()
            case "force_stop":
                self._groups.force_stop()
        return None
