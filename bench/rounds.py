"""`python -m bench.rounds [--record]`: instructions of the periodic work of an idle group, compared with the record.

Groups of two sizes on a scripted broker run under valgrind, with a stopped clock. Each round runs a few and
many times in forks of this process, and the difference is the cost of the rounds. The two groups differ by the cost of
160 queues. `rounds.json` has the recorded instructions by version of Python.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Final

import structlog

from bench.instructions import COUNTED, VALGRIND
from rmqd.codes import RequestCode, ResponseCode
from rmqd.consumer.health.group_status import RecentAttempts
from rmqd.consumer.health.watchdog import Watchdog
from rmqd.consumer.offsets.persistence import OFFSET_WATCH_SECONDS, OffsetPersistence
from rmqd.consumer.push_consumer import PushConsumer
from tests.client.peer import Peer
from tests.clock import ManualClock
from tests.consumer.groups import TOPIC
from tests.consumer.members import member
from tests.consumer.scripted_broker import ScriptedBroker
from tests.waiting import eventually

SIZES: Final = (40, 200)  # queues of the groups
FEW, MANY = 10, 60
TOLERATED_SHARE: Final = 0.05
RECORD: Final = Path(__file__).with_name("rounds.json")


def _commit_round(consumer: PushConsumer) -> Callable[[], Awaitable[object]]:
    return OffsetPersistence(consumer.context, consumer.assigned).commit_all  # each round includes all queues


def _watchdog_round(consumer: PushConsumer) -> Callable[[], Awaitable[object]]:
    results = {"handler": RecentAttempts(consumer.context.clock)}
    return Watchdog(consumer.context, consumer.assigned, results).poll


ROUNDS: Final = {"commit": _commit_round, "watchdog": _watchdog_round}


@contextlib.asynccontextmanager
async def idle_group(size: int) -> AsyncIterator[PushConsumer]:
    """Run a group with this many idle queues."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    clock = ManualClock()
    async with Peer() as peer:
        broker = ScriptedBroker(peer)
        queues = broker.create_topic(TOPIC, size)
        peer.on(RequestCode.PULL_MESSAGE, lambda _: broker.nothing(queues[0], ResponseCode.PULL_NOT_FOUND, 0))
        async with member(peer.address, lambda batch: None, clock=clock) as one:
            await eventually(lambda: len(one.consumer.assigned) > size, "all queues are assigned, and a retry queue")
            await clock.advance(OFFSET_WATCH_SECONDS + 10)
            yield one.consumer


def run() -> None:
    """Run each round a few and many times, each in a fork of a process with an idle group."""
    with asyncio.Runner() as runner:
        for size in SIZES:
            group = idle_group(size)
            consumer = runner.run(group.__aenter__())
            for make in ROUNDS.values():
                work = make(consumer)
                for times in (FEW, MANY):
                    if (process := os.fork()) == 0:
                        runner.run(_repeat(work, times))
                        os._exit(0)
                    os.waitpid(process, 0)
            runner.run(group.__aexit__(None, None, None))


async def _repeat(work: Callable[[], Awaitable[object]], times: int) -> None:
    for _ in range(times):
        await work()


def instructions() -> dict[str, int]:
    """Return the instructions of each round of each group. Raises RuntimeError if a process fails."""
    command = [*VALGRIND, sys.executable, "-m", "bench.rounds", "--run"]
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, env=environment, check=False)
    counts = [int(count.replace(",", "")) for count in COUNTED.findall(done.stderr)]
    if done.returncode or len(counts) != 2 * len(ROUNDS) * len(SIZES) + 1:  # the last one is this process
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-4000:]}")
    costs = [round((many - few) / (MANY - FEW)) for few, many in zip(counts[::2], counts[1::2], strict=False)]
    return dict(zip((f"{name} of {size} queues" for size in SIZES for name in ROUNDS), costs, strict=True))


def recorded() -> dict[str, int]:
    """Return the recorded instructions for this version of Python; empty if there are none."""
    return dict(json.loads(RECORD.read_text()).get(_version(), {}))


def _version() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def main() -> int:
    """Print each round's instructions. Returns 1 if one is more than 5 % above its record."""
    parser = argparse.ArgumentParser(prog="python -m bench.rounds", description=__doc__)
    parser.add_argument("--record", action="store_true", help="write the instructions to rounds.json")
    parser.add_argument("--run", action="store_true", help="only run the rounds, without counting")
    options = parser.parse_args()
    if options.run:
        run()
        return 0
    before, now = recorded(), instructions()
    for name, count in now.items():
        print(f"{name:25} {count:8,} instructions, {before.get(name, 0):8,} recorded")
    if options.record:
        everything = json.loads(RECORD.read_text()) | {_version(): now}
        RECORD.write_text(json.dumps(everything, indent=1) + "\n")
        return 0
    return int(any(count > before.get(name, count) * (1 + TOLERATED_SHARE) for name, count in now.items()))


if __name__ == "__main__":
    sys.exit(main())
