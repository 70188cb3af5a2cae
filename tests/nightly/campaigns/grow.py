"""Grow: a topic gets more queues, and a second broker, while messages are sent; groups have RocketMQ's defaults.

A new group begins at the end of the queues. So all groups exist and consume first; then every new message is theirs,
in any queue and whenever a member sees that queue. Producers see new queues first and use them at once.
"""

from __future__ import annotations

import contextlib
import json
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.integration.rmqd_process import RmqdProcess, ledger_group
from tests.nightly.campaigns.grow_load import GrowingLoad, Place
from tests.nightly.campaigns.members import Group, Roster
from tests.nightly.campaigns.verdict import Handlings
from tests.rocketmq import RealCluster, ledger, offsets
from tests.rocketmq.ledger import FINISH
from tests.waiting import wait_until

TOPIC: Final = "grow"
RUNNING, AWAY, SPARK, MOVED = "grow-running", "grow-away", "grow-spark", "grow-moved"
GROUPS: Final = (RUNNING, AWAY, SPARK, MOVED)
JAVAS_DEFAULT: Final[dict[str, object]] = {"from_where": "CONSUME_FROM_LAST_OFFSET"}
MEMBERS: Final = ("rmqd-a", "rmqd-b", "java-c")
SENDERS: Final = 2
BEGIN_SECONDS: Final = 240.0  # Spark starts in 10 s, and in minutes on a busy machine
END_SECONDS: Final = 90.0


@dataclass(frozen=True, slots=True)
class GrowPlan:
    """A run: the groups, the rate, and how long the topic keeps its shape."""

    seed: int
    groups: Sequence[str] = GROUPS
    per_second: float = 2000.0
    stay_seconds: tuple[float, float] = (6.0, 12.0)
    queues: Sequence[int] = (1, 4, 8, 16)
    second_broker: bool = True
    drain_seconds: float = 300.0


