"""POP: a group drains a topic while its members are killed, and then switches to PULL and back under load."""

from __future__ import annotations

import contextlib
import json
import random
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.integration.load import Load
from tests.nightly.campaigns.members import KILL, Group, RmqdMember, Roster
from tests.nightly.campaigns.pop_verdict import PopVerdict, judge
from tests.nightly.campaigns.sending import send_numbered
from tests.rocketmq import RealCluster, ledger
from tests.waiting import wait_until

SLOTS = ("rmqd-a", "rmqd-b", "java-c")
TOPIC, GROUP = "pop", "pop-group"
POP, PULL = "POP", "PULL"
START_SECONDS = 60.0
DRAIN_SECONDS = 300.0
KILLED_BETWEEN = (0.02, 0.9)
"""The range of the share of messages handled before a kill."""
FOLLOW_SECONDS = 60.0
"""Members query the group's consume mode every 20 s, as Java's do. They must follow within this time."""


@dataclass(frozen=True, slots=True)
class PopPlan:
    """A run: the messages drained while members are killed, and the messages sent while the mode is switched.

    `switches` is how often the mode changes, from POP; an even number ends with POP.
    """

    name: str
    seed: int
    drained: int
    kills: int
    switched: int = 0
    switches: int = 0
    per_second: float = 200.0
    slots: tuple[str, ...] = SLOTS
    usual_seconds: float = 0.02
    invisible_seconds: float = 10.0
    revive_seconds: float = 15.0
    """RocketMQ redelivers messages some seconds after their invisible time."""
    calm_seconds: tuple[float, float] = (1.0, 4.0)
    queues: int = 8


