"""`rmqd dlq replay`, killed -9 several times: each dead letter is handled again once, by its group alone."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rmqd import DeadLetter
from rmqd.handler_api.batch import Batch
from tests.cli.command import TOP
from tests.consumer.members import member
from tests.nightly.campaigns.members import Group, Roster
from tests.nightly.campaigns.sending import send_numbered
from tests.rocketmq import ClusterError, RealCluster, ledger, offsets
from tests.waiting import eventually, wait_until

SLOTS = ("rmqd-a", "rmqd-b", "java-c")
GIVE_UP_SECONDS = 240.0
HANDLE_SECONDS = 240.0
KILLED_BETWEEN = (0.01, 0.9)
"""The shares of the letters that are settled when the command is killed."""
UNDER_WAY_SHARE = 0.8
"""Of the kills: those that wait for letters to be under way."""
WATCH_SECONDS = 10.0
"""How long is waited for what may come again: the delay of a send-back is a second."""
REASONS = 7


@dataclass(frozen=True, slots=True)
class DlqReplayPlan:
    """A run. An orderly group has members, which hold locks, from before the replay on."""

    name: str
    seed: int
    letters: int
    kills: int
    orderly: bool
    slots: tuple[str, ...] = SLOTS
    queues: int = 4
    watch_seconds: float = WATCH_SECONDS


@dataclass(frozen=True, slots=True)
class DlqReplayResult:
    """What a run gave.

    `under_way` are letters of which nobody knew, after a kill, whether they had gone out. `handled` is how often the
    group handled each key again, `neighbour` how often the other group handled each.
    """

    plan: DlqReplayPlan
    sent: int
    found: int
    kills: int
    under_way: int
    left: int
    held: int
    ways: tuple[str, ...]
    handled: Counter[str]
    neighbour: Counter[str]
    seconds: float

    @property
    def lost(self) -> int:
        """Letters that were not handled again."""
        return self.plan.letters - len(self.handled)

    @property
    def twice(self) -> int:
        """Letters that were handled more than once again."""
        return sum(times > 1 for times in self.handled.values())

    @property
    def strayed(self) -> int:
        """Messages that the other group got more than once."""
        return sum(times > 1 for times in self.neighbour.values())

    @property
    def passed(self) -> bool:
        """Whether each was handled again once, by the group alone, and none is left."""
        return not (self.lost or self.twice or self.strayed or self.left) and self.kills == self.plan.kills

    def report(self) -> str:
        """For the person who ran it."""
        return (
            f"dlq_replay {self.plan.name}, seed {self.plan.seed}, {self.seconds:.0f} s: {self.plan.letters} letters by "
            f"{', '.join(self.ways)}; {self.kills} kills with {self.under_way} under way; the last run sent "
            f"{self.sent} and found {self.found} that had gone out; lost {self.lost}, twice {self.twice}, in another "
            f"group {self.strayed}; left {self.left}, held by brokers {self.held}"
        )

    def cells(self) -> list[object]:
        """For the table of figures."""
        counts = (self.lost, self.twice, self.strayed, self.left)
        run = (self.plan.name, self.plan.seed, self.plan.letters, self.kills, self.under_way)
        return [*run, *counts, f"{self.seconds:.0f}"]


class DlqReplay:
    """One run in a directory of its own."""

    def __init__(self, plan: DlqReplayPlan, cluster: RealCluster, directory: Path) -> None:
        directory.mkdir(parents=True)
        self._plan = plan
        self._cluster = cluster
        self._directory = directory.absolute()
        self._random = random.Random(plan.seed)
        self._mode = "orderly" if plan.orderly else "concurrently"
        name = f"dlq-{plan.name}-{plan.seed}"
        settings = {"consume_mode": self._mode, "consume_from_where": "first_offset"}
        peer: dict[str, object] = {"orderly": True} if plan.orderly else {}
        self._group = Group(cluster, f"{name}-group", name, self._directory / "group", {"seconds": 0}, settings, peer)
        self._other = Group(cluster, f"{name}-other", name, self._directory / "other", {"seconds": 0}, settings)

    def run(self) -> DlqReplayResult:
        """Give all up, replay with kills, and judge."""
        begin, plan = time.monotonic(), self._plan
        (self._directory / "plan.json").write_text(json.dumps(asdict(plan)))
        self._cluster.create_topic(self._group.topic, plan.queues)
        send_numbered(self._cluster.nameserver, self._group.topic, plan.letters)
        asyncio.run(self._give_up())
        for group in (self._group, self._other):
            group.directory.mkdir()
        members, neighbours = Roster(self._group), Roster(self._other)
        try:
            neighbours.join("rmqd-n")
            tail = ledger.Tail()
            wait_until(
                lambda: len(tail.finished(neighbours.ledgers())) == plan.letters,
                "the other group has all",
                HANDLE_SECONDS,
            )
            for slot in plan.slots:
                members.join(slot)
            kills, under_way = self._replay_with_kills()
            last = self._command("replay", self._group.name, "--yes", "-o", "json")
            self._wait_for_all(members.ledgers())
            time.sleep(plan.watch_seconds)
            handled, neighbour = _handled(members.ledgers()), _handled(neighbours.ledgers())
        finally:
            members.kill_all()
            neighbours.kill_all()
        (listed,) = [one for one in self._command("list", "-o", "json") if one["group"] == self._group.name]
        return DlqReplayResult(
            plan,
            last["sent"],
            last["found"],
            kills,
            under_way,
            listed["left"],
            listed["messages"],
            tuple(sorted(set(last["ways"].values()))),
            handled,
            neighbour,
            time.monotonic() - begin,
        )

    async def _give_up(self) -> None:
        """Have the group dead-letter everything."""

        async def refuse(batch: Batch) -> None:
            raise DeadLetter(f"reason {int((batch[0].keys or 'm0')[1:]) % REASONS}")

        options: dict[str, Any] = {"consume_mode": self._mode, "consume_from_where": "first_offset", "concurrency": 64}
        async with member(
            self._cluster.nameserver,
            refuse,
            group=self._group.name,
            subscriptions=[self._group.topic],
            persist_consumer_offset_interval_seconds=0.5,
            **options,
        ):
            await eventually(lambda: self._dead_letters() == self._plan.letters, "all are given up", GIVE_UP_SECONDS)
            await eventually(
                lambda: offsets.lag(self._cluster, self._group.name, self._group.topic) == 0, "all is committed"
            )

    def _dead_letters(self) -> int:
        with contextlib.suppress(ClusterError):
            return sum(offsets.stored(self._cluster, f"%DLQ%{self._group.name}").values())
        return 0

    def _replay_with_kills(self) -> tuple[int, int]:
        """Kill the command each time it has come so far. Returns how often, and how many letters were under way."""
        kills = under_way = 0
        for share in sorted(self._random.uniform(*KILLED_BETWEEN) for _ in range(self._plan.kills)):
            process = subprocess.Popen(
                self._arguments("replay", self._group.name, "--yes"), env=_environment(), stdout=subprocess.DEVNULL
            )
            try:
                while self._settled() < share * self._plan.letters and process.poll() is None:
                    time.sleep(0.002)
                if self._random.random() < UNDER_WAY_SHARE:
                    while not self._marks()["windows"] and process.poll() is None:
                        time.sleep(0.002)
                time.sleep(self._random.uniform(0, 0.05))  # before, in the middle of or behind the next requests
                kills += process.poll() is None
            finally:
                process.kill()
                process.wait()
            under_way += sum(len(window["keys"]) for window in self._marks()["windows"].values())
        return kills, under_way

    def _settled(self) -> int:
        """How many letters the command has noted by now."""
        return sum(high - low for queue in self._marks()["queues"] for low, high in queue["settled"])

    def _marks(self) -> Any:
        for path in (self._directory / "state" / "dlq").rglob("marks.json"):
            return json.loads(path.read_text())
        return {"queues": [], "windows": {}}

    def _wait_for_all(self, ledgers: Iterable[Path]) -> None:
        tail, paths = ledger.Tail(), list(ledgers)
        with contextlib.suppress(AssertionError):  # who decides is the ledger: what is missing shows as lost
            wait_until(lambda: len(tail.finished(paths)) == self._plan.letters, "all are handled", HANDLE_SECONDS)

    def _command(self, *arguments: str) -> Any:
        """Run `rmqd dlq` to its end; its JSON."""
        done = subprocess.run(
            self._arguments(*arguments), env=_environment(), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def _arguments(self, *arguments: str) -> list[str]:
        common = ("-n", self._cluster.nameserver, "--set", f"state_dir={self._directory / 'state'}")
        return [sys.executable, "-m", "rmqd", "dlq", *arguments, *common]


def _handled(ledgers: Iterable[Path]) -> Counter[str]:
    return Counter(entry.key for entry in ledger.read(*ledgers) if entry.event == ledger.START)


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RMQD_")}
    return kept | {"PYTHONPATH": f"{TOP}:{TOP / 'handlers'}"}
