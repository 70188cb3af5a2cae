"""How fast the embedded broker and RocketMQ store and deliver messages, in one session."""

from __future__ import annotations

import contextlib
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bench import contenders, contest
from bench.embedded import embedded_broker
from bench.goals import table
from bench.job import Job
from bench.machine import QUIET_SHARE, Usage, process_cpu_seconds, wait_until_quiet
from bench.scenarios import BROKER_HEAP, QUEUES, TIMEOUT_SECONDS, say
from tests.rocketmq import ClusterSpec, RealCluster

NAME = "brokers"
BODY_BYTES = 1024
INFLIGHT = 64
PULL_BATCH = 32
FILLED, SENT = "bench_filled", "bench_sent"
REAL, MEMORY, FOLDER = "RocketMQ", "embedded", "embedded, --data-dir"
WARM_DRAINS = 5  # a JVM compiles its hot code first
WARM_MESSAGES = 10_000


@dataclass(frozen=True, slots=True)
class Broker:
    """A running cluster with one broker. `pids` are its processes, the broker's first."""

    name: str
    nameserver: str
    pids: list[int]


@dataclass(frozen=True, slots=True)
class ReadyQueues:
    """A measurement. `run` does it once with a number of messages and returns messages per second."""

    what: str
    share_of_messages: float
    run: Callable[[Broker, int], float]


@dataclass(slots=True)
class Figures:
    """Messages per second and the broker's CPU µs per message, by line and broker; the CPU share of other work."""

    rates: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    cpu: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    foreign_share: float = 0.0


def measure(messages: int, runs: int, patience_seconds: float) -> str:
    """Measure both brokers. Returns a table, and notes below it.

    The drains read `messages` messages; the slower sends use fewer. Raises ClusterError and ContestError.
    """
    contenders.build(("rmqd",))
    figures = Figures()
    with contextlib.ExitStack() as stack:
        brokers = [stack.enter_context(opened) for opened in (_real(), _embedded(MEMORY), _embedded(FOLDER))]
        for broker in brokers:
            say(f"filling {broker.name}: {messages:,} messages of {BODY_BYTES:,} bytes")
            _java_load(broker, messages, FILLED, batch=PULL_BATCH)
            _java_send(broker, WARM_MESSAGES)
            for _ in range(WARM_DRAINS):
                _raw_drain(broker, messages)
            _raw_send(broker, WARM_MESSAGES)
        for line in LINES:
            for run in range(runs):
                for broker in brokers[run % len(brokers) :] + brokers[: run % len(brokers)]:
                    wait_until_quiet(patience_seconds)
                    _measure_once(line, broker, brokers, max(1, int(messages * line.share_of_messages)), figures)
    return _report(figures, messages, runs)


def _measure_once(line: ReadyQueues, broker: Broker, brokers: list[Broker], messages: int, figures: Figures) -> None:
    pids = [pid for one in brokers for pid in one.pids]
    before, cpu_before = Usage.now(pids), process_cpu_seconds(broker.pids[0])
    rate = line.run(broker, messages)
    cpu = (process_cpu_seconds(broker.pids[0]) - cpu_before) * 1e6 / messages
    figures.foreign_share = max(figures.foreign_share, Usage.now(pids).foreign_share_since(before))
    figures.rates.setdefault((line.what, broker.name), []).append(rate)
    figures.cpu.setdefault((line.what, broker.name), []).append(cpu)
    say(f"{line.what}, {broker.name}: {rate:,.0f} msg/s, broker {cpu:.1f} µs/msg")


def _report(figures: Figures, messages: int, runs: int) -> str:
    rows = []
    for line in LINES:
        real, memory, folder = (statistics.median(figures.rates[line.what, name]) for name in (REAL, MEMORY, FOLDER))
        cpu = [f"{statistics.median(figures.cpu[line.what, name]):.1f}" for name in (REAL, MEMORY, FOLDER)]
        rates = (f"{real:,.0f}", f"{memory:,.0f}", f"{memory / real:.2f}", f"{folder:,.0f}", f"{folder / real:.2f}")
        rows.append((line.what, *rates, *cpu))
    head = ("msg/s", REAL, MEMORY, "share", "--data-dir", "share", "its µs/msg", "embedded's", "--data-dir's")
    text = (
        f"medians of {runs} runs; bodies of {BODY_BYTES:,} bytes in {QUEUES} queues, {messages:,} messages in a drain, "
        f"{INFLIGHT} sends in flight; share: divided by RocketMQ's\n\n{table(head, rows)}"
    )
    if figures.foreign_share >= QUIET_SHARE:
        text += f"\n\nother work had up to {figures.foreign_share:.0%} of the machine"
    return text


