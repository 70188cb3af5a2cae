"""One run of the demo: the group's configuration, the broker, the producer and group, and an orderly end.

On Spark, Python processes on this machine report each handled message to the demo, as a datagram to the loopback
address. A hook sends the datagrams. The processes find it by a distribution that the demo creates on Python's path. If
a datagram is lost, a line of the view is missing, and nothing else.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import structlog

from rmqd.broker.broker_settings import BrokerSettings
from rmqd.broker.embedded_rocketmq import EmbeddedOptions, EmbeddedRocketMQ, embedded_rocketmq
from rmqd.client.api.offset_requests import query_consumer_offset
from rmqd.client.client_options import ClientOptions
from rmqd.client.instance import ClientInstance
from rmqd.config.load import load_config
from rmqd.config.model.root_model import ClientConfig, RootConfig
from rmqd.consumer.hooks import HookContext
from rmqd.daemon.groups.group_engine import LocalEngine
from rmqd.daemon.groups.local_groups import LocalGroups
from rmqd.daemon.groups.supervisor import LoopMonitor
from rmqd.demo.demo_orders import (
    DemoLedger,
    DemoOptions,
    DemoResult,
    HandledOrder,
    OrderGenerator,
    OrderProducer,
    handled_orders,
)
from rmqd.demo.demo_screen import DemoScreen, DemoSummary
from rmqd.demo.demo_view import DemoFigures, DemoObserver, DemoSetup
from rmqd.errors import ConfigError, ExitCode
from rmqd.handler_api.batch import Batch, leaf_exceptions
from rmqd.plugins.model_options import load_runnable
from rmqd.runtime.clock import Clock, SystemClock
from rmqd.runtime.event_loop import enable_gc_after_start, handle_signals, run_in_loop
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.topics import SUBSCRIPTION_ALL

CATCH_UP_POLL_SECONDS: Final = 0.02


class DemoGroup:
    """The group of `config`, a producer for its topics, and the ledger. Raises ConfigError."""

    def __init__(
        self, rocketmq: EmbeddedRocketMQ, config: RootConfig, clock: Clock, *, seed: int | None, messages: int | None
    ) -> None:
        [(self.group, settings)] = config.groups.items()
        topics = tuple(settings.subscriptions)
        nameservers = (rocketmq.nameserver,)
        self.ledger = DemoLedger(self.group, clock)
        self.groups = LocalGroups(
            config.model_copy(update={"nameserver": nameservers}),
            LocalEngine(clock, (self.ledger.hook,)),  # the hook is only for the local engine; on Spark see DemoReporter
            clock,
            LoopMonitor(clock),
        )
        self._client = ClientInstance(ClientOptions(nameservers=nameservers))
        self.producer = OrderProducer(self._client, OrderGenerator(topics, seed), messages)
        self._observer = DemoObserver(topics, self.producer, self.ledger)
        self._topics = topics
        self._clock = clock
        self._began = clock.monotonic()
        self._broker = (rocketmq.broker.name, rocketmq.broker.address)
        rocketmq.broker.store.on_arrival(self.ledger.on_stored)

    def current_figures(self, state: str = "") -> DemoFigures:
        """Return the current figures. `state` replaces the group's own state, unless it is empty."""
        [group] = self.groups.snapshot(with_queues=True).groups
        return self._observer.figures(group, state or group.state, self._clock.monotonic() - self._began)

    async def catch_up(self, timeout_seconds: float) -> None:
        """Wait until the group has handled all stored messages or failed, at most `timeout_seconds`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                while self._is_behind():  # noqa: ASYNC110 a group has no event for this
                    await asyncio.sleep(CATCH_UP_POLL_SECONDS)

    def _is_behind(self) -> bool:
        figures = self.current_figures()
        return figures.account.unhandled > 0 and figures.state != "failed"

    async def read_end_and_close(self) -> None:
        """Read the group's committed offsets after it has stopped, and close the producer's client."""
        name, address = self._broker
        try:
            for topic, queue_id in list(self.ledger.ends):
                if topic in self._topics:
                    queue = MessageQueue(topic, name, queue_id)
                    offset = await query_consumer_offset(self._client.remoting, address, self.group, queue)
                    if offset is not None:
                        self._observer.set_committed(topic, queue_id, offset)
        finally:
            await self._client.close()


LOOPBACK: Final = "127.0.0.1"
REPORT_PORT_VARIABLE: Final = "RMQD_DEMO_REPORTS"  # environment variable that Spark's processes inherit
MAX_BODY_BYTES: Final = 1024  # bytes of a body that are sent to the view


def install_reporter(folder: Path) -> None:
    """Create the metadata of a distribution in `folder`, whose only entry point is the hook `DemoReporter`."""
    information = folder / "rmqd_demo_reports-0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: rmqd-demo-reports\nVersion: 0\n")
    (information / "entry_points.txt").write_text(f"[rmqd.hooks]\ndemo = {__name__}:{DemoReporter.__name__}\n")


class DemoReporter:
    """The hook in Spark's Python processes. It sends the outcome of each message to the demo as a datagram."""

    def __init__(self) -> None:
        self._address = LOOPBACK, int(os.environ.get(REPORT_PORT_VARIABLE, "0"))
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._clock = SystemClock()

    def after_batch(self, batch: Batch, context: HookContext) -> None:
        """Called in the handler's thread or event loop. Does nothing if the demo has ended."""
        for order, age in handled_orders(batch, context, self._clock.wall()):
            body = base64.b64encode(order.body[:MAX_BODY_BYTES]).decode()
            report = json.dumps([order.key, order.tag, body, order.attempt, order.outcome, age])
            try:
                self._socket.sendto(report.encode(), self._address)
            except OSError:
                return


