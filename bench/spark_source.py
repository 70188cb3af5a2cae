"""`python -m bench.spark_source`: Spark and rmqd on a real RocketMQ, compared with the counterpart of each goal.

- source: the whole topic into a no-op sink, compared with the raw puller on the same topic;
- kafka: the same, compared with Spark's own Kafka source on the same number of equal records in a real Kafka;
- handler: `engine: spark` with an empty handler, compared with the same rows in memory through mapInArrow alone;
- delay: the age of messages in `engine: spark` at 1,000 a second, compared with a bare micro-batch.

The contenders of a part take turns. The first run of each does not count. A rate is the number of messages divided by
the action's time, planning included.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from bench import contenders, kafka, spark_delay, spark_memory
from bench.goals import table
from bench.machine import QUIET_SHARE, Usage, wait_until_quiet
from bench.scenarios import BODY_BYTES, BROKER_HEAP, QUEUES, TIMEOUT_SECONDS, WARM_UP_DRAINS, say
from bench.spark_processes import BROKER, JVM, PYTHON, own, spent_seconds
from bench.spark_session import session
from rmqd.spark.source.source_columns import GROUP_COLUMNS, LOAD_COLUMNS
from tests.rocketmq import ClusterSpec, RealCluster
from tests.rocketmq.archives import prepare as prepare_archives

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPIC = "bench_spark"
PARTS = ("source", "kafka", "handler", "delay")
THREE = "body, queue_offset, store_timestamp"
SEVEN = "the seven columns of load()"
COLUMNS = {
    SEVEN: LOAD_COLUMNS,
    "all columns": GROUP_COLUMNS,
    "without properties": tuple(name for name in GROUP_COLUMNS if name != "properties"),
    THREE: ("body", "queue_offset", "store_timestamp"),
}
RAW, KAFKA = "raw puller", f"Kafka source of PySpark {kafka.PYSPARK}"
ENGINE, ENGINE_32, MAP = "engine: spark", "engine: spark, batches of 32", "mapInArrow"
DELAY, FLOOR = "engine: spark, ms", "bare micro-batch, ms"


@dataclass(frozen=True, slots=True)
class Goal:
    """A limit for the ratio of two medians: at least, or at most, a number."""

    what: str
    ours: str
    other: str
    limit: float
    at_least: bool = True


GOALS = (
    Goal("source, messages/s against the raw puller's", "all columns", RAW, 0.6),
    Goal("source, messages/s against Spark's Kafka source's", "all columns", KAFKA, 1.0),
    Goal("source, seven columns, messages/s against Spark's Kafka source's", SEVEN, KAFKA, 1.0),
    Goal("source, three columns, messages/s against Spark's Kafka source's", THREE, KAFKA, 1.3),
    Goal("engine: spark, messages/s against mapInArrow alone", ENGINE, MAP, 0.7),
    Goal("engine: spark, median ms to the handler against a micro-batch's", DELAY, FLOOR, 1.5, at_least=False),
)


@dataclass(slots=True)
class Measured:
    """Every run's figure by contender, the CPU of its processes, and the largest share of other work."""

    patience_seconds: float
    figures: dict[str, list[float]] = field(default_factory=dict)
    microseconds: dict[str, list[dict[str, float]]] = field(default_factory=dict)
    foreign: float = 0.0

    def take_turns(
        self,
        contenders: Mapping[str, Callable[[], float]],
        runs: int,
        brokers: Callable[[], list[int]],
        messages: int = 0,
    ) -> None:
        """Run each contender once uncounted, then `runs` times. CPU figures are per message, with `messages` a run."""
        for run in range(-1, runs):
            for name, measure in contenders.items():
                wait_until_quiet(self.patience_seconds)
                before, spent = Usage.now(own(brokers())), spent_seconds(brokers())
                figure = measure()
                now = spent_seconds(brokers())
                if run >= 0:
                    self.figures.setdefault(name, []).append(figure)
                    self.foreign = max(self.foreign, Usage.now(own(brokers())).foreign_share_since(before))
                    if messages:
                        each = {kind: 1e6 * (now[kind] - spent[kind]) / messages for kind in now}
                        self.microseconds.setdefault(name, []).append(each)
                say(f"{name}: {figure:,.0f}")

    def median(self, name: str) -> float | None:
        """Return the median of the counted runs; None if there are none."""
        return statistics.median(self.figures[name]) if name in self.figures else None