@contextlib.contextmanager
def _real() -> Iterator[Broker]:
    say(f"starting RocketMQ (heap {BROKER_HEAP})")
    with RealCluster.start(ClusterSpec(version="5.5.0", heap=BROKER_HEAP, is_measured=True)) as cluster:
        pids = [node.pid for node in (cluster.broker, *cluster.nodes) if node.pid]
        yield Broker(REAL, cluster.nameserver, list(dict.fromkeys(pids)))


@contextlib.contextmanager
def _embedded(name: str) -> Iterator[Broker]:
    directory = Path(tempfile.mkdtemp(prefix="rmqd-bench-"))
    try:
        with embedded_broker(*(("--data-dir", str(directory)) if name == FOLDER else ())) as (nameserver, pid):
            yield Broker(name, nameserver, [pid])
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _rate(broker: Broker, command: list[str], **options: object) -> float:
    """Run a program that prints a line of figures. Returns its messages per second. Raises ContestError."""
    arguments = [part for name, value in options.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    try:
        done = subprocess.run(
            [*command, "--namesrv", broker.nameserver, *arguments],
            cwd=contenders.ROOT,
            env=contenders.environment(),
            stdout=subprocess.PIPE,
            timeout=TIMEOUT_SECONDS,
            check=True,
            text=True,
        )
    except subprocess.SubprocessError as error:
        raise contest.ContestError(f"{broker.name}: {error}") from error
    rate: float = json.loads(done.stdout.splitlines()[-1])["msgs_per_s"]
    return rate


def _java_send(broker: Broker, messages: int) -> float:
    return _java_load(broker, messages, SENT, batch=1)


def _java_load(broker: Broker, messages: int, topic: str, batch: int) -> float:
    return _rate(
        broker,
        contenders.java("Load"),
        topic=topic,
        messages=messages,
        bytes=BODY_BYTES,
        queues=QUEUES,
        batch=batch,
        inflight=INFLIGHT,
    )


def _raw_send(broker: Broker, messages: int) -> float:
    return _python_send("bench.raw_sender", broker, messages)


def _rmqd_send(broker: Broker, messages: int) -> float:
    return _python_send("bench.producer_load", broker, messages)


def _python_send(module: str, broker: Broker, messages: int) -> float:
    command = [sys.executable, "-m", module]
    return _rate(broker, command, topic=SENT, messages=messages, bytes=BODY_BYTES, inflight=INFLIGHT)


def _raw_drain(broker: Broker, messages: int) -> float:
    return _drain(broker, "raw", messages)


def _rmqd_drain(broker: Broker, messages: int) -> float:
    return _drain(broker, "rmqd", messages)


def _drain(broker: Broker, contender: str, messages: int) -> float:
    directory = Path(tempfile.mkdtemp(prefix="rmqd-bench-"))
    try:
        job = Job(
            contender=contender,
            nameserver=broker.nameserver,
            topic=FILLED,
            group=f"bench_{contender}_{directory.name}",
            messages=messages,
            consume_batch=PULL_BATCH,
            pull_batch=PULL_BATCH,
            directory=directory,
            timeout_seconds=TIMEOUT_SECONDS,
        )
        return contest.run(job).messages_per_second
    finally:
        shutil.rmtree(directory)


LINES = (  # drains run first: the sends make an embedded broker delete its oldest messages
    ReadyQueues("drain, raw puller", 1.0, _raw_drain),
    ReadyQueues("drain, rmqd", 1.0, _rmqd_drain),
    ReadyQueues("send, frames encoded beforehand", 0.3, _raw_send),
    ReadyQueues("send, Java's producer", 0.1, _java_send),
    ReadyQueues("send, rmqd's producer", 0.1, _rmqd_send),
)
