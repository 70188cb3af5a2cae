"""`python -m rmqd.spark.driver DESCRIPTOR`: the process that runs Spark for one group of a daemon.

It serves `rmqd run` like a worker process: it receives one specification through the inherited socket, reports the
group's state on request, and drains when the daemon asks for it or ends. SIGTERM also drains it; other signals are left
to the daemon.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Iterable
from typing import Any

# Import first: it keeps structlog from importing rich, see there.
from rmqd.process.logs import logs

# isort: split

import structlog

from rmqd.clock import SystemClock
from rmqd.errors import ConfigError, RmqdError
from rmqd.exit_codes import ExitCode
from rmqd.process.channel import BuildOrder, ChildAnswer, ChildChannel, Request
from rmqd.process.loop import leave, run_in_loop
from rmqd.spark import check_versions
from rmqd.spark.engine.group_run import GroupRun
from rmqd.spark.group_order import GroupOrder
from rmqd.spark.spark_output import catch_output, settle_output

log = structlog.get_logger(__name__)


def main(descriptor: int) -> int:
    """Serve the daemon at the other end of the inherited socket. Return the exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        return run_in_loop(_serve(socket.socket(fileno=descriptor)))
    finally:
        settle_output()


async def _serve(sock: socket.socket) -> int:
    channel = await ChildChannel.over(sock)
    first = await channel.receive()
    if not isinstance(first, Request) or not isinstance(first.argument, BuildOrder):
        return ExitCode.USAGE
    try:
        run = _build(first.argument)
    except RmqdError as error:
        problems = error.problems if isinstance(error, ConfigError) else [error]
        channel.post(ChildAnswer(first.number, problems=tuple(str(problem) for problem in problems)))
        await channel.close()
        return ExitCode.CONFIG
    channel.post(ChildAnswer(first.number))
    return await Driver(channel, run).run()


def _build(build: BuildOrder) -> GroupRun:
    """Create the group's run. Raises RmqdError."""
    sys.path[:] = build.import_path
    (name,) = build.config.groups
    catch_output(build.config.log.format)
    config = build.config
    logs.configure_logging(config.log.level, config.log.format, namespaces=config.namespaces)
    check_versions()
    from rmqd.spark.engine.spark_parts import SparkParts

    order = GroupOrder(name, build.config, build.import_path)
    share_import_path(build.import_path)
    clock = SystemClock()
    run = GroupRun(order, SparkParts(order, clock), clock)
    for scope in build.pauses.get(name, ()):
        run.pause(scope)
    return run


def share_import_path(path: Iterable[str]) -> None:
    """Give local Python processes of Spark this process's path, to find for example a handler in the working folder."""
    os.environ["PYTHONPATH"] = os.pathsep.join(entry or os.getcwd() for entry in path)


class Driver:
    """Runs a group, and answers the daemon's requests."""

    def __init__(self, channel: ChildChannel, run: GroupRun) -> None:
        self._channel = channel
        self._run = run

    async def run(self) -> int:
        """Run the group to its end. Return the exit code."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._run.stop)
        helpers = [
            asyncio.create_task(self._listen(), name="requests"),
            asyncio.create_task(logs.flush_repeats(), name="log flush"),
        ]
        try:
            await self._run.run()
        except Exception as error:
            # the daemon reports that the group failed; a bug would be lost without its traceback
            if not isinstance(error, RmqdError):
                log.exception("spark.driver_failed")
            return ExitCode.FAILURE
        finally:
            self._channel.post(ChildAnswer(0, self._run.snapshot()))
            for helper in helpers:
                helper.cancel()
            await asyncio.wait(helpers)
            await self._channel.close()
        return ExitCode.OK

    async def _listen(self) -> None:
        while (request := await self._channel.receive()) is not None:
            assert isinstance(request, Request)
            self._channel.post(ChildAnswer(request.number, self._answer(request)))
        log.warning("spark.parent_gone", action="drain")
        self._run.stop()

    def _answer(self, request: Request) -> Any:
        match request.action:
            case "snapshot":
                return self._run.snapshot()
            case "pause":
                self._run.pause(request.argument)
            case "resume":
                self._run.resume(request.argument)
            case "stop":
                self._run.stop(request.argument)
            case "hurry":
                self._run.hurry()
            case _:
                log.error("spark.request_unknown", action=request.action)
        return None


if __name__ == "__main__":
    leave(main(int(sys.argv[1])))
