"""Crash: an rmqd member and a Java consumer are killed -9 under load, and their repeated messages are counted.

Each has its own group on the same topic, and both are killed at the same moments. The group's next member starts at
the committed offsets, so it repeats the messages that the killed member had finished and not committed.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.integration.load import Load
from tests.nightly.campaigns.members import JAVA, RMQD, Group, Roster
from tests.rocketmq import RealCluster, ledger, offsets
from tests.waiting import wait_until

TOPIC = "crash"
QUEUES = 8
SECONDS_BETWEEN = (10.0, 16.0)  # more than two periods of commits
LOCK_SECONDS = 65.0  # the broker keeps the locks of an orderly member that was killed for 60 s
SAMPLE_SECONDS = 0.25
DRAIN_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class CrashPlan:
    """A run: how often both members are killed, and how many messages are sent per second."""

    seed: int
    kills: int
    orderly: bool = False
    per_second: float = 400.0

    @property
    def name(self) -> str:
        """The run's name in the table."""
        return "orderly" if self.orderly else "concurrent"

    @property
    def handler_seconds(self) -> float:
        """How long a call takes. An orderly member has to catch up after it has waited for the locks."""
        return 0.001 if self.orderly else 0.01

    def pauses(self) -> list[float]:
        """Return the seconds before each kill, and after the last one."""
        chance = random.Random(self.seed)
        lock_seconds = LOCK_SECONDS if self.orderly else 0.0
        return [lock_seconds + chance.uniform(*SECONDS_BETWEEN) for _ in range(self.kills + 1)]


@dataclass(frozen=True, slots=True)
class CrashResult:
    """The figures of a run. `again` and `uncommitted` are by kind of member."""

    plan: CrashPlan
    sent: int
    lost: Mapping[str, int]
    again: Mapping[str, list[int]]
    """For each successor, the number of repeated messages that a killed member had finished."""
    uncommitted: Mapping[str, list[int]]
    """Samples of the number of finished but uncommitted messages."""

    @property
    def passed(self) -> bool:
        """Nothing is lost, and rmqd handles at most as many messages again as Java's client does."""
        median = {kind: statistics.median(counts) for kind, counts in self.again.items()}
        return not any(self.lost.values()) and median[RMQD] <= median[JAVA]

    def report(self) -> str:
        """Return the figures for the person who ran the campaign."""
        lines = [f"crash {self.plan.name}, seed {self.plan.seed}: {self.sent} messages"]
        for kind in (RMQD, JAVA):
            lines.append(
                f"  {kind}: lost {self.lost[kind]}; handled again {self.again[kind]}; "
                f"finished and not committed: median, 90th percentile {self._uncommitted(kind)}"
            )
        return "\n".join(lines)

    def cells(self) -> list[object]:
        """Return the row of docs/proof/campaigns.md, without date and commit."""
        by_kind = [[str(self.again[kind])[1:-1], self._uncommitted(kind)] for kind in (RMQD, JAVA)]
        return [self.plan.name, self.plan.seed, self.sent, *by_kind[0], *by_kind[1], sum(self.lost.values())]

    def _uncommitted(self, kind: str) -> str:
        deciles = statistics.quantiles(self.uncommitted[kind], n=10)
        return f"{deciles[4]:.0f}, {deciles[8]:.0f}"


class Crash:
    """One run in a directory."""

    def __init__(self, plan: CrashPlan, cluster: RealCluster, directory: Path) -> None:
        directory.mkdir(parents=True)
        self._plan = plan
        self._cluster = cluster
        self._directory = directory.absolute()
        self._topic = f"{TOPIC}-{plan.name}"
        self._rosters = {kind: self._roster(kind) for kind in (RMQD, JAVA)}
        self._tails = {kind: ledger.Tail() for kind in self._rosters}
        self._uncommitted: dict[str, list[int]] = {kind: [] for kind in self._rosters}

    def run(self) -> CrashResult:
        """Send until the last kill, then wait until all messages are handled."""
        pauses = self._plan.pauses()
        messages = round(2 * sum(pauses) * self._plan.per_second)  # more than the run can send
        self._cluster.create_topic(self._topic, QUEUES)
        try:
            self._join()
            with Load(
                self._cluster, self._topic, messages, per_second=self._plan.per_second, path=self._directory / "sent"
            ):
                for pause in pauses[:-1]:
                    self._sample(pause)
                    self._kill()
                    self._join()
                self._sample(pauses[-1])
            sent = {entry.key for entry in ledger.read(self._directory / "sent")}
            for kind in self._rosters:
                wait_until(lambda kind=kind: self._finished(kind) >= sent, f"{kind} handles all", DRAIN_SECONDS)  # type: ignore[misc]
        finally:
            self._kill()
        return CrashResult(
            self._plan,
            len(sent),
            {kind: len(sent - self._finished(kind)) for kind in self._rosters},
            {kind: self._again(kind) for kind in self._rosters},
            self._uncommitted,
        )

    def _roster(self, kind: str) -> Roster:
        directory = self._directory / kind
        directory.mkdir()
        options = {"seconds": self._plan.handler_seconds, "slow_every": 0, "slow_seconds": 0.0}
        settings = {"consume_mode": "orderly"} if self._plan.orderly else {}
        peer_options: dict[str, object] = {"orderly": "true"} if self._plan.orderly else {}
        return Roster(
            Group(self._cluster, self._group_name(kind), self._topic, directory, options, settings, peer_options)
        )

    def _join(self) -> None:
        for kind, roster in self._rosters.items():
            roster.join(f"{kind}-a")

    def _kill(self) -> None:
        for roster in self._rosters.values():
            roster.kill_all()

    def _finished(self, kind: str) -> set[str]:
        return self._tails[kind].finished(self._rosters[kind].ledgers())

    def _sample(self, seconds: float) -> None:
        """Record four times a second how many messages are finished and not committed."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for kind in self._rosters:
                finished = len(self._finished(kind))
                committed = sum(offsets.committed(self._cluster, self._group_name(kind), self._topic).values())
                self._uncommitted[kind].append(max(0, finished - committed))
            time.sleep(SAMPLE_SECONDS)

    def _group_name(self, kind: str) -> str:
        return f"crash-{self._plan.name}-{kind}"

    def _again(self, kind: str) -> list[int]:
        """For each kill, the messages that the successor finished and an earlier member had finished."""
        found, before = [], set[str]()
        for path in self._rosters[kind].ledgers():
            keys = {entry.key for entry in ledger.read(path) if entry.event == ledger.FINISH}
            found.append(len(keys & before))
            before |= keys
        return found[1:]
