"""`python -m bench.instructions CHECKOUT`: what rmqd executes for a message, beside an older checkout of this project.

Times of the same code differ by 30 % on a machine with other guests; the instructions that valgrind counts do not. Each
drain runs under it (Debian's package `valgrind`), with the configuration of the benchmark, from an embedded broker in a
process of its own. A start and an end are the same for few messages and for many, so the difference of two drains is
what messages take.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench import contenders
from bench.embedded import embedded_broker
from bench.goals import table
from bench.job import Job
from bench.scenarios import BODY_BYTES, QUEUES, SCENARIOS, Scenario

NAMES = ("batch 1", "batch 32", "orderly 1")
FEW, MANY = 8_000, 24_000
VALGRIND = ("valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null")
END_SECONDS = 300.0
COUNTED = re.compile(r"I\s+refs:\s+([\d,]+)")


def per_message(checkout: Path, scenario: Scenario, nameserver: str) -> float:
    """The instructions of a message, where all are handled from the first offset on."""
    few, many = (drain(checkout, scenario, nameserver, messages) for messages in (FEW, MANY))
    return (many - few) / (MANY - FEW)


def drain(checkout: Path, scenario: Scenario, nameserver: str, messages: int) -> int:
    """The instructions of a daemon that handles so many messages and ends. Raises RuntimeError where it does not."""
    with tempfile.TemporaryDirectory(prefix="rmqd-bench-") as folder:
        job = Job(
            contenders.BEFORE, nameserver, topic_of(messages), f"instructions_{time.time_ns()}", messages,
            scenario.consume_batch, scenario.pull_batch, Path(folder), END_SECONDS, orderly=scenario.orderly,
        )  # fmt: skip
        command = [*VALGRIND, sys.executable, "-m", "rmqd", "run", "--config", str(contenders.write_config(job))]
        environment = {**contenders.environment(checkout), "PYTHONHASHSEED": "0"}
        with (Path(folder) / "log").open("w+") as log:
            process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=log, text=True)
            assert process.stdout is not None
            try:
                process.stdout.readline()  # which the handler writes when it has all
                process.send_signal(signal.SIGTERM)
                process.wait(END_SECONDS)
            finally:
                process.kill()
                process.wait()
            log.seek(0)
            said = log.read()
    found = COUNTED.search(said)
    if process.returncode or found is None:
        raise RuntimeError(f"the daemon of {checkout} ended with {process.returncode}:\n{said[-4000:]}")
    return int(found[1].replace(",", ""))


def topic_of(messages: int) -> str:
    """The topic that has so many."""
    return f"bench_{messages}"


@contextlib.contextmanager
def broker() -> Iterator[str]:
    """The address of an embedded RocketMQ with both topics."""
    topics = [word for messages in (FEW, MANY) for word in ("--topic", f"{topic_of(messages)}:{QUEUES}")]
    with embedded_broker(*topics) as (address, _):
        for messages in (FEW, MANY):
            body, count = "x" * BODY_BYTES, ("--count", str(messages))
            sending = [*contenders.rmqd(), "send", topic_of(messages), body, *count, "--nameserver", address]
            subprocess.run(sending, env=contenders.environment(), check=True, stdout=subprocess.DEVNULL)
        yield address


def main() -> int:
    """Count, and print a table."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.instructions", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkout", type=Path, help="the older one; it needs no environment of its own")
    parser.add_argument("--runs", type=int, default=2, help="of each scenario, in turns (default 2)")
    options = parser.parse_args()
    if shutil.which(VALGRIND[0]) is None:
        parser.error("there is no valgrind here: apt-get install valgrind")
    rows = []
    with broker() as nameserver:
        for scenario in (scenario for scenario in SCENARIOS if scenario.name in NAMES):
            for _ in range(options.runs):
                before = per_message(options.checkout.resolve(), scenario, nameserver)
                now = per_message(contenders.ROOT, scenario, nameserver)
                rows.append((scenario.name, f"{before:,.0f}", f"{now:,.0f}", f"{now / before:.3f}"))
                print(*rows[-1], file=sys.stderr, flush=True)
    print(table(("instructions a message", "before", "now", "now over before"), rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