@dataclass(frozen=True, slots=True)
class PopResult:
    """The result of a run: the verdicts over both parts, and the events of the members."""

    plan: PopPlan
    drain: PopVerdict
    switch: PopVerdict | None
    kills: int
    switches: int
    drain_seconds: float
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether both parts passed."""
        return self.drain.passed and (self.switch is None or self.switch.passed)

    def report(self) -> str:
        lines = [
            f"pop {self.plan.name}, seed {self.plan.seed}, {self.seconds:.0f} s",
            f"drained in {self.drain_seconds:.0f} s, {self.kills} members killed with -9",
            self.drain.report(),
        ]
        if self.switch is not None:
            lines += [f"switched {self.switches} times under load", self.switch.report()]
        return "\n".join(lines)

    def cells(self) -> list[object]:
        """Return the row of the table of figures."""
        repeated = self.drain.repeated + (Counter() if self.switch is None else self.switch.repeated)
        causes = "; ".join(f"{count}: {cause}" for cause, count in repeated.most_common())
        lost = f"{len(self.drain.lost)}, {len(self.switch.lost) if self.switch else 0}"
        return [
            self.plan.seed,
            f"{self.drain.sent}, {self.switch.sent if self.switch else 0}",
            self.kills,
            self.switches,
            f"{self.drain_seconds:.0f}, {self.seconds:.0f}",
            lost,
            causes or "none",
        ]


class PopCampaign:
    """One run in a new directory."""

    def __init__(self, plan: PopPlan, cluster: RealCluster, directory: Path) -> None:
        directory.mkdir(parents=True)
        self._plan = plan
        self._cluster = cluster
        self._directory = directory.absolute()
        self._random = random.Random(plan.seed)
        invisible_ms = round(plan.invisible_seconds * 1000)
        self._group = Group(
            cluster,
            f"{GROUP}-{plan.name}",
            f"{TOPIC}-{plan.name}",
            self._directory,
            {"seconds": plan.usual_seconds},
            {
                "consume_mode": "pop",
                "pop_invisible_time": f"{plan.invisible_seconds:g}s",
                "consume_from_where": "first_offset",  # a backlog is drained
            },
            {"pop": "true", "pop_invisible_millis": invisible_ms},
        )
        self._roster = Roster(self._group)
        self._tail = ledger.Tail()
        self._switches: list[int] = []

    def run(self) -> PopResult:
        """Drain with kills, then switch under load, and judge both parts."""
        begin, plan = time.monotonic(), self._plan
        (self._directory / "plan.json").write_text(json.dumps(asdict(plan)))
        self._cluster.create_topic(self._group.topic, plan.queues)
        self._switch(POP)
        send_numbered(self._cluster.nameserver, self._group.topic, plan.drained)
        sent = {f"m{number}" for number in range(plan.drained)}
        switched: PopVerdict | None = None
        try:
            drain_seconds = self._drain_with_kills(sent)
            self._watch_for_repetitions()
            drained = judge(sent, self._entries(), self._roster.events())
            if plan.switches:
                switched = self._switch_under_load()
            for slot in list(self._roster.running):
                self._roster.leave(slot)
        finally:
            self._roster.kill_all()
        kills = sum(event.action == KILL for event in self._roster.events())
        return PopResult(plan, drained, switched, kills, len(self._switches), drain_seconds, time.monotonic() - begin)

    def _drain_with_kills(self, sent: set[str]) -> float:
        begin = time.monotonic()
        with ThreadPoolExecutor(len(self._plan.slots)) as joining:  # at once: one alone would drain much first
            list(joining.map(self._roster.join, self._plan.slots))
        # the drained share decides, so that a fast machine has as many kills as a slow one
        for share in sorted(self._random.uniform(*KILLED_BETWEEN) for _ in range(self._plan.kills)):
            at_least = min(share * len(sent), len(sent) - 1)
            wait_until(lambda: len(self._finished()) >= at_least, f"{at_least:.0f} are handled", DRAIN_SECONDS)  # noqa: B023 - asked at once
            victim = self._random.choice(list(self._roster.running))
            self._roster.kill(victim)
            self._roster.join(victim)
        # the ledger judges: an incomplete drain shows as lost messages
        with contextlib.suppress(AssertionError):
            wait_until(lambda: self._finished() >= sent, "all is handled", DRAIN_SECONDS)
        return time.monotonic() - begin

    def _watch_for_repetitions(self) -> None:
        """Wait for the last possible repetition: no invisible time starts any more."""
        time.sleep(self._plan.invisible_seconds + self._plan.revive_seconds)

    def _switch_under_load(self) -> PopVerdict:
        plan, sent_path, begin = self._plan, self._directory / "sent", time.time_ns() // 1000
        load = Load(
            self._cluster,
            self._group.topic,
            plan.drained + plan.switched,
            per_second=plan.per_second,
            queues=plan.queues,
            first=plan.drained,
            path=sent_path,
        )
        with load:
            for number in range(plan.switches):
                self._switch(POP if number % 2 else PULL)
                self._switches.append(time.time_ns() // 1000)
                self._follow(POP if number % 2 else PULL)
            load.wait(plan.switched / plan.per_second * 3)
        sent = {entry.key for entry in ledger.read(sent_path)}
        # the ledger judges: an incomplete drain shows as lost messages
        with contextlib.suppress(AssertionError):
            wait_until(lambda: self._finished() >= sent, "all is handled", DRAIN_SECONDS)
            self._watch_for_repetitions()
        entries = [entry for entry in self._entries() if entry.at_micros >= begin and entry.key in sent]
        return judge(sent, entries, self._roster.events(), self._switches)

    def _switch(self, mode: str) -> None:
        """Switch the mode with mqadmin, as administrators do."""
        arguments = ("-t", self._group.topic, "-g", self._group.name, "-m", mode, "-q", "0")
        self._cluster.admin("setConsumeMode", "-b", self._cluster.broker.address, *arguments)

    def _follow(self, mode: str) -> None:
        """Wait until every rmqd member uses this mode, and keep it for a while."""
        for member in self._roster.running.values():
            if isinstance(member, RmqdMember):
                wait_until(lambda: self._mode(member) == mode, f"{member.name} reads by {mode}", FOLLOW_SECONDS)  # noqa: B023 - asked at once
        time.sleep(self._random.uniform(*self._plan.calm_seconds))

    def _mode(self, member: RmqdMember) -> str:
        """Return POP if all its queues of the topic are popped, PULL if none is, else an empty string."""
        queues = {queue.queue_id for queue in member.queues()}
        return POP if queues == {-1} else PULL if queues and -1 not in queues else ""

    def _finished(self) -> set[str]:
        return self._tail.finished(self._roster.ledgers())

    def _entries(self) -> list[ledger.Entry]:
        return ledger.read(*self._roster.ledgers())
