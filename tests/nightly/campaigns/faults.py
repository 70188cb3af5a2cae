"""Fault runs: two rmqd daemons consume one group under load during one of seven faults of the cluster."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.nightly.campaigns.commits import CommitWatch, LogLine, log_lines
from tests.nightly.campaigns.fault_kinds import Fault
from tests.nightly.campaigns.fault_scene import Scene
from tests.nightly.campaigns.fault_verdict import FELL, STARTS, FaultVerdict, judge
from tests.nightly.campaigns.members import Group, RmqdMember
from tests.rocketmq import RealCluster, ledger, offsets
from tests.rocketmq.ledger import FINISH
from tests.waiting import wait_until

MEMBERS = ("rmqd-a", "rmqd-b")
DRAIN_SECONDS = 120.0
SETTLE_SECONDS = 60.0
# events that no fault may cause in a member's log
BAD_EVENTS = ("group.failed", "offset.corrected", "offset.illegal")


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """A run of one fault. `per_second` applies to each broker; the fault lasts at least `outage_seconds`."""

    seed: int
    per_second: float = 150.0
    outage_seconds: float = 60.0
    usual_seconds: float = 0.01
    queues: int = 4
    calm_messages: int = 1500
    """The number of messages handled before the fault, and again after it."""
    damaged_share: float = 0.01
    settings: dict[str, Any] = field(default_factory=dict)
    """Keys of the group."""


@dataclass(frozen=True, slots=True)
class FaultResult:
    """The result of a run. `problems` are broken promises outside of the verdict."""

    fault: str
    seed: int
    verdict: FaultVerdict
    seconds: float
    lifted_seconds: float
    """From the first messages handled after the fault until the brokers had all commits of the members."""
    stood_still_seconds: float
    """The longest standstill of a healthy broker while another one was broken."""
    damaged: Counter[str]
    problems: list[str]

    @property
    def passed(self) -> bool:
        """Whether every promise held."""
        return self.verdict.passed and not self.problems

    def report(self) -> str:
        damaged = ", ".join(f"{count} frames {what}" for what, count in sorted(self.damaged.items()))
        lines = [
            f"fault {self.fault}, seed {self.seed}, {self.seconds:.0f} s{f': {damaged}' if damaged else ''}",
            f"commits are stored again after {self.lifted_seconds:.1f} s",
            f"what was well stood still for {self.stood_still_seconds:.1f} s at most",
            self.verdict.report(),
            *(f"PROBLEM: {problem}" for problem in self.problems),
        ]
        return "\n".join(lines)


class Faults:
    """One run of one fault in a new directory."""

    def __init__(self, fault: Fault, plan: FaultPlan, cluster: RealCluster, directory: Path, name: str) -> None:
        """`name` is the topic and, with a suffix, the group. Both must be unused."""
        directory.mkdir(parents=True)
        self._fault = fault
        self._plan = plan
        self._directory = directory.absolute()
        self._scene = Scene(
            cluster,
            f"{name}-group",
            name,
            plan.queues,
            self._directory,
            plan.outage_seconds,
            plan.damaged_share,
        )
        self._problems: list[str] = []

    def run(self) -> FaultResult:
        """Start two members and load, cause the fault, wait for the recovery, and judge."""
        begin = time.monotonic()
        scene, plan = self._scene, self._plan
        scene.cluster.create_topic(scene.topic, plan.queues + 1)
        with self._fault.way(scene.cluster, plan.seed) as (nameserver, line):
            scene.line = line
            group = Group(
                scene.cluster,
                scene.group,
                scene.topic,
                self._directory,
                {"seconds": plan.usual_seconds},
                plan.settings,
                nameserver=nameserver,
            )
            lifted_seconds = 0.0
            try:
                lifted_seconds = self._consume(group)
            except AssertionError as error:  # a wait timed out; the ledger shows the effect
                self._problems.append(" ".join([str(error), *getattr(error, "__notes__", [])]))
            finally:
                for member in scene.members.values():
                    member.kill()
        return self._result(lifted_seconds, time.monotonic() - begin)

    def _consume(self, group: Group) -> float:
        scene = self._scene
        for name in MEMBERS:
            scene.members[name] = RmqdMember(group, name)
        processes = {name: member.process for name, member in scene.members.items()}
        scene.watch = CommitWatch(processes, scene.group, scene.topic, self._directory / "commits.jsonl")
        wait_until(self._shared, "each member has its half of the queues", SETTLE_SECONDS)
        with scene.watch:
            with scene.sending(self._plan.per_second):
                self._rest()
                scene.send_idle()
                self._fault.strike(scene)
                scene.goes_on()
                lifted_seconds = scene.wait_lifted()
                self._rest()
            self._drain()
            for member in scene.members.values():
                member.leave()
            self._problems += scene.below(scene.highest())
        return lifted_seconds

    def _shared(self) -> bool:
        scene = self._scene
        shares = [len(list(member.queues())) for member in scene.members.values()]
        return sum(shares) == len(offsets.queues(scene.cluster, scene.topic)) and max(shares) - min(shares) <= 1

    def _rest(self) -> None:
        scene = self._scene
        enough = len(scene.finished()) + self._plan.calm_messages
        wait_until(lambda: len(scene.finished()) >= enough, "members go on without a fault", SETTLE_SECONDS)

    def _drain(self) -> None:
        scene = self._scene
        # the ledger judges: an incomplete drain shows as lost messages
        with contextlib.suppress(AssertionError):
            wait_until(lambda: scene.finished() >= scene.sent(), "all is handled", DRAIN_SECONDS)
        try:
            wait_until(self._has_no_lag, "all is committed", SETTLE_SECONDS)
        except AssertionError as error:
            self._problems.append(str(error))

    def _has_no_lag(self) -> bool:
        return offsets.lag(self._scene.cluster, self._scene.group, self._scene.topic) == 0

    def _result(self, lifted_seconds: float, seconds: float) -> FaultResult:
        scene = self._scene
        assert scene.watch is not None
        entries = ledger.read(*scene.ledgers())
        log: list[LogLine] = []
        for name, member in scene.members.items():
            log += log_lines(name, member.process.events(), STARTS, FELL)
            bad = Counter(event["event"] for event in member.process.events() if event.get("event") in BAD_EVENTS)
            self._problems += [f"{count} {event} in the log of {name}" for event, count in bad.items()]
        return FaultResult(
            self._fault.name,
            self._plan.seed,
            judge(scene.sent(), entries, scene.watch.commits, log),
            seconds,
            lifted_seconds,
            max((standstill(entries, *window) for window in scene.windows), default=0.0),
            scene.line.damaged if scene.line else Counter(),
            self._problems,
        )


def standstill(entries: list[ledger.Entry], broker: str, begin: float, end: float) -> float:
    """Return the longest time without a finished message of this broker between these moments (Unix)."""
    moments = [entry.at_micros / 1e6 for entry in entries if entry.event == FINISH and entry.broker == broker]
    within = [begin, *(at for at in moments if begin < at < end), end]
    return max(later - earlier for earlier, later in itertools.pairwise(within))