@asynccontextmanager
async def receive_reports(ledger: DemoLedger) -> AsyncIterator[None]:
    """Receive the datagrams of DemoReporter during the block, and record them in the ledger. Raises OSError."""
    transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
        lambda: _Receiver(ledger), local_addr=(LOOPBACK, 0)
    )
    os.environ[REPORT_PORT_VARIABLE] = str(transport.get_extra_info("sockname")[1])
    try:
        yield
    finally:
        del os.environ[REPORT_PORT_VARIABLE]
        transport.close()


class _Receiver(asyncio.DatagramProtocol):
    def __init__(self, ledger: DemoLedger) -> None:
        self._ledger = ledger

    def datagram_received(self, data: bytes, addr: tuple[str | Any, int]) -> None:
        """Called for each datagram. Any process on this machine may send one, so invalid reports are ignored."""
        try:
            key, tag, body, attempt, verdict, age = json.loads(data)
            order = HandledOrder(str(key), str(tag), base64.b64decode(body, validate=True), int(attempt), str(verdict))
            seconds = None if age is None else float(age)
        except (ValueError, TypeError):
            return
        self._ledger.record_handled(order, seconds)


log = structlog.get_logger(__name__)

SAMPLE_CONFIG: Final = Path(__file__).parent / "rmqd.yaml"
PLACEHOLDER_NAMESERVER: Final = "127.0.0.1:9876"  # for the validation; the demo's own name server replaces it
QUEUES_PER_TOPIC: Final = 4
DEMO_DELAY_LEVELS: Final = "1s 1s 2s 3s 4s 5s 6s 8s 10s 12s 15s 20s 25s 30s 40s 50s 1m 2m"
MAX_STORE_BYTES: Final = str(32 * 1024 * 1024)  # about half an hour of orders, because a demo may be left running
CATCH_UP_TIMEOUT_SECONDS: Final = 15.0
SPARK_CATCH_UP_TIMEOUT_SECONDS: Final = 60.0  # the first micro-batch waits for Python processes to start
END_GRACE_SECONDS: Final = 25.0  # longer than a group needs until it is abandoned
SPARK_ENGINE: Final = "spark"
SPARK_MASTER: Final = "local[2,4]"
SPARK_START_TIMEOUT_SECONDS: Final = 180.0  # limit for the start of Spark, which takes about 15 s on an idle machine
END_HINT: Final = "Ctrl-C to end"
SPARK_STARTING_HINT: Final = "Spark takes about 15 seconds to start; Ctrl-C to end"
DRAINING_HINT: Final = "draining; Ctrl-C to end at once"


def play_demo(options: DemoOptions, directory: Path, log_file: Path, screen: DemoScreen) -> DemoResult:
    """Run the demo until a signal or a limit in the options, with local state in `directory`. Raises ConfigError."""
    if options.engine == SPARK_ENGINE:
        install_reporter(directory)
        sys.path.append(str(directory))
    config = read_group(options).model_copy(update={"state_dir": str(directory)})
    return run_in_loop(RunningDemo(config, options, log_file, screen).run())


def read_group(options: DemoOptions) -> RootConfig:
    """Return a configuration with one group: `options.group`, by default the first group. Raises ConfigError."""
    overrides = [f"nameserver={PLACEHOLDER_NAMESERVER}", "nameserver_url="]
    path, group = options.config or SAMPLE_CONFIG, options.group
    if options.engine == SPARK_ENGINE:
        group = group or next(iter(load_config(path, overrides).groups))
        overrides += [f"groups.{group}.engine={SPARK_ENGINE}", f"groups.{group}.spark.master={SPARK_MASTER}"]
    config = load_runnable(path, overrides, groups=() if group is None else (group,))
    group = group or next(iter(config.groups))
    if group not in config.groups:
        raise ConfigError([f"--group {group}: unknown group; expected one of {', '.join(config.groups)}"])
    return config.model_copy(update={"groups": {group: config.groups[group]}, "client": ClientConfig()})


def demo_broker(topics: Iterable[str]) -> EmbeddedOptions:
    """Return the options of an in-memory broker with these topics, and with short retry delays."""
    settings = BrokerSettings().changed({"messageDelayLevel": DEMO_DELAY_LEVELS, "maxStoreSize": MAX_STORE_BYTES})
    return EmbeddedOptions(settings=settings, topics=dict.fromkeys(topics, QUEUES_PER_TOPIC))


