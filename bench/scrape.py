"""`python -m bench.scrape`: how long requests block the event loop of a daemon with thousands of queues.

The daemon runs in this process, with an embedded broker in another. A task runs in every turn of the loop and measures
the CPU time of the loop's thread since the last turn. Other processes hardly affect this time. The first row is the
daemon without a request.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from bench.embedded import embedded_broker
from bench.goals import table
from rmqd.daemon.daemon import Daemon, RunOptions, build_host, read_config
from rmqd.daemon.groups.supervisor import LoopMonitor
from rmqd.daemon.http.http_endpoint import address_of, listen_on
from rmqd.runtime.clock import SystemClock
from rmqd.runtime.event_loop import enable_gc_after_start, run_in_loop
from rmqd.runtime.logs.log_setup import configure_logging

QUEUES_OF_A_TOPIC = 500
IDLE_SECONDS = 10.0
START_SECONDS = 300.0
GZIP = {"accept-encoding": "gzip"}


class LoopProbe:
    """The longest stretch of the loop between two of its turns, in CPU time."""

    def __init__(self) -> None:
        self.longest_seconds = self._at = 0.0

    async def run(self) -> None:
        """Measure until cancelled."""
        while True:
            await asyncio.sleep(0)
            now = time.thread_time()
            self.longest_seconds, self._at = max(self.longest_seconds, now - self._at), now

    def begin(self) -> None:
        """Start a new measurement."""
        self.longest_seconds, self._at = 0.0, time.thread_time()


def fetch(address: str, path: str, headers: dict[str, str]) -> bytes:
    """Return the body of a response."""
    with urllib.request.urlopen(
        urllib.request.Request(f"http://{address}{path}", headers=headers), timeout=60
    ) as found:
        return bytes(found.read())


async def measure(config: Path, queues: int, runs: int) -> list[tuple[str, ...]]:
    """Run the daemon, and return the rows of the table."""
    clock, monitor = SystemClock(), LoopMonitor(SystemClock())
    options = RunOptions(config=config)
    root, access = read_config(options)
    sock = listen_on("127.0.0.1:0")
    address = address_of(sock)
    daemon = Daemon(root, access, options, build_host(root, options, clock, monitor), monitor, clock, sock)
    running = asyncio.create_task(daemon.run())
    async with asyncio.timeout(START_SECONDS):
        while await owned(daemon) < queues:  # noqa: ASYNC110 a queue has no event for this
            await asyncio.sleep(1)
    enable_gc_after_start()
    probe = LoopProbe()
    probing = asyncio.create_task(probe.run())
    requests = {
        "/metrics, per_queue: auto": ("auto", "/metrics"),
        "/metrics, per_queue: always": ("always", "/metrics"),
        "/api/v1/status": ("auto", "/api/v1/status"),
        "page with the group open": ("auto", "/live?open=wide"),
        "/readyz": ("auto", "/readyz"),
    }
    probe.begin()
    await asyncio.sleep(IDLE_SECONDS)
    rows: list[tuple[str, ...]] = [("no request", f"{probe.longest_seconds * 1000:.1f}", "", "")]
    for name, (per_queue, path) in requests.items():
        metrics = root.metrics.model_copy(update={"per_queue": per_queue})
        daemon.config = root.model_copy(update={"metrics": metrics})
        await asyncio.to_thread(fetch, address, path, {})  # imports and templates
        longest = []
        for _ in range(runs):
            probe.begin()
            body = await asyncio.to_thread(fetch, address, path, {})
            longest.append(probe.longest_seconds * 1000)
        small = await asyncio.to_thread(fetch, address, path, GZIP)
        rows.append((name, f"{sorted(longest)[runs // 2]:.1f}", f"{len(body):,}", f"{len(small):,}"))
        print(*rows[-1], file=sys.stderr, flush=True)
    probing.cancel()
    daemon.host.force_stop()
    await running
    return rows


async def owned(daemon: Daemon) -> int:
    """Return the number of queues that are pulled."""
    view = await daemon.host.view()
    return sum(
        queue.pulled_from is not None for one in view.processes for group in one.groups for queue in group.queues
    )


def main() -> int:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.scrape", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--queues", type=int, default=4000, help="queues of the group (default 4000)")
    parser.add_argument("--runs", type=int, default=5, help="requests of each kind (default 5)")
    options = parser.parse_args()
    topics = [f"scrape_{number}" for number in range(options.queues // QUEUES_OF_A_TOPIC)]
    words = [word for topic in topics for word in ("--topic", f"{topic}:{QUEUES_OF_A_TOPIC}")]
    with tempfile.TemporaryDirectory(prefix="rmqd-bench-") as folder, embedded_broker(*words) as (nameserver, _):
        config = Path(folder) / "rmqd.yaml"
        group = {"subscriptions": dict.fromkeys(topics, "*"), "handler": {"plugin": "log"}}
        config.write_text(json.dumps({"nameserver": nameserver, "state_dir": folder, "groups": {"wide": group}}))
        configure_logging("error", "json")
        rows = run_in_loop(measure(config, options.queues, options.runs))
    print(table(("request", "longest stretch, ms (median)", "bytes", "bytes with gzip"), rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
