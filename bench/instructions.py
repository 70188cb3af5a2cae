"""`python -m bench.instructions CHECKOUT`: instructions per message, compared with an older checkout.

Times of the same code differ by 30 % on a machine with other guests; valgrind's instruction counts do not. Each drain
runs under valgrind (Debian's package `valgrind`), with the benchmark's configuration, from an embedded broker in a
separate process. Start and stop cost the same for few and many messages, so the difference of two drains is the cost of
the messages. `bench.pull_turn` gives the cost of a message that arrives alone.
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
PULL_TURN = "pull turn"
FEW_TURNS, MANY_TURNS = 100, 500  # few: without heartbeats, the broker removes a client after 2 minutes
VALGRIND = ("valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null")
END_SECONDS = 300.0
COUNTED = re.compile(r"I\s+refs:\s+([\d,]+)")


def per_message(checkout: Path, scenario: Scenario, nameserver: str) -> float:
    """Return the instructions per message, in drains from the first offset."""
    few, many = (drain(checkout, scenario, nameserver, messages) for messages in (FEW, MANY))
    return (many - few) / (MANY - FEW)


def drain(checkout: Path, scenario: Scenario, nameserver: str, messages: int) -> int:
    """Return the instructions of a daemon that handles `messages` messages. Raises RuntimeError if it fails."""
    with tempfile.TemporaryDirectory(prefix="rmqd-bench-") as folder:
        job = Job(
            contenders.BEFORE, nameserver, topic_of(messages), f"instructions_{time.time_ns()}", messages,
            scenario.consume_batch, scenario.pull_batch, Path(folder), END_SECONDS, orderly=scenario.orderly,
        )  # fmt: skip
        command = [*VALGRIND, sys.executable, "-P", "-m", "rmqd", "run", "--config", str(contenders.write_config(job))]
        environment = {**contenders.environment(checkout), "PYTHONHASHSEED": "0"}
        with (Path(folder) / "log").open("w+") as log:
            process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=log, text=True)
            assert process.stdout is not None
            try:
                process.stdout.readline()  # the handler writes it after the last message
                process.send_signal(signal.SIGTERM)
                process.wait(END_SECONDS)
            finally:
                process.kill()
                process.wait()
            log.seek(0)
            return _counted(checkout, process.returncode, log.read())


def per_turn(checkout: Path, nameserver: str) -> float:
    """Return the instructions per pull turn of one message."""
    few, many = (_turns(checkout, nameserver, turns) for turns in (FEW_TURNS, MANY_TURNS))
    return (many - few) / (MANY_TURNS - FEW_TURNS)


def _turns(checkout: Path, nameserver: str, turns: int) -> int:
    script = contenders.ROOT / "bench" / "pull_turn.py"  # older checkouts do not have it
    command = [*VALGRIND, sys.executable, "-P", str(script), nameserver, topic_of(turns), str(turns)]
    environment = {**contenders.environment(checkout), "PYTHONHASHSEED": "0"}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=END_SECONDS)
    return _counted(checkout, ended.returncode, ended.stderr)


def _counted(checkout: Path, code: int, said: str) -> int:
    found = COUNTED.search(said)
    if code or found is None:
        raise RuntimeError(f"rmqd of {checkout} ended with {code}:\n{said[-4000:]}")
    return int(found[1].replace(",", ""))


def topic_of(messages: int) -> str:
    """Return the name of the topic with `messages` messages."""
    return f"bench_{messages}"


@contextlib.contextmanager
def broker() -> Iterator[str]:
    """Run an embedded broker with the topics of both drains and both series of turns. Yields its address."""
    queues = {FEW: QUEUES, MANY: QUEUES, FEW_TURNS: 1, MANY_TURNS: 1}  # messages of a topic -> its queues
    topics = [word for messages, number in queues.items() for word in ("--topic", f"{topic_of(messages)}:{number}")]
    with embedded_broker(*topics) as (address, _):
        for messages in queues:
            body, count = "x" * BODY_BYTES, ("--count", str(messages))
            sending = [*contenders.rmqd(), "send", topic_of(messages), body, *count, "--nameserver", address]
            subprocess.run(sending, env=contenders.environment(), check=True, stdout=subprocess.DEVNULL)
        yield address


def main() -> int:
    """Count instructions, and print a table."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.instructions", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkout", type=Path, help="the older checkout; it needs no virtual environment")
    parser.add_argument("--runs", type=int, default=2, help="runs of each scenario, in turns (default 2)")
    options = parser.parse_args()
    if shutil.which(VALGRIND[0]) is None:
        parser.error("valgrind is missing; run apt-get install valgrind")
    rows = []
    drains = [scenario for scenario in SCENARIOS if scenario.name in NAMES]
    with broker() as nameserver:
        for scenario in (*drains, None):
            for _ in range(options.runs):
                before, now = (
                    per_turn(one, nameserver) if scenario is None else per_message(one, scenario, nameserver)
                    for one in (options.checkout.resolve(), contenders.ROOT)
                )
                name = PULL_TURN if scenario is None else scenario.name
                rows.append((name, f"{before:,.0f}", f"{now:,.0f}", f"{now / before:.3f}"))
                print(*rows[-1], file=sys.stderr, flush=True)
    print(table(("instructions per message", "before", "now", "ratio"), rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
