"""The main program of a driver that spark-submit started. It runs one group until it is stopped.

spark-submit's JVM receives a stop signal first, and Spark's shutdown hooks would stop the session during the running
micro-batch. So rmqd's hook runs before Spark's hooks: it stops the group gracefully, and delays the JVM's exit until
the group has stopped. Without spark-submit, this process receives the signals, and stops the group gracefully.
"""

from __future__ import annotations

import argparse
import pickle
import signal
import sys
import threading
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

from rmqd.errors import ConfigError, ExitCode, RmqdError
from rmqd.spark.engine.driver import run_group
from rmqd.spark.session.group_spec import GroupSpec, load_spec

SHUTDOWN_HOOK_PRIORITY: Final = 1000  # Hadoop runs hooks with a higher priority first; Spark's hooks have 40
SHUTDOWN_GRACE_SECONDS: Final = 15.0  # how long the JVM waits beyond the group's shutdown_timeout


def main() -> int:
    asked = _parser().parse_args()
    try:
        spec = _spec(asked)
    except (RmqdError, OSError) as error:
        for problem in error.problems if isinstance(error, ConfigError) else [error]:
            print(f"rmqd: {problem}", file=sys.stderr)  # noqa: T201 for a user, or the cluster's log
        return ExitCode.CONFIG
    return _run(spec, asked.ended)


def _run(spec: GroupSpec, ended: Path | None) -> int:
    """Run the group until a signal or the JVM's shutdown. Return the exit code, and write it to the file `ended`."""
    sys.path += [folder for folder in spec.import_path if folder not in sys.path]
    end = GroupEndSignal(spec.settings.shutdown_timeout_seconds + SHUTDOWN_GRACE_SECONDS)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end.on_signal)
    try:
        code = run_group(spec, end.stop_requested, end.stop_forced, end.add_shutdown_hook)
        if ended is not None:
            ended.write_text(str(int(code)))
        return code
    finally:
        end.remove_shutdown_hook()


class GroupEndSignal:
    """The requests to stop the group (`asked`, `forced`), and the JVM's shutdown hook that waits for the stop."""

    class Java:
        """Declares for py4j that GroupEndSignal implements a Java interface; the JVM calls its method `run`."""

        implements = ("java.lang.Runnable",)

    def __init__(self, patience_seconds: float) -> None:
        self.stop_requested = threading.Event()
        self.stop_forced = threading.Event()
        self._done = threading.Event()
        self._patience_seconds = patience_seconds
        self._hooks: Any = None
        self._hook: Any = None

    def on_signal(self, *_: object) -> None:
        """Called as a handler of stop signals. The first signal requests a graceful stop; a second signal forces it."""
        if self.stop_requested.is_set():
            self.stop_forced.set()
        self.stop_requested.set()

    def add_shutdown_hook(self, spark: SparkSession) -> None:
        """Make the session's JVM call `run` before it exits."""
        java_gateway: Any = import_module("pyspark.java_gateway")
        gateway: Any = spark.sparkContext._gateway
        java_gateway.ensure_callback_server_started(gateway)
        self._hooks = gateway.jvm.org.apache.hadoop.util.ShutdownHookManager.get()
        self._hook = gateway.jvm.java.lang.Thread(self)  # kept, because removeShutdownHook needs the same Java object
        seconds = int(self._patience_seconds)
        self._hooks.addShutdownHook(
            self._hook, SHUTDOWN_HOOK_PRIORITY, seconds, gateway.jvm.java.util.concurrent.TimeUnit.SECONDS
        )

    def remove_shutdown_hook(self) -> None:
        """Remove the hook after the group has stopped, so that the JVM does not call a process that has exited."""
        self._done.set()
        if self._hooks is not None:
            with suppress(Exception):  # fails if the JVM is exiting or has exited
                self._hooks.removeShutdownHook(self._hook)

    def run(self) -> None:
        """Called by the JVM before it exits, to request a graceful stop and wait for it, for a limited time."""
        self.stop_requested.set()
        self._done.wait(self._patience_seconds)


def _spec(asked: argparse.Namespace) -> GroupSpec:
    """Load the group's specification from `--order` or `--config`. Raises OSError or ConfigError."""
    if asked.order is not None:
        spec = pickle.loads(asked.order.read_bytes())
        assert isinstance(spec, GroupSpec)
        return spec
    return load_spec(asked.config, asked.group, tuple(asked.set))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(MAIN_FILE, description="Run one group of rmqd in a Spark driver.")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--order", type=Path, help="the file of the group that rmqd spark submit wrote")
    what.add_argument("--config", type=Path, help="the configuration file or folder; use with --group")
    parser.add_argument("--group", default="", help="the group in --config; default: the only one on Spark")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="the same as for rmqd run")
    parser.add_argument(
        "--ended", type=Path, help="file for the exit code, written when the group has ended gracefully"
    )
    return parser


MAIN_FILE: Final = "rmqd_group.py"