def fill(nameserver: str, messages: int) -> None:
    """Store the messages with Java's producer."""
    arguments = {"namesrv": nameserver, "topic": TOPIC, "messages": messages, "bytes": BODY_BYTES, "queues": QUEUES}
    options = [
        part for name, value in {**arguments, "batch": 32, "inflight": 64}.items() for part in _pair(name, value)
    ]
    subprocess.run(
        [*contenders.java("Load"), *options],
        cwd=contenders.ROOT, env=contenders.environment(), timeout=TIMEOUT_SECONDS, check=True, stdout=subprocess.PIPE,
    )  # fmt: skip


def raw(nameserver: str, messages: int) -> float:
    """Return the messages per second of the raw puller."""
    command = [sys.executable, "-m", "bench.raw_puller", *_pair("namesrv", nameserver), *_pair("topic", TOPIC)]
    done = subprocess.run(
        [*command, *_pair("group", "bench_spark_raw"), *_pair("messages", messages)],
        cwd=contenders.ROOT, env=contenders.environment(), timeout=TIMEOUT_SECONDS, check=True, text=True,
        stdout=subprocess.PIPE,
    )  # fmt: skip
    rate: float = json.loads(done.stdout.splitlines()[-1])["msgs_per_s"]
    return rate


def read(spark: SparkSession, nameserver: str, columns: tuple[str, ...], messages: int) -> float:
    """Return the messages per second of one read by Spark."""
    frame = (
        spark.read.format("rocketmq").options(nameserver=nameserver, subscribe=TOPIC, columns=",".join(columns)).load()
    )
    began = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return messages / (time.perf_counter() - began)


