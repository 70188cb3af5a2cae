"""Churn: two rmqd daemons and a Java consumer in one group join, leave and are killed under load."""

from __future__ import annotations

import contextlib
import json
import random
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.integration.load import Load
from tests.nightly.campaigns.churn_verdict import ChurnVerdict, Window, judge
from tests.nightly.campaigns.members import Group, Roster
from tests.rocketmq import ClusterError, RealCluster, ledger, offsets
from tests.waiting import wait_until

SLOTS = ("rmqd-a", "rmqd-b", "java-c")
TOPIC, GROUP = "churn", "churn-group"
SETTLE_SECONDS = 30.0
DRAIN_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class ChurnPlan:
    """A run: how much is sent how fast, how long handlers take, and how long members stay unchanged between events."""

    name: str
    seed: int
    messages: int
    per_second: float
    usual_seconds: float = 0.01
    slow_every: int = 500
    slow_seconds: float = 1.0
    calm_seconds: tuple[float, float] = (3.0, 8.0)
    handover_timeout_seconds: float = 5.0
    queues: int = 8


@dataclass(frozen=True, slots=True)
class ChurnResult:
    """The result of a run: the verdict, the events by action and kind, and the times until membership settled."""

    plan: ChurnPlan
    verdict: ChurnVerdict
    events: Counter[str]
    settle_seconds: list[float]
    seconds: float

    def report(self) -> str:
        events = ", ".join(f"{count} {what}" for what, count in sorted(self.events.items()))
        settled = sorted(self.settle_seconds) or [0.0]
        return "\n".join(
            [
                f"churn {self.plan.name}, seed {self.plan.seed}, {self.seconds:.0f} s: {events}",
                f"settled after {settled[len(settled) // 2]:.1f} s (median), {settled[-1]:.1f} s (longest)",
                self.verdict.report(),
            ]
        )


class Churn:
    """One run in a directory. A new start with the same directory resumes an interrupted run."""

    def __init__(self, plan: ChurnPlan, cluster: RealCluster, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._plan = plan
        self._cluster = cluster
        self._directory = directory
        options = {
            "seconds": plan.usual_seconds,
            "slow_every": plan.slow_every,
            "slow_seconds": plan.slow_seconds,
        }
        settings = {"queue_handover_timeout": f"{plan.handover_timeout_seconds:g}s"}
        self._group = Group(
            cluster, f"{GROUP}-{plan.name}", f"{TOPIC}-{plan.name}", directory.absolute(), options, settings
        )
        self._roster = Roster(self._group)
        self._random = random.Random(plan.seed)
        self._tail = ledger.Tail()

    def run(self) -> ChurnResult:
        """Send all messages while members join and leave, drain, and judge."""
        begin = time.monotonic()
        self._cluster.create_topic(self._group.topic, self._plan.queues)
        (self._directory / "plan.json").write_text(json.dumps(asdict(self._plan)))
        sent_path = self._directory / "sent"
        already = len(ledger.read(sent_path))
        try:
            for slot in SLOTS:
                self._roster.join(slot)
            self._settle()
            load = Load(
                self._cluster,
                self._group.topic,
                self._plan.messages,
                per_second=self._plan.per_second,
                queues=self._plan.queues,
                first=already,
                path=sent_path,
            )
            with load:
                while not load.done:
                    self._rest(load)
                    if not load.done:
                        self._roster.step(SLOTS, self._random)
                        self._settle()
            self._drain(sent_path)
        finally:
            self._roster.kill_all()
        return self._result(time.monotonic() - begin)

    def _settle(self) -> None:
        """Wait until each queue has one owner, and record the time that it took."""
        begin = time.monotonic()
        try:
            wait_until(self._settled, "each queue has one owner, and each member its share", SETTLE_SECONDS)
        except AssertionError as error:
            error.add_note(f"the owners are {self._roster.owners()}")
            raise
        self._note("settled", time.monotonic() - begin)

    def _settled(self) -> bool:
        # a member that is joining or leaving may not answer
        with contextlib.suppress(AssertionError, ClusterError, OSError):
            if len(offsets.members(self._cluster, self._group.name)) != len(self._roster.running):
                return False
            owners = self._roster.owners()
            shares = Counter(name for names in owners.values() for name in names)
            equal = len(shares) == len(self._roster.running) and max(shares.values()) - min(shares.values()) <= 1
            return equal and all(len(names) == 1 for names in owners.values())
        return False

    def _rest(self, load: Load) -> None:
        """Keep members unchanged for a while. The messages handled meanwhile show whether a queue has two owners."""
        begin = time.time_ns() // 1000
        deadline = time.monotonic() + self._random.uniform(*self._plan.calm_seconds)
        while time.monotonic() < deadline and not load.done:
            time.sleep(0.1)
        with (self._directory / "windows.jsonl").open("a") as file:
            file.write(json.dumps(asdict(Window(begin, time.time_ns() // 1000))) + "\n")

    def _drain(self, sent_path: Path) -> None:
        sent = {entry.key for entry in ledger.read(sent_path)}
        # the ledger judges: an incomplete drain shows as lost messages
        with contextlib.suppress(AssertionError):
            wait_until(lambda: self._tail.finished(self._roster.ledgers()) >= sent, "all is handled", DRAIN_SECONDS)
            wait_until(lambda: self._lag() == 0, "all is committed", 10)

    def _lag(self) -> int:
        return offsets.lag(self._cluster, self._group.name, self._group.topic)

    def _note(self, what: str, seconds: float) -> None:
        with (self._directory / "notes.jsonl").open("a") as file:
            file.write(json.dumps({"what": what, "seconds": seconds}) + "\n")

    def _result(self, seconds: float) -> ChurnResult:
        sent = {entry.key for entry in ledger.read(self._directory / "sent")}
        events = self._roster.events()
        verdict = judge(
            sent,
            ledger.read(*self._roster.ledgers()),
            events,
            [
                Window(int(values["begin_micros"]), int(values["end_micros"]))
                for values in _lines(self._directory / "windows.jsonl")
            ],
            self._plan.handover_timeout_seconds,
        )
        return ChurnResult(
            self._plan,
            verdict,
            Counter(f"{event.kind} {event.action}" for event in events if event.action != "left"),
            [values["seconds"] for values in _lines(self._directory / "notes.jsonl")],
            seconds,
        )


def _lines(path: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
