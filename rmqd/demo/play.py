"""One run of the demo: the group's configuration, the broker, the producer and group, and an orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import structlog

from rmqd.broker.embedded import EmbeddedOptions, embedded_rocketmq
from rmqd.broker.settings import BrokerSettings
from rmqd.clock import SystemClock
from rmqd.config.load import load_config
from rmqd.config.model.root import ClientConfig, RootConfig
from rmqd.demo.options import DemoOptions, Ending
from rmqd.demo.reports import install_reporter, reports_received
from rmqd.demo.screen import Screen
from rmqd.demo.stage import Stage
from rmqd.demo.summary import Summary
from rmqd.demo.view import Setting
from rmqd.errors import ConfigError
from rmqd.exit_codes import ExitCode
from rmqd.plugins.runnable import load_runnable
from rmqd.process.loop import run_in_loop, settle_garbage_collection
from rmqd.process.signals import signals_handled
from rmqd.wire.topics import SUBSCRIPTION_ALL

log = structlog.get_logger(__name__)

SAMPLE: Final = Path(__file__).parent / "rmqd.yaml"
PLACEHOLDER: Final = "127.0.0.1:9876"  # replaced when the broker runs; configuration files need no address
QUEUES: Final = 4
DELAY_LEVELS: Final = "1s 1s 2s 3s 4s 5s 6s 8s 10s 12s 15s 20s 25s 30s 40s 50s 1m 2m"
STORE_BYTES: Final = str(32 * 1024 * 1024)  # about half an hour of orders, because a demo may be left running
DELAYS_TOLD: Final = "2s, 3s, 4s"  # a retry begins at the third level
USUAL_DELAYS: Final = "10s, 30s, 1m"
CATCH_UP_SECONDS: Final = 15.0
SPARK_CATCH_UP_SECONDS: Final = 60.0  # the first micro-batch waits for Python processes to start
END_GRACE_SECONDS: Final = 25.0  # longer than a group needs until it is abandoned
SPARK: Final = "spark"
SPARK_MASTER: Final = "local[2,4]"
SPARK_START_SECONDS: Final = 180.0  # about 15 on an idle machine
HINT: Final = "Ctrl-C to end"
HINT_STARTING: Final = "Spark takes about 15 seconds to start; Ctrl-C to end"
HINT_DRAINING: Final = "draining; Ctrl-C to end at once"


def play(options: DemoOptions, directory: Path, log_file: Path, screen: Screen) -> Ending:
    """Run until a signal, or as long as requested, with local state in `directory`. Raises ConfigError."""
    if options.engine == SPARK:
        install_reporter(directory)
        sys.path.append(str(directory))
    config = read_group(options).model_copy(update={"state_dir": str(directory)})
    return run_in_loop(Play(config, options, log_file, screen).run())


def read_group(options: DemoOptions) -> RootConfig:
    """Return a configuration with only the shown group: the first, if none is given. Raises ConfigError."""
    overrides = [f"nameserver={PLACEHOLDER}", "nameserver_url="]
    path, group = options.config or SAMPLE, options.group
    if options.engine == SPARK:
        group = group or next(iter(load_config(path, overrides).groups))
        overrides += [f"groups.{group}.engine={SPARK}", f"groups.{group}.spark.master={SPARK_MASTER}"]
    config = load_runnable(path, overrides, groups=() if group is None else (group,))
    group = group or next(iter(config.groups))
    if group not in config.groups:
        raise ConfigError([f"--group {group}: unknown group; expected one of {', '.join(config.groups)}"])
    return config.model_copy(update={"groups": {group: config.groups[group]}, "client": ClientConfig()})


def demo_broker(topics: Iterable[str]) -> EmbeddedOptions:
    """Return a broker in memory with these topics and short retry delays."""
    settings = BrokerSettings().changed({"messageDelayLevel": DELAY_LEVELS, "maxStoreSize": STORE_BYTES})
    return EmbeddedOptions(settings=settings, topics=dict.fromkeys(topics, QUEUES))


class Play:
    """All parts of the demo, in this process. They end with it."""

    def __init__(self, config: RootConfig, options: DemoOptions, log_file: Path, screen: Screen) -> None:
        self._config = config
        self._options = options
        self._log_file = log_file
        self._screen = screen
        [(self._group, settings)] = config.groups.items()
        self._subscriptions = settings.subscriptions
        self._is_on_spark = settings.engine == SPARK
        self._state = ""
        self._hint = HINT
        self._is_unseen = False  # the view is not visible any more, so the demo ends
        self._stop = asyncio.Event()
        self._main: asyncio.Task[Ending] | None = None
        self._signals: list[signal.Signals] = []

    async def run(self) -> Ending:
        """Run until a signal, and drain."""
        self._main = asyncio.current_task()
        try:
            with signals_handled(self._on_stop, self._stop.set):
                return Ending(ExitCode.OK, "\n".join((await self._broker()).lines()))
        except asyncio.CancelledError:
            return Ending(128 + self._signals[-1], "rmqd demo: ended before the group had drained")
        except (ExceptionGroup, OSError) as error:
            log.critical("demo.failed", exc_info=error)
            return Ending(ExitCode.FAILURE, f"rmqd demo: {_first(error)!r}; log: {self._log_file}")

    async def _broker(self) -> Summary:
        options, cpu_seconds = self._options, time.process_time()
        async with embedded_rocketmq(demo_broker(self._subscriptions)) as rocketmq:
            stage = Stage(rocketmq, self._config, SystemClock(), seed=options.seed, messages=options.messages)
            settle_garbage_collection()
            async with reports_received(stage.ledger) if self._is_on_spark else contextlib.nullcontext():
                await self._perform(stage, self._setting(rocketmq.nameserver))
            return Summary(
                stage.figures("ended"),
                stage.ledger.ages.snapshot(),
                stage.ledger.reasons,
                time.process_time() - cpu_seconds,
                stage.producer.last_failure,
                any(one.expression != SUBSCRIPTION_ALL for one in self._subscriptions.values()),
                str(self._log_file),
                is_on_spark=self._is_on_spark,
            )

    def _setting(self, nameserver: str) -> Setting:
        log_file = str(self._log_file)
        return Setting(self._group, nameserver, DELAYS_TOLD, USUAL_DELAYS, log_file, is_on_spark=self._is_on_spark)

    async def _perform(self, stage: Stage, setting: Setting) -> None:
        async with asyncio.TaskGroup() as tasks:
            showing = tasks.create_task(self._keep_showing(stage, setting), name="view")
            running = tasks.create_task(stage.groups.run(), name="group")
            stop = tasks.create_task(self._stop.wait(), name="stop")
            if self._is_on_spark:
                self._hint = HINT_STARTING
                ready = tasks.create_task(stage.ready(SPARK_START_SECONDS), name="start")
                await asyncio.wait({ready, stop, running}, return_when=asyncio.FIRST_COMPLETED)
                ready.cancel()
                self._hint = HINT
            sending = tasks.create_task(stage.producer.run(), name="producer")
            await asyncio.wait(
                {stop, sending, running}, timeout=self._options.seconds, return_when=asyncio.FIRST_COMPLETED
            )
            self._stop.set()  # a later signal, even the first, cuts the end short
            patience = SPARK_CATCH_UP_SECONDS if self._is_on_spark else CATCH_UP_SECONDS
            async with asyncio.timeout(patience + stage.groups.longest_drain_seconds + END_GRACE_SECONDS):
                self._enter("catching up", stage, setting)
                stage.producer.stop()
                await sending
                await stage.catch_up(patience)
                self._enter("draining", stage, setting)
                stage.groups.stop()
                await running
                await stage.leave()
            showing.cancel()

    async def _keep_showing(self, stage: Stage, setting: Setting) -> None:
        while True:
            self._show(stage, setting)
            await asyncio.sleep(self._screen.interval_seconds)

    def _enter(self, state: str, stage: Stage, setting: Setting) -> None:
        """Show the next phase of the end, however short it is."""
        self._state = state
        self._show(stage, setting)

    def _show(self, stage: Stage, setting: Setting) -> None:
        if self._is_unseen:
            return
        try:
            self._screen.show(setting, stage.figures(self._state), HINT_DRAINING if self._state else self._hint)
        except OSError:  # for example a closed terminal, or `rmqd demo | head`
            self._is_unseen = True
            self._stop.set()

    def _on_stop(self, number: signal.Signals) -> None:
        self._signals.append(number)
        if not self._stop.is_set():
            self._stop.set()
        elif self._main is not None:
            self._main.cancel()


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
