"""`python -m bench.spark_source`: the Spark source beside the raw puller on the same topic of a real RocketMQ.

Spark reads the whole topic into a sink that takes nothing, by `local[2]`; both take turns, after a run of each that
does not count. A rate is the messages divided by the time from the action's start to its end, planning included.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from bench import contenders
from bench.goals import table
from bench.machine import QUIET_SHARE, Usage, wait_until_quiet
from bench.scenarios import BODY_BYTES, BROKER_HEAP, QUEUES, TIMEOUT_SECONDS, WARM_UP_DRAINS, say
from rmqd.spark import register
from rmqd.spark.columns import DEFAULT_COLUMNS
from rmqd.spark.prepare import prepare
from tests.rocketmq import ClusterSpec, RealCluster
from tests.rocketmq.archives import prepare as prepare_archives

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPIC = "bench_spark"
COLUMNS = {
    "all columns": DEFAULT_COLUMNS,
    "without properties": tuple(name for name in DEFAULT_COLUMNS if name != "properties"),
    "body, queue_offset, store_timestamp": ("body", "queue_offset", "store_timestamp"),
}


def fill(nameserver: str, messages: int) -> None:
    """Store the messages by Java's producer."""
    arguments = {"namesrv": nameserver, "topic": TOPIC, "messages": messages, "bytes": BODY_BYTES, "queues": QUEUES}
    options = [
        part for name, value in {**arguments, "batch": 32, "inflight": 64}.items() for part in _pair(name, value)
    ]
    subprocess.run(
        [*contenders.java("Load"), *options],
        cwd=contenders.ROOT, env=contenders.environment(), timeout=TIMEOUT_SECONDS, check=True, stdout=subprocess.PIPE,
    )  # fmt: skip


def raw(nameserver: str, messages: int) -> float:
    """Messages per second of the raw puller."""
    command = [sys.executable, "-m", "bench.raw_puller", *_pair("namesrv", nameserver), *_pair("topic", TOPIC)]
    done = subprocess.run(
        [*command, *_pair("group", "bench_spark_raw"), *_pair("messages", messages)],
        cwd=contenders.ROOT, env=contenders.environment(), timeout=TIMEOUT_SECONDS, check=True, text=True,
        stdout=subprocess.PIPE,
    )  # fmt: skip
    rate: float = json.loads(done.stdout.splitlines()[-1])["msgs_per_s"]
    return rate


def read(spark: SparkSession, nameserver: str, columns: tuple[str, ...], messages: int) -> float:
    """Messages per second of one read by Spark."""
    frame = (
        spark.read.format("rocketmq").options(nameserver=nameserver, subscribe=TOPIC, columns=",".join(columns)).load()
    )
    began = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return messages / (time.perf_counter() - began)


def session() -> SparkSession:
    """Two cores, as in the goal."""
    from pyspark.sql import SparkSession

    prepare()
    builder = SparkSession.builder.master("local[2,4]").appName("rmqd bench")
    for key, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
    }.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    return spark


def compete(messages: int, runs: int, patience_seconds: float) -> str:
    """The table, for people."""
    rates: dict[str, list[float]] = {}
    foreign = 0.0
    with RealCluster.start(ClusterSpec(version="5.5.0", heap=BROKER_HEAP)) as cluster:
        pids = [node.pid for node in (cluster.broker, *cluster.nodes) if node.pid]
        say(f"filling {messages:,} messages of {BODY_BYTES} bytes")
        fill(cluster.nameserver, messages)
        for _ in range(WARM_UP_DRAINS):
            raw(cluster.nameserver, messages)
        spark = session()
        try:
            lines = {"raw puller": lambda: raw(cluster.nameserver, messages)} | {
                name: lambda columns=columns: read(spark, cluster.nameserver, columns, messages)
                for name, columns in COLUMNS.items()
            }
            for run in range(-1, runs):
                for name, measure in lines.items():
                    wait_until_quiet(patience_seconds)
                    before = Usage.now(pids)
                    rate = measure()
                    if run >= 0:
                        rates.setdefault(name, []).append(rate)
                        foreign = max(foreign, Usage.now(pids).foreign_share_since(before))
                    say(f"{name}: {rate:,.0f} messages/s")
        finally:
            spark.stop()
    return report(rates, messages, runs, foreign)


def report(rates: dict[str, list[float]], messages: int, runs: int, foreign: float) -> str:
    """Medians, and their shares of the raw puller's."""
    medians = {name: statistics.median(values) for name, values in rates.items()}
    rows = [(name, f"{rate:,.0f}", f"{rate / medians['raw puller']:.2f}") for name, rate in medians.items()]
    text = (
        f"medians of {runs} runs; {messages:,} messages of {BODY_BYTES} bytes in {QUEUES} queues, local[2], no-op sink"
        f"\n\n{table(('', 'messages/s', 'of raw'), rows)}"
    )
    if foreign >= QUIET_SHARE:
        text += f"\n\nother work had up to {foreign:.0%} of the machine"
    return text


def _pair(name: str, value: object) -> tuple[str, str]:
    return f"--{name}", str(value)


def main() -> int:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.spark_source", description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000, help="messages in the topic (default 1000000)")
    parser.add_argument("--runs", type=int, default=3, help="runs that count, of each (default 3)")
    parser.add_argument("--patience", type=float, default=20, help="seconds to wait for other work to end (default 20)")
    options = parser.parse_args()
    prepare_archives()
    contenders.build(("java",))
    print(compete(options.messages, options.runs, options.patience))
    return 0


if __name__ == "__main__":
    sys.exit(main())