class RunningDemo:
    """All parts of one demo, which run in this process and stop when `run` returns."""

    def __init__(self, config: RootConfig, options: DemoOptions, log_file: Path, screen: DemoScreen) -> None:
        self._config = config
        self._options = options
        self._log_file = log_file
        self._screen = screen
        [(self._group, settings)] = config.groups.items()
        self._subscriptions = settings.subscriptions
        self._is_on_spark = settings.engine == SPARK_ENGINE
        self._state = ""
        self._hint = END_HINT
        self._is_unseen = False  # True after the output was closed, which ends the demo
        self._stop = asyncio.Event()
        self._main: asyncio.Task[DemoResult] | None = None
        self._signals: list[signal.Signals] = []

    async def run(self) -> DemoResult:
        """Run until a signal or a limit in the options, then drain the group."""
        self._main = asyncio.current_task()
        try:
            with handle_signals(self._on_stop, self._stop.set):
                return DemoResult(ExitCode.OK, "\n".join((await self._broker()).lines()))
        except asyncio.CancelledError:
            return DemoResult(128 + self._signals[-1], "rmqd demo: ended before the group had drained")
        except (ExceptionGroup, OSError) as error:
            log.critical("demo.failed", exc_info=error)
            return DemoResult(ExitCode.FAILURE, f"rmqd demo: {leaf_exceptions(error)[0]!r}; log: {self._log_file}")

    async def _broker(self) -> DemoSummary:
        options, cpu_seconds = self._options, time.process_time()
        async with embedded_rocketmq(demo_broker(self._subscriptions)) as rocketmq:
            stage = DemoGroup(rocketmq, self._config, SystemClock(), seed=None, messages=options.messages)
            enable_gc_after_start()
            async with receive_reports(stage.ledger) if self._is_on_spark else contextlib.nullcontext():
                await self._perform(
                    stage,
                    DemoSetup(self._group, rocketmq.nameserver, str(self._log_file), is_on_spark=self._is_on_spark),
                )
            return DemoSummary(
                stage.current_figures("ended"),
                stage.ledger.ages.snapshot(),
                stage.ledger.reasons,
                time.process_time() - cpu_seconds,
                stage.producer.last_failure,
                any(one.expression != SUBSCRIPTION_ALL for one in self._subscriptions.values()),
                str(self._log_file),
                is_on_spark=self._is_on_spark,
            )

    async def _perform(self, stage: DemoGroup, setting: DemoSetup) -> None:
        async with asyncio.TaskGroup() as tasks:
            showing = tasks.create_task(self._keep_showing(stage, setting), name="view")
            running = tasks.create_task(stage.groups.run(), name="group")
            stop = tasks.create_task(self._stop.wait(), name="stop")
            if self._is_on_spark:
                self._hint = SPARK_STARTING_HINT
                ready = tasks.create_task(stage.groups.started(SPARK_START_TIMEOUT_SECONDS), name="start")
                await asyncio.wait({ready, stop, running}, return_when=asyncio.FIRST_COMPLETED)
                ready.cancel()
                self._hint = END_HINT
            sending = tasks.create_task(stage.producer.run(), name="producer")
            await asyncio.wait(
                {stop, sending, running}, timeout=self._options.seconds, return_when=asyncio.FIRST_COMPLETED
            )
            self._stop.set()  # set it also at a limit, so that the next signal cancels the orderly end
            patience = SPARK_CATCH_UP_TIMEOUT_SECONDS if self._is_on_spark else CATCH_UP_TIMEOUT_SECONDS
            async with asyncio.timeout(patience + stage.groups.longest_drain_seconds + END_GRACE_SECONDS):
                self._enter("catching up", stage, setting)
                stage.producer.stop()
                await sending
                await stage.catch_up(patience)
                self._enter("draining", stage, setting)
                stage.groups.stop()
                await running
                await stage.read_end_and_close()
            showing.cancel()

    async def _keep_showing(self, stage: DemoGroup, setting: DemoSetup) -> None:
        while True:
            self._show(stage, setting)
            await asyncio.sleep(self._screen.interval_seconds)

    def _enter(self, state: str, stage: DemoGroup, setting: DemoSetup) -> None:
        """Set the state of the orderly end, and show it at once, because the phase may be short."""
        self._state = state
        self._show(stage, setting)

    def _show(self, stage: DemoGroup, setting: DemoSetup) -> None:
        if self._is_unseen:
            return
        try:
            self._screen.show(setting, stage.current_figures(self._state), DRAINING_HINT if self._state else self._hint)
        except OSError:  # for example a closed terminal, or `rmqd demo | head`
            self._is_unseen = True
            self._stop.set()

    def _on_stop(self, number: signal.Signals) -> None:
        self._signals.append(number)
        if not self._stop.is_set():
            self._stop.set()
        elif self._main is not None:
            self._main.cancel()
