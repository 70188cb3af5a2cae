"""`python -m bench.floods`: flood a daemon with a scripted peer, one case after the other."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from bench.contenders import ROOT
from bench.floods.cases import CASES, Case, Stage
from bench.floods.flooded import SETTLE_SECONDS, TOPIC, Flooded, FloodedError, flooded
from rmqd.codes import RequestCode
from tests.client.peer import Peer
from tests.consumer.scripted_broker import ScriptedBroker

DEADLINE_SECONDS = 60.0
NOT_DONE = "not done"


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one case with one daemon."""

    kept_ms: float
    rss_mib: float
    seconds: float
    remark: str

    def row(self) -> str:
        """Return its cells of the table."""
        return f"{self.kept_ms:10,.0f} | {self.rss_mib:8,.0f} | {self.seconds:7.1f} | {self.remark:24}"


async def run(case: Case, checkout: Path) -> Result:
    """Start a daemon, flood it, and watch it until it is done. Raises FloodedError if it does not start."""
    with tempfile.TemporaryDirectory() as folder:
        async with Peer() as peer:
            broker = ScriptedBroker(peer)
            (queue,) = broker.create_topic(TOPIC)
            async with flooded(peer.address, case.settings, checkout, Path(folder)) as daemon:
                await peer.received(RequestCode.PULL_MESSAGE)
                await asyncio.sleep(SETTLE_SECONDS)
                return await _flood(case, Stage(peer, broker, queue), daemon)


async def _flood(case: Case, stage: Stage, daemon: Flooded) -> Result:
    rss = 0.0
    daemon.begin()
    began = time.monotonic()
    flood, watch = asyncio.ensure_future(case.begin(stage)), asyncio.create_task(daemon.watch_over())
    try:
        await asyncio.wait((flood, watch), timeout=DEADLINE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        seconds, kept_ms = time.monotonic() - began, daemon.kept_ms
        remark = flood.result() if flood.done() else NOT_DONE
        rss = daemon.rss_mib(peak=True)
        if watch.done():
            watch.result()
    except FloodedError as error:
        remark = str(error)
    finally:
        flood.cancel()
        watch.cancel()
        await asyncio.gather(flood, watch, return_exceptions=True)
    return Result(kept_ms, rss, seconds, remark)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    root = argparse.ArgumentParser(prog="python -m bench.floods", description=__doc__)
    root.add_argument(
        "--before",
        type=Path,
        metavar="DIR",
        help="another checkout with a .venv, whose rmqd runs in turns with this one",
    )
    root.add_argument("--only", default="", metavar="TEXT", help="run only cases with this text in their names")
    root.add_argument("--json", type=Path, metavar="FILE", help="also write the figures as JSON")
    return root


def main(arguments: list[str] | None = None) -> int:
    """Run the cases and print their table as they end."""
    options = parser().parse_args(arguments)
    checkouts = {"here": ROOT} | ({"before": options.before.resolve()} if options.before else {})
    print(f"| {'case':28} | rmqd   | blocked ms | peak MiB | seconds | {'':24} |")
    print(f"|{'-' * 30}|--------|------------|----------|---------|{'-' * 26}|", flush=True)
    figures: dict[str, dict[str, object]] = {}
    for case in CASES:
        if options.only not in case.name:
            continue
        for name, checkout in reversed(checkouts.items()):
            result = asyncio.run(run(case, checkout))
            print(f"| {case.name:28} | {name:6} | {result.row()} |", flush=True)
            figures.setdefault(case.name, {})[name] = [result.kept_ms, result.rss_mib, result.seconds, result.remark]
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
