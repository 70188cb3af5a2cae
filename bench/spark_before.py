"""`python -m bench.spark_before CHECKOUT`: compare Spark's source and sink with an older checkout of this project.

Both use one real RocketMQ and take turns. Each part has separate sessions:

- source: the whole topic into a no-op sink, with all columns and with three;
- queues: CPU seconds of Spark's processes for a read of 1,000 queues with a message each, here with `maxPartitions`;
- batches: the median micro-batch of 8 queues with a message each, and of a source with 8 partitions in memory;
- sink: rows of 256 bytes, in two tasks.

The older checkout needs no virtual environment: it runs in this one.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Final

from bench import contenders, spark_source
from bench.goals import table
from bench.machine import wait_until_quiet
from bench.scenarios import BROKER_HEAP, TIMEOUT_SECONDS, WARM_UP_DRAINS, say
from bench.spark_probe import BATCHES, QUEUES
from tests.rocketmq import ClusterSpec, RealCluster
from tests.rocketmq.archives import prepare as prepare_archives

PROBE_SECONDS: Final = 1800.0  # an old checkout takes minutes to read 1,000 queues
MANY: Final = 1000
TOPICS: Final = {"source": spark_source.TOPIC, "queues": "bench_many", "batches": "bench_batches", "sink": "bench_sink"}
OPTIONS: Final = {"queues": {"maxPartitions": "4"}}
"""Options of this checkout, which the older one may not know."""

Figures = dict[str, list[float]]


def prepare(cluster: RealCluster, part: str, messages: int) -> None:
    """Create and fill a part's topic."""
    topic = TOPICS[part]
    if part == "source":
        spark_source.fill(cluster.nameserver, messages)
        for _ in range(WARM_UP_DRAINS):
            spark_source.raw(cluster.nameserver, messages)
        return
    queues = MANY if part == "queues" else QUEUES
    cluster.create_topic(topic, queues=queues)
    if part == "sink":
        return
    each = BATCHES if part == "batches" else 1
    load = {"namesrv": cluster.nameserver, "topic": topic, "messages": queues * each, "bytes": 256, "queues": queues}
    arguments = [word for name, value in load.items() for word in (f"--{name}", str(value))]
    subprocess.run(
        [*contenders.java("Load"), *arguments, "--batch", "1", "--inflight", "64"],
        cwd=contenders.ROOT, env=contenders.environment(), timeout=TIMEOUT_SECONDS, check=True, stdout=subprocess.PIPE,
    )  # fmt: skip


def probe(checkout: Path, part: str, nameserver: str, messages: int, runs: int, options: dict[str, str]) -> Figures:
    """Return the figures of one part in one checkout, run by run."""
    script = Path(__file__).with_name("spark_probe.py")
    done = subprocess.run(
        [sys.executable, "-P", str(script), part, "--nameserver", nameserver, "--topic", TOPICS[part],
         "--runs", str(runs), "--messages", str(messages), "--options", json.dumps(options)],
        cwd=checkout, env={**contenders.environment(checkout), "PYTHONPATH": os.fspath(checkout)},
        timeout=PROBE_SECONDS, check=True, text=True, stdout=subprocess.PIPE,
    )  # fmt: skip
    found: Figures = {}
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            for name, value in json.loads(line).items():
                found.setdefault(name, []).append(value)
    return found


def main() -> int:
    """Run the parts, and print a table."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.spark_before",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("checkout", type=Path, help="the older checkout")
    parser.add_argument("parts", nargs="*", metavar="part", help=f"one of {', '.join(TOPICS)} (default: all)")
    parser.add_argument("--messages", type=int, default=2_000_000, help="messages of the source's topic")
    parser.add_argument("--runs", type=int, default=3, help="counted runs of each (default 3)")
    parser.add_argument("--patience", type=float, default=20, help="seconds to wait for other work to end (default 20)")
    options = parser.parse_args()
    if unknown := set(options.parts) - set(TOPICS):
        parser.error(f"unknown part {', '.join(sorted(unknown))}; expected some of {', '.join(TOPICS)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the started processes, like Ctrl-C
    prepare_archives()
    contenders.build(("java",))
    rows = []
    with contextlib.ExitStack() as ending:
        spec = ClusterSpec(version="5.5.0", heap=BROKER_HEAP, is_measured=True)
        cluster = ending.enter_context(RealCluster.start(spec))
        for part in options.parts or TOPICS:
            prepare(cluster, part, options.messages)
            both: dict[str, Figures] = {}
            for which, checkout in (("before", options.checkout.resolve()), ("now", contenders.ROOT)):
                wait_until_quiet(options.patience)
                more = OPTIONS.get(part, {}) if which == "now" else {}
                both[which] = probe(checkout, part, cluster.nameserver, options.messages, options.runs, more)
                say(f"{part}, {which}: {both[which]}")
            for name, values in both["now"].items():
                before, now = statistics.median(both["before"][name]), statistics.median(values)
                rows.append((f"{part}: {name}", f"{before:,.2f}", f"{now:,.2f}", f"{now / before:.2f}"))
    print(f"medians of {options.runs} runs\n\n{table(('', 'before', 'now', 'ratio'), rows)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
