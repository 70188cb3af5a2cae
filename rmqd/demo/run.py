"""The demo, top to bottom: read the group's configuration, start the broker, run everything, drain, sum up."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

# First of our own: it keeps structlog from importing rich's tracebacks, see there.
from rmqd.daemon import logs

# isort: split

import structlog

from rmqd.broker.embedded import EmbeddedOptions, embedded_rocketmq
from rmqd.broker.settings import BrokerSettings
from rmqd.clock import Clock, SystemClock
from rmqd.daemon.config import ClientConfig, RootConfig
from rmqd.daemon.config_file import load_config
from rmqd.daemon.loop import run_in_loop, settle_garbage_collection
from rmqd.daemon.signals import signals_handled
from rmqd.demo.screen import Screen, screen_for
from rmqd.demo.stage import Stage
from rmqd.demo.summary import Summary
from rmqd.demo.view import Setting
from rmqd.errors import ConfigError
from rmqd.exit_codes import ExitCode
from rmqd.wire.topics import SUBSCRIPTION_ALL

log = structlog.get_logger(__name__)

SAMPLE: Final = Path(__file__).parent / "rmqd.yaml"
PLACEHOLDER: Final = "127.0.0.1:9876"  # until the broker is there; no file needs to name one
QUEUES: Final = 4
DELAY_LEVELS: Final = "1s 1s 2s 3s 4s 5s 6s 8s 10s 12s 15s 20s 25s 30s 40s 50s 1m 2m"
DELAYS_TOLD: Final = "2s, 3s, 4s"  # a retry begins at the third level
USUAL_DELAYS: Final = "10s, 30s, 1m"
HINT: Final = "Ctrl-C to end"
HINT_DRAINING: Final = "ending in order; Ctrl-C again to end at once"


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """What `rmqd demo` was asked for. None: no end but a signal."""

    config: Path | None = None
    group: str | None = None
    seconds: float | None = None
    messages: int | None = None
    seed: int | None = None


def run_demo(options: DemoOptions) -> int:
    """Run until a signal, or as long as asked for; the exit code."""
    try:
        config, group = read_group(options)
        directory = Path(tempfile.mkdtemp(prefix="rmqd-demo-"))
        demo = Demo(config, group, options, directory, screen_for(sys.stdout))
    except ConfigError as error:
        return _refuse(error)
    return run_in_loop(demo.run())


def _refuse(error: ConfigError) -> int:
    for problem in error.problems:
        print(problem, file=sys.stderr)  # noqa: T201 for a person
    return ExitCode.CONFIG


def read_group(options: DemoOptions) -> tuple[RootConfig, str]:
    """A configuration with the one group that is shown: the first, if none is named. Raises ConfigError."""
    overrides = (f"nameserver={PLACEHOLDER}", "nameserver_url=")
    path = options.config or SAMPLE
    wanted = () if options.group is None else (options.group,)
    config = load_config(path, overrides, groups=wanted)
    group = options.group or next(iter(config.groups))
    if group not in config.groups:
        raise ConfigError([f"--group {group}: there is no such group; configured: {', '.join(config.groups)}"])
    return config.model_copy(update={"groups": {group: config.groups[group]}, "client": ClientConfig()}), group


class Demo:
    """One run. Everything that takes part in it runs in this process, and ends with it."""

    def __init__(self, config: RootConfig, group: str, options: DemoOptions, directory: Path, screen: Screen) -> None:
        self.summary: Summary | None = None
        """Once it has drained."""
        self._config = config.model_copy(update={"state_dir": str(directory)})
        subscriptions = config.groups[group].subscriptions
        self._topics = tuple(subscriptions)
        self._is_filtered = any(one.expression != SUBSCRIPTION_ALL for one in subscriptions.values())
        self._options = options
        self._log = directory / "rmqd.log"
        self._screen = screen
        self._clock: Clock = SystemClock()
        self._state = ""
        self._is_unseen = False  # nobody can see it any more, which is a reason to end
        self._stop = asyncio.Event()
        self._main: asyncio.Task[int] | None = None
        self._signals: list[signal.Signals] = []

    async def run(self) -> int:
        """Run until a signal, drain, and sum up on standard output; the exit code."""
        self._main = asyncio.current_task()
        try:
            with self._log.open("a", encoding="utf-8") as file, signals_handled(self._on_stop, self._stop.set):
                logs.configure_logging("info", "console", stream=file)
                await self._play()
        except asyncio.CancelledError:
            self._say("rmqd demo: ended before the group had drained")
            return 128 + self._signals[-1]
        except ConfigError as error:
            return _refuse(error)
        except (ExceptionGroup, OSError) as error:
            log.critical("demo.failed", exc_info=error)
            self._say(f"rmqd demo: {_first(error)}; the group's log: {self._log}")
            return ExitCode.FAILURE
        if self.summary is not None:
            self._say("\n".join(self.summary.lines()))
        return ExitCode.OK

    async def _play(self) -> None:
        settings = BrokerSettings().changed({"messageDelayLevel": DELAY_LEVELS})
        options, topics = self._options, dict.fromkeys(self._topics, QUEUES)
        cpu_seconds = time.process_time()
        with self._screen.open(self._log):
            async with embedded_rocketmq(EmbeddedOptions(settings=settings, topics=topics)) as rocketmq:
                stage = Stage(rocketmq, self._config, self._clock, seed=options.seed, messages=options.messages)
                setting = Setting(stage.group, rocketmq.nameserver, DELAYS_TOLD, USUAL_DELAYS, str(self._log))
                settle_garbage_collection()
                await self._perform(stage, setting)
                self.summary = Summary(
                    stage.figures("ended"),
                    stage.ledger.ages.snapshot(),
                    stage.ledger.reasons,
                    time.process_time() - cpu_seconds,
                    stage.producer.last_failure,
                    self._is_filtered,
                    setting.log,
                )

    async def _perform(self, stage: Stage, setting: Setting) -> None:
        async with asyncio.TaskGroup() as tasks:
            showing = tasks.create_task(self._keep_showing(stage, setting), name="view")
            running = tasks.create_task(stage.groups.run(), name="group")
            sending = tasks.create_task(stage.producer.run(), name="producer")
            stop = tasks.create_task(self._stop.wait(), name="stop")
            await asyncio.wait(
                {stop, sending, running}, timeout=self._options.seconds, return_when=asyncio.FIRST_COMPLETED
            )
            self._enter("catching up", stage, setting)
            stage.producer.stop()
            await sending
            await stage.catch_up()
            self._enter("draining", stage, setting)
            stage.groups.stop()
            await running
            await stage.leave()
            stop.cancel()
            showing.cancel()

    async def _keep_showing(self, stage: Stage, setting: Setting) -> None:
        while True:
            self._show(stage, setting)
            await asyncio.sleep(self._screen.interval_seconds)

    def _enter(self, state: str, stage: Stage, setting: Setting) -> None:
        """Come to another part of the end, and show it, however short it is."""
        self._state = state
        self._show(stage, setting)

    def _show(self, stage: Stage, setting: Setting) -> None:
        if not self._is_unseen:
            with self._unseen_is_the_end():
                self._screen.show(setting, stage.figures(self._state), HINT_DRAINING if self._state else HINT)

    @contextlib.contextmanager
    def _unseen_is_the_end(self) -> Iterator[None]:
        try:
            yield
        except OSError:  # such as a closed terminal, or `rmqd demo | head`
            self._is_unseen = True
            self._stop.set()
            with open(os.devnull, "w") as nowhere:  # else the interpreter would fail to flush it at its exit
                os.dup2(nowhere.fileno(), sys.stdout.fileno())

    def _say(self, text: str) -> None:
        with self._unseen_is_the_end():
            print(text, flush=True)  # noqa: T201 that is what it is for

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
