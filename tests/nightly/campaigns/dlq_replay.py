"""`rmqd dlq replay`, killed -9 several times: its group alone handles each dead letter again, and only once."""

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
"""The range of the share of letters settled before a kill."""
UNDER_WAY_SHARE = 0.8
"""The share of kills that wait until letters are being sent."""
WATCH_SECONDS = 10.0
"""How long to wait for repetitions. The delay of a send-back is one second."""
REASONS = 7


@dataclass(frozen=True, slots=True)
class DlqReplayPlan:
    """A run. The members start before the replay. In an orderly group they hold locks."""

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
    """The result of a run.

    After a kill it is unknown whether the `under_way` letters were sent. `handled` counts how often the group handled
    each key again, `neighbour` how often the other group handled it.
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
        """Letters that the group did not handle again."""
        return self.plan.letters - len(self.handled)

    @property
    def twice(self) -> int:
        """Letters that the group handled again more than once."""
        return sum(times > 1 for times in self.handled.values())

    @property
    def strayed(self) -> int:
        """Messages that the other group received more than once."""
        return sum(times > 1 for times in self.neighbour.values())

    @property
    def passed(self) -> bool:
        """Whether the group alone handled each letter again once, and no letter is left."""
        return not (self.lost or self.twice or self.strayed or self.left) and self.kills == self.plan.kills

    def report(self) -> str:
        return (
            f"dlq_replay {self.plan.name}, seed {self.plan.seed}, {self.seconds:.0f} s: {self.plan.letters} letters by "
            f"{', '.join(self.ways)}; {self.kills} kills with {self.under_way} under way; the last run sent "
            f"{self.sent} and found {self.found} that had gone out; lost {self.lost}, twice {self.twice}, in another "
            f"group {self.strayed}; left {self.left}, held by brokers {self.held}"
        )

    def cells(self) -> list[object]:
        """Return the row of the table of figures."""
        counts = (self.lost, self.twice, self.strayed, self.left)
        run = (self.plan.name, self.plan.seed, self.plan.letters, self.kills, self.under_way)
        return [*run, *counts, f"{self.seconds:.0f}"]


class DlqReplay:
    """One run in a new directory."""

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
        """Dead-letter all messages, replay with kills, and judge."""
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
        """Dead-letter all messages of the group."""

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
        """Kill the command at each planned share. Return the number of kills and of letters being sent."""
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
                time.sleep(self._random.uniform(0, 0.05))  # before, during or after the next requests
                kills += process.poll() is None
            finally:
                process.kill()
                process.wait()
            under_way += sum(len(window["keys"]) for window in self._marks()["windows"].values())
        return kills, under_way

    def _settled(self) -> int:
        """Return how many letters the command has recorded as settled."""
        return sum(high - low for queue in self._marks()["queues"] for low, high in queue["settled"])

    def _marks(self) -> Any:
        for path in (self._directory / "state" / "dlq").rglob("marks.json"):
            return json.loads(path.read_text())
        return {"queues": [], "windows": {}}

    def _wait_for_all(self, ledgers: Iterable[Path]) -> None:
        tail, paths = ledger.Tail(), list(ledgers)
        with contextlib.suppress(AssertionError):  # the ledger judges: missing messages show as lost
            wait_until(lambda: len(tail.finished(paths)) == self._plan.letters, "all are handled", HANDLE_SECONDS)

    def _command(self, *arguments: str) -> Any:
        """Run `rmqd dlq` to its end and return its JSON."""
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
