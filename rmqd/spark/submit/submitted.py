"""The main program of a driver that spark-submit started: runs one group until it is told to stop.

The first to hear of a stop is spark-submit's Java machine, and where it ends, Spark's own hooks would stop the session
under the running micro-batch. So one of ours comes before them: it has the group end in order, and holds up the machine
meanwhile. Without spark-submit the signals come to this process, and do the same.
"""

from __future__ import annotations

import argparse
import pickle
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rmqd.errors import ConfigError, RmqdError
from rmqd.exit_codes import ExitCode
from rmqd.spark.group_order import GroupOrder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FIRST: Final = 1000  # priority of the hook; Spark's own have 40
GRACE_SECONDS: Final = 15.0  # beyond the group's shutdown_timeout


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the group; the exit code."""
    asked = _parser().parse_args(arguments)
    try:
        order = _order(asked)
    except (RmqdError, OSError) as error:
        problems = error.problems if isinstance(error, ConfigError) else [error]
        for problem in problems:
            print(f"rmqd: {problem}", file=sys.stderr)  # noqa: T201 for a person, or the cluster's log
        return ExitCode.CONFIG
    return run(order, asked.ended)


def run(order: GroupOrder, ended: Path | None = None) -> int:
    """Run it until a signal, or until the Java machine is to end; the exit code, which is left in the file `ended`."""
    from rmqd.spark.engine.foreground import run_group

    sys.path += [folder for folder in order.import_path if folder not in sys.path]
    end = End(order.settings.shutdown_timeout + GRACE_SECONDS)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end.ask)
    try:
        code = run_group(order, end.asked, end.hold_up, end.hurried)
        if ended is not None:
            ended.write_text(str(int(code)))
        return code
    finally:
        end.let_go()


class End:
    """Told when the group is to end, and when it has."""

    def __init__(self, patience_seconds: float) -> None:
        self.asked = threading.Event()
        self.hurried = threading.Event()
        self._done = threading.Event()
        self._patience_seconds = patience_seconds
        self._hooks: Any = None
        self._hook: Any = None

    def ask(self, *_: object) -> None:
        """As a handler of signals; a second one is in a hurry."""
        if self.asked.is_set():
            self.hurried.set()
        self.asked.set()

    def hold_up(self, spark: SparkSession) -> None:
        """Have the session's Java machine ask, and wait for the group's end, before it ends itself."""
        java_gateway: Any = import_module("pyspark.java_gateway")
        gateway: Any = spark.sparkContext._gateway
        java_gateway.ensure_callback_server_started(gateway)
        self._hooks = gateway.jvm.org.apache.hadoop.util.ShutdownHookManager.get()
        self._hook = gateway.jvm.java.lang.Thread(_Runnable(self))  # an object of Java's, which it knows again
        seconds = int(self._patience_seconds)
        self._hooks.addShutdownHook(self._hook, FIRST, seconds, gateway.jvm.java.util.concurrent.TimeUnit.SECONDS)

    def let_go(self) -> None:
        """The group has ended: the Java machine may, without asking a process that is gone by then."""
        self._done.set()
        if self._hooks is not None:
            with suppress(Exception):  # it is ending already, or has ended
                self._hooks.removeShutdownHook(self._hook)

    def wait(self) -> None:
        """Ask, and wait; not for ever."""
        self.asked.set()
        self._done.wait(self._patience_seconds)


class _Runnable:
    class Java:
        """Names the Java interface that py4j has this class implement."""

        implements = ("java.lang.Runnable",)

    def __init__(self, end: End) -> None:
        self._end = end

    def run(self) -> None:
        """Called by the Java machine when it is about to end."""
        self._end.wait()


def _order(asked: argparse.Namespace) -> GroupOrder:
    """Raises OSError for a file that cannot be read, ConfigError for what it has wrong."""
    if asked.order is not None:
        order = pickle.loads(asked.order.read_bytes())
        assert isinstance(order, GroupOrder)
        return order
    from rmqd.spark.engine.ordering import order_of

    return order_of(asked.config, asked.group, tuple(asked.set))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(MAIN_NAME, description="Run one group of rmqd in a driver of Spark's.")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--order", type=Path, help="the group as rmqd spark submit wrote it down")
    what.add_argument("--config", type=Path, help="the configuration's file or folder, with --group")
    parser.add_argument("--group", default="", help="the group of --config; default: the only one on Spark")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as rmqd run")
    parser.add_argument("--ended", type=Path, help="where the exit code is left once the group has ended in order")
    return parser


MAIN_NAME: Final = "rmqd_group.py"