@dataclass(frozen=True, slots=True)
class GrowResult:
    """The result of a run."""

    plan: GrowPlan
    sent: int
    lost: Mapping[str, Sequence[str]]
    """Lost keys by group."""
    handled_again: Counter[str]
    not_committed: Mapping[str, int]
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether no message is lost, and all are committed."""
        return self.sent > 0 and not any(self.lost.values()) and not any(self.not_committed.values())

    def report(self) -> str:
        lines = [f"grow, seed {self.plan.seed}, {self.seconds:.0f} s: sent {self.sent}"]
        lines += [
            f"  {group}: lost {len(lost)}{''.join(f' {key}' for key in lost[:10])}, handled again "
            f"{self.handled_again[group]}, not committed at the end {self.not_committed[group]}"
            for group, lost in self.lost.items()
        ]
        return "\n".join(lines)

    def cells(self) -> list[object]:
        """The row of docs/proof/campaigns.md."""
        steps = " → ".join(map(str, self.plan.queues)) + (" + a broker" if self.plan.second_broker else "")
        return [
            self.plan.seed,
            self.sent,
            steps,
            ", ".join(group.removeprefix("grow-") for group in self.lost),
            ", ".join(str(len(lost)) for lost in self.lost.values()),
            ", ".join(str(self.handled_again[group]) for group in self.lost),
            f"{self.seconds:.0f}",
        ]


@dataclass(slots=True)
class Grow:
    """One run in a directory. A new start with the same directory resumes the interrupted stage."""

    plan: GrowPlan
    cluster: RealCluster
    directory: Path
    _rosters: list[Roster] = field(default_factory=list)
    _daemons: dict[str, RmqdProcess] = field(default_factory=dict)

    def run(self) -> GrowResult:
        """Start the groups, send while the topic grows, drain, and judge."""
        begin = time.monotonic()
        self.directory = self.directory.absolute()
        self.directory.mkdir(parents=True, exist_ok=True)
        chance = random.Random(self.plan.seed)
        stages = [(queues, 1) for queues in self.plan.queues]
        if self.plan.second_broker:
            stages.append((self.plan.queues[-1], 2))
        stays = [chance.uniform(*self.plan.stay_seconds) for _ in stages]
        done = self._done()
        self._shape(*stages[done if done < len(stages) else -1])
        try:
            self._found(is_first=done == 0)
            with contextlib.ExitStack() as sending:
                loads = [sending.enter_context(load) for load in self._loads()]
                for number, (queues, brokers) in enumerate(stages):
                    if number >= done:
                        self._shape(queues, brokers)
                        places = self._places()
                        for load in loads:
                            load.places = places
                        assert not loads[0].stop.wait(stays[number])
                        assert all(load.thread.is_alive() for load in loads), "the load has ended"
                        self._write_done(number + 1)
            self._return()
            return self._result(begin)
        except AssertionError as error:
            for daemon in self._daemons.values():
                error.add_note(daemon.tail())
            raise
        finally:
            for roster in self._rosters:
                roster.kill_all()
            for daemon in self._daemons.values():
                daemon.kill()

    # --- the topic

    def _shape(self, queues: int, brokers: int) -> None:
        self.cluster.create_topic(TOPIC, queues, brokers=self.cluster.masters[:brokers])

    def _places(self) -> list[Place]:
        return [(address, queue.queue_id) for queue, address in offsets.queues(self.cluster, TOPIC).items()]

    def _loads(self) -> list[GrowingLoad]:
        """Each load waits for every response, so one load alone does not reach 2,000 messages a second."""
        first = 1 + max((int(entry.key[1:]) for entry in ledger.read(self._sent_path)), default=-1)
        return [
            GrowingLoad(
                TOPIC,
                self._places(),
                per_second=self.plan.per_second / SENDERS,
                first=first + number,
                step=SENDERS,
                path=self._sent_path,
            )
            for number in range(SENDERS)
        ]

    # --- the groups

    def _found(self, *, is_first: bool) -> None:
        """Start every group. The groups that are absent later stop again."""
        if RUNNING in self.plan.groups:
            group = Group(self.cluster, RUNNING, TOPIC, self._folder(RUNNING), {"seconds": 0.0}, {}, JAVAS_DEFAULT)
            self._rosters.append(Roster(group))
            for slot in MEMBERS:
                self._rosters[-1].join(slot)
        if SPARK in self.plan.groups:
            self._start(SPARK, "spark")
        for name in (AWAY, MOVED):
            if name in self.plan.groups and is_first:
                self._start(name, "local")
                self._end(name)

    def _return(self) -> None:
        """Restart the absent groups, and wait until every group has handled all messages."""
        if AWAY in self.plan.groups:
            self._start(AWAY, "local")
        if MOVED in self.plan.groups:
            self._start(MOVED, "spark")
        for name in self.plan.groups:
            sent, tail = {entry.key for entry in ledger.read(self._sent_path)}, ledger.Tail()
            with contextlib.suppress(AssertionError):  # the ledger judges: missing messages show as lost
                wait_until(
                    lambda tail=tail, name=name, sent=sent: tail.finished(self._ledgers(name)) >= sent,  # type: ignore[misc]
                    f"{name} has handled all",
                    self.plan.drain_seconds,
                )
                wait_until(lambda name=name: not self._lag(name), f"{name} has committed all", 30)  # type: ignore[misc]

    def _start(self, name: str, engine: str) -> None:
        folder = self._folder(name)
        number = len(list(folder.glob("*.ledger")))
        settings: dict[str, Any] = {"engine": engine, "handler_options": {"seconds": 0.0}}
        if engine == "spark":
            settings["spark"] = {"master": "local[1]", "checkpoint": str(folder / "checkpoint")}
        path = folder / f"{engine}-{number}.ledger"
        path.touch()
        config = ledger_group(TOPIC, path, f"{engine}-{number}", **settings)
        daemon = RmqdProcess(folder / f"daemon-{number}", self.cluster.nameserver, {name: config})
        daemon.start()
        self._daemons[name] = daemon
        daemon.wait_ready(BEGIN_SECONDS)

        def is_running() -> bool:
            groups = daemon.status()["groups"]
            return bool(groups) and groups[0]["state"] == "running"

        wait_until(is_running, f"{name} runs", BEGIN_SECONDS)
        wait_until(lambda: self._is_founded(name), f"{name} has offsets", BEGIN_SECONDS)

    def _end(self, name: str) -> None:
        daemon = self._daemons.pop(name)
        status, _ = daemon.terminate(END_SECONDS)
        assert status == 0, f"{name} ended with {status}\n{daemon.tail()}"

    def _is_founded(self, name: str) -> bool:
        return bool(offsets.committed(self.cluster, name, TOPIC))

    def _folder(self, name: str) -> Path:
        folder = self.directory / name
        folder.mkdir(exist_ok=True)
        return folder

    def _ledgers(self, name: str) -> list[Path]:
        return sorted(self._folder(name).glob("*.ledger"))

    def _lag(self, name: str) -> int:
        return offsets.lag(self.cluster, name, TOPIC)

    # --- state on disk

    @property
    def _sent_path(self) -> Path:
        return self.directory / "sent"

    def _done(self) -> int:
        path = self.directory / "stages"
        return int(path.read_text()) if path.exists() else 0

    def _write_done(self, stages: int) -> None:
        (self.directory / "stages").write_text(str(stages))
        (self.directory / "plan.json").write_text(json.dumps(asdict(self.plan)))

    def _result(self, begin: float) -> GrowResult:
        sent = {entry.key for entry in ledger.read(self._sent_path)}
        lost, again = {}, Counter[str]()
        for name in self.plan.groups:
            handlings = Handlings(ledger.read(*self._ledgers(name)))
            lost[name] = handlings.lost(sent)
            finished = Counter(one.begin.key for one in handlings if one.outcome == FINISH)
            again[name] = sum(count - 1 for key, count in finished.items() if key in sent)
        not_committed = {name: self._lag(name) for name in self.plan.groups}
        return GrowResult(self.plan, len(sent), lost, again, not_committed, time.monotonic() - begin)
