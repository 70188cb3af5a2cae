"""`--scenario idle`: the CPU, memory and time until all queues are pulled, for groups without messages.

Each daemon has an embedded broker in a separate process. With another checkout (`--before`) both daemons run at the
same time, so that a busy machine affects both alike. The window is a multiple of 30 s, the longest interval of a
periodic request.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from bench import contenders
from bench.contest import ContestError
from bench.embedded import embedded_broker
from bench.goals import table
from tests.rocketmq.spec import free_port

NAME = "idle"
WINDOW_SECONDS, START_SECONDS, POLL_SECONDS = 60.0, 300.0, 0.25
SETTLE_SECONDS = 40.0  # for 25 s after an acquisition, the owner reads the stored offset before each commit
QUEUES_OF_TOPIC = 1000


@dataclass(frozen=True, slots=True)
class IdleCase:
    """Groups of equal size, and the goals for CPU (percent of a core), memory and start."""

    name: str
    groups: int
    queues: int
    max_percent: float | None = None
    max_rss_mb: float | None = None
    max_start_seconds: float | None = None

    @property
    def topics(self) -> dict[str, int]:
        """The number of queues by topic."""
        size = min(self.queues, QUEUES_OF_TOPIC)
        return {f"idle_{number}": size for number in range(self.queues // size)}


CASES = (
    IdleCase("8 queues", 1, 8, max_rss_mb=42),
    IdleCase("1,000 queues", 1, 1_000),
    IdleCase("4,000 queues", 1, 4_000, 1.5, 110, 30),
    IdleCase("10,000 queues", 1, 10_000, 4, 200),
    IdleCase("200 groups", 200, 4, 1.5, 90, 1.5),
)


class IdleDaemon:
    """A daemon of one checkout with the groups of a case, measured from outside."""

    def __init__(self, checkout: Path, case: IdleCase, nameserver: str, folder: Path) -> None:
        (folder / "idle_handler.py").write_text("async def handle(batch):\n    pass\n")
        group = {"subscriptions": dict.fromkeys(case.topics, "*"), "handler": {"plugin": "idle_handler:handle"}}
        config = folder / "rmqd.yaml"
        whole = {
            "nameserver": nameserver,
            "http": {"listen": f"127.0.0.1:{free_port(set(), (0,))}"},
            "state_dir": str(folder / "state"),
            "groups": {f"idle_{number}": group for number in range(case.groups)},
        }
        config.write_text(yaml.safe_dump(whole))
        self._log = folder / "log"
        self._queues = case.groups * (sum(case.topics.values()) + 1)  # each group has a retry topic
        environment = contenders.environment(checkout)
        environment["PYTHONPATH"] += f":{folder}"
        self._began = time.monotonic()
        self.start_seconds = 0.0
        with self._log.open("w") as log:
            command = [*contenders.rmqd(checkout), "run", "--config", str(config)]
            self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    def has_started(self) -> bool:
        """Return whether all queues are pulled. Raises ContestError if the daemon has ended."""
        if self.process.poll() is not None:
            raise ContestError(f"the daemon ended with {self.process.returncode}:\n{self._log.read_text()[-4000:]}")
        if not self.start_seconds and self._log.read_text().count("queue.started") >= self._queues:
            self.start_seconds = time.monotonic() - self._began
        return self.start_seconds > 0

    def cpu_seconds(self) -> float:
        """Return the CPU time of all threads."""
        times = Path(f"/proc/{self.process.pid}/task").glob("*/schedstat")
        return sum(int(one.read_text().split()[0]) for one in times) / 1e9

    def rss_mb(self) -> float:
        """Return the resident memory."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))


def measure(runs: int, before: Path | None) -> str:
    """Return a Markdown table of all cases."""
    rows = []
    for case in CASES:
        for _ in range(runs):
            for row in _run(case, [contenders.ROOT, *([] if before is None else [before])]):
                print(*row, file=sys.stderr, flush=True)
                rows.append(row)
    return table(("idle", "checkout", "CPU %", "goal", "RSS MB", "goal", "start s", "goal"), rows)


def _run(case: IdleCase, checkouts: list[Path]) -> list[tuple[str, ...]]:
    topics = [word for name, queues in case.topics.items() for word in ("--topic", f"{name}:{queues}")]
    with contextlib.ExitStack() as stack:
        daemons = []
        for checkout in checkouts:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rmqd-bench-")))
            nameserver, _ = stack.enter_context(embedded_broker(*topics))
            daemons.append(stack.enter_context(_running(IdleDaemon(checkout, case, nameserver, folder))))
        end = time.monotonic() + START_SECONDS
        while sum(one.has_started() for one in daemons) < len(daemons):
            if time.monotonic() > end:
                raise ContestError(f"{case.name}: not all queues were pulled within {START_SECONDS:.0f} s")
            time.sleep(POLL_SECONDS)
        time.sleep(SETTLE_SECONDS)
        spent = [one.cpu_seconds() for one in daemons]
        time.sleep(WINDOW_SECONDS)
        spent = [one.cpu_seconds() - earlier for one, earlier in zip(daemons, spent, strict=True)]
        return [
            (
                case.name,
                "now" if checkout == contenders.ROOT else contenders.BEFORE,
                *_figure(100 * seconds / WINDOW_SECONDS, case.max_percent, ".2f"),
                *_figure(daemon.rss_mb(), case.max_rss_mb, ".0f"),
                *_figure(daemon.start_seconds, case.max_start_seconds, ".1f"),
            )
            for checkout, daemon, seconds in zip(checkouts, daemons, spent, strict=True)
        ]


@contextlib.contextmanager
def _running(daemon: IdleDaemon) -> Iterator[IdleDaemon]:
    try:
        yield daemon
    finally:
        daemon.process.kill()
        daemon.process.wait()


def _figure(value: float, goal: float | None, form: str) -> tuple[str, str]:
    return f"{value:{form}}", "" if goal is None else f"≤ {goal:g}{'' if value <= goal else ' MISSED'}"