def compete(parts: list[str], messages: int, runs: int, delay_seconds: float, patience_seconds: float) -> Measured:
    """Run these parts. Returns their figures."""
    measured = Measured(patience_seconds)
    with contextlib.ExitStack() as ending:
        cluster = ending.enter_context(
            RealCluster.start(ClusterSpec(version="5.5.0", heap=BROKER_HEAP, is_measured=True))
        )
        beside = ending.enter_context(kafka.running(QUEUES)) if "kafka" in parts else None
        if {"source", "kafka"} & set(parts):
            say(f"filling {messages:,} messages of {BODY_BYTES} bytes")
            fill(cluster.nameserver, messages)
            for _ in range(WARM_UP_DRAINS):
                raw(cluster.nameserver, messages)
        if beside is not None:
            say(f"filling Kafka with {messages:,} records")
            beside.fill(messages, BODY_BYTES)

        def brokers() -> list[int]:
            nodes = [node.pid for node in (cluster.broker, *cluster.nodes) if node.pid]
            return nodes if beside is None else [*nodes, beside.broker.pid]

        spark = session()
        ending.callback(spark.stop)
        lines: dict[str, Callable[[], float]] = {}
        if "source" in parts:
            lines[RAW] = lambda: raw(cluster.nameserver, messages)
            for name, columns in COLUMNS.items():
                lines[name] = partial(read, spark, cluster.nameserver, columns, messages)
        if beside is not None:
            for name in ("all columns", THREE):
                lines.setdefault(name, partial(read, spark, cluster.nameserver, COLUMNS[name], messages))
            lines[KAFKA] = partial(_kafka_rate, beside, messages)
        measured.take_turns(lines, runs, brokers, messages)
        if "handler" in parts:
            whole = spark_memory.QUEUES * spark_memory.HELD
            held = max(1, messages // whole) * whole
            lines = {
                MAP: lambda: spark_memory.through_map_in_arrow(spark, held),
                ENGINE: lambda: spark_memory.through_engine(spark, cluster.nameserver, 1, held),
                ENGINE_32: lambda: spark_memory.through_engine(spark, cluster.nameserver, 32, held),
            }
            measured.take_turns(lines, runs, brokers, held)
        if "delay" in parts:
            numbers = itertools.count()
            lines = {
                FLOOR: lambda: spark_delay.floor(spark, delay_seconds),
                DELAY: lambda: spark_delay.engine(spark, cluster, f"bench_delay_{next(numbers)}", delay_seconds),
            }
            measured.take_turns(lines, runs, brokers)
    return measured


def report(measured: Measured, messages: int, runs: int) -> str:
    """Return the table of goals, and below it all figures."""
    rows = []
    for goal in GOALS:
        ours, other = measured.median(goal.ours), measured.median(goal.other)
        if ours is not None and other:
            ratio = ours / other
            is_met = ratio >= goal.limit if goal.at_least else ratio <= goal.limit
            bound = f"{'≥' if goal.at_least else '≤'} {goal.limit:g}"
            rows.append(
                (goal.what, f"{ours:,.0f}", f"{other:,.0f}", f"{ratio:.2f}", bound, "met" if is_met else "MISSED")
            )
    text = (
        f"medians of {runs} runs; {messages:,} messages of {BODY_BYTES} bytes in {QUEUES} queues, local[2], no-op sink"
        f"\n\n{table(('comparison', 'rmqd', 'other', 'ratio', 'goal', ''), rows)}\n\n{_details(measured)}"
    )
    if measured.foreign >= QUIET_SHARE:
        text += f"\n\nother work had up to {measured.foreign:.0%} of the machine"
    return text


def _details(measured: Measured) -> str:
    rows, raw_rate = [], measured.median(RAW)
    for name, values in measured.figures.items():
        spent = measured.microseconds.get(name, [])
        shares = [
            f"{statistics.median(each[kind] for each in spent):.2f}" if spent else "" for kind in (BROKER, JVM, PYTHON)
        ]
        median = statistics.median(values)
        of_raw = f"{median / raw_rate:.2f}" if raw_rate and name in (RAW, *COLUMNS, KAFKA) else ""
        rows.append((name, f"{median:,.0f}", of_raw, *shares))
    return table(("", "messages/s", "of raw", "broker µs/msg", "JVM µs/msg", "Python µs/msg"), rows)


def _kafka_rate(beside: kafka.SparkOnKafka, messages: int) -> float:
    return messages / beside.read()


def _pair(name: str, value: object) -> tuple[str, str]:
    return f"--{name}", str(value)


def main() -> int:
    """Run the parts, and print the tables."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.spark_source", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="part", help=f"one of {', '.join(PARTS)} (default: all)")
    parser.add_argument("--messages", type=int, default=2_000_000, help="messages in the topic (default 2000000)")
    parser.add_argument("--runs", type=int, default=3, help="counted runs of each (default 3)")
    parser.add_argument("--delay-seconds", type=float, default=20, help="how long delays are measured (default 20)")
    parser.add_argument("--quick", action="store_true", help="a short check: few messages, one run")
    parser.add_argument("--patience", type=float, default=20, help="seconds to wait for other work to end (default 20)")
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"unknown part {', '.join(sorted(unknown))}; expected some of {', '.join(PARTS)}")
    parts = options.parts or list(PARTS)
    if options.quick:
        options.messages, options.runs, options.delay_seconds, options.patience = 131_072, 1, 4, 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the started processes, like Ctrl-C
    prepare_archives()
    contenders.build(("java",))
    if "kafka" in parts:
        kafka.prepare()
    measured = compete(parts, options.messages, options.runs, options.delay_seconds, options.patience)
    print(report(measured, options.messages, options.runs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
