"""Moves: one group changes from engine: local to engine: spark and back many times while messages are sent.

There are three ways to move: the daemon stops and another one starts; the configuration changes and the daemon gets a
SIGHUP; or the next daemon starts early, is refused because the group is held elsewhere, and acquires the group when the
previous daemon stops. All are graceful, so nothing may be lost or handled twice. If the broker has a slave, each move
alternately kills and restarts the slave.
"""

from __future__ import annotations

import contextlib
import json
import random
import signal
import time
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from tests.integration.load import Load
from tests.integration.rmqd_process import RmqdProcess, ledger_group
from tests.nightly.campaigns.lagging_slave import LaggingSlave
from tests.nightly.campaigns.verdict import Handlings
from tests.rocketmq import RealCluster, ledger, offsets
from tests.rocketmq.ledger import FAIL, FINISH, START, Entry
from tests.waiting import wait_until

TOPIC, GROUP = "moves", "moves-group"
QUEUES: Final = 8
ENGINES: Final = ("local", "spark")
WAYS: Final = ("restart", "reload", "overlap")
START_WAY: Final = "start"  # the first leg, or the first one after an interruption
UNLIMITED: Final = 10**9  # messages: the load ends with the moves
BEGIN_SECONDS: Final = 300.0  # Spark starts in 10 s, and in minutes on a busy machine
END_SECONDS: Final = 90.0
STILL_SECONDS: Final = 120.0


@dataclass(frozen=True, slots=True)
class MovesPlan:
    """A run: the rate, the number and ways of moves, and the time between moves."""

    seed: int
    moves: int
    per_second: float = 300.0
    stay_seconds: tuple[float, float] = (4.0, 15.0)
    ways: Sequence[str] = WAYS
    handler_seconds: float = 0.005
    fail_every: int = 50


@dataclass(frozen=True, slots=True)
class Leg:
    """A period on one engine, and the way of the move to it."""

    number: int
    engine: str
    way: str


@dataclass(frozen=True, slots=True)
class MovesResult:
    """The result of a run."""

    plan: MovesPlan
    legs: list[Leg]
    sent: int
    lost: list[str]
    twice: list[tuple[Entry, Entry]]
    """Pairs of entries that began the same attempt."""
    handled: Counter[str]
    """Finished attempts by engine."""
    failed: int
    stood_still_seconds: list[float]
    """The time between the last message of each leg and the first of the next one."""
    refused: int
    lag: int
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether nothing is lost or handled twice, all is committed, and both engines handled messages."""
        return not self.lost and not self.twice and not self.lag and all(self.handled[engine] for engine in ENGINES)

    def report(self) -> str:
        ways = Counter(f"to {leg.engine} by {leg.way}" for leg in self.legs[1:])
        still = sorted(self.stood_still_seconds) or [0.0]
        lines = [
            f"spark_moves, seed {self.plan.seed}, {self.seconds:.0f} s: {len(self.legs) - 1} moves, "
            + ", ".join(f"{count} {way}" for way, count in sorted(ways.items())),
            f"sent {self.sent}, lost {len(self.lost)}{''.join(f' {key}' for key in self.lost[:10])}; "
            f"not committed at the end: {self.lag}",
            f"finished on local {self.handled['local']}, on spark {self.handled['spark']}; failed once, as told "
            f"{self.failed}; refused while the other engine had the group {self.refused}",
            f"stood still at a move {still[len(still) // 2]:.1f} s (median), {still[-1]:.1f} s (longest)",
            f"handled twice: {len(self.twice)}",
        ]
        lines += [f"  {entry.line().rstrip()}" for pair in self.twice[:5] for entry in pair]
        return "\n".join(lines)

    def cells(self) -> list[object]:
        """The row of docs/proof/campaigns.md."""
        ways = Counter(leg.way for leg in self.legs[1:])
        still = sorted(self.stood_still_seconds) or [0.0]
        return [
            self.plan.seed,
            self.sent,
            ", ".join(f"{ways[way]} {way}" for way in WAYS),
            f"{self.handled['local']}, {self.handled['spark']}",
            self.failed,
            f"{still[len(still) // 2]:.1f} s, {still[-1]:.1f} s",
            f"{self.seconds:.0f}",
            len(self.lost),
            len(self.twice),
        ]


class Moves:
    """One run in a directory. A new start with the same directory resumes an interrupted run."""

    def __init__(self, plan: MovesPlan, cluster: RealCluster, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._plan = plan
        self._cluster = cluster
        self._directory = directory.absolute()
        self._slave = LaggingSlave(cluster)
        self._tail = ledger.Tail()
        self._legs_path = self._directory / "legs.jsonl"
        self._daemons: list[RmqdProcess] = []

    def run(self) -> MovesResult:
        """Send while the group moves, drain, and judge."""
        begin = time.monotonic()
        self._cluster.create_topic(TOPIC, QUEUES)
        sent_path = self._directory / "sent"
        load = Load(
            self._cluster,
            TOPIC,
            UNLIMITED,
            per_second=self._plan.per_second,
            queues=QUEUES,
            first=len(ledger.read(sent_path)),
            path=sent_path,
        )
        daemon: RmqdProcess | None = None
        try:
            with load:
                done = len(self._legs())
                daemon = self._start(self._engine(done), done)
                self._begin(done, START_WAY)
                for number in range(done + 1, self._plan.moves + 1):
                    chance = random.Random(f"{self._plan.seed} {number}")
                    time.sleep(chance.uniform(*self._plan.stay_seconds))
                    if self._slave.is_there:
                        self._slave.come_or_go()
                    way = chance.choice(self._plan.ways)
                    daemon = self._move(daemon, way, number)
                    self._begin(number, way)
                time.sleep(self._plan.stay_seconds[0])
            self._drain(sent_path)
            self._end(daemon)
        except AssertionError as error:
            if daemon is not None:
                error.add_note(daemon.tail())
            raise
        finally:
            for process in self._daemons:
                process.kill()
        return self._result(sent_path, time.monotonic() - begin)

    # --- moves

    def _move(self, daemon: RmqdProcess, way: str, number: int) -> RmqdProcess:
        engine = self._engine(number)
        if way == "restart":
            self._end(daemon)
            return self._start(engine, number)
        if way == "reload":
            daemon.write_config(self._cluster.nameserver, {GROUP: self._group(engine, number)})
            daemon.signal(signal.SIGHUP)
            return daemon
        other = self._start(engine, number)
        wait_until(lambda: other.events("group_held_elsewhere"), "the next daemon is refused", BEGIN_SECONDS)
        self._end(daemon)
        return other

    def _start(self, engine: str, number: int) -> RmqdProcess:
        directory = self._directory / f"daemon-{number}"
        daemon = RmqdProcess(directory, self._cluster.nameserver, {GROUP: self._group(engine, number)})
        daemon.start()
        self._daemons.append(daemon)
        return daemon

    def _end(self, daemon: RmqdProcess) -> None:
        status, _ = daemon.terminate(END_SECONDS)
        assert status == 0, f"rmqd ended with {status}\n{daemon.tail()}"

    def _begin(self, number: int, way: str) -> None:
        """Wait until the leg's engine handles messages, and record the leg."""
        path = self._ledger(number)
        wait_until(lambda: ledger.read(path), f"{path.name} has a message", BEGIN_SECONDS)
        leg = Leg(number, self._engine(number), way)
        with self._legs_path.open("a") as file:
            file.write(json.dumps(asdict(leg)) + "\n")

    def _group(self, engine: str, number: int) -> dict[str, Any]:
        plan = self._plan
        options = {"seconds": plan.handler_seconds, "fail_every": plan.fail_every}
        more: dict[str, Any] = {"engine": engine, "delay_level_when_next_consume": 1}
        more["consume_from_where"] = "first_offset"  # messages are sent before the group starts
        if engine == "spark":
            more["spark"] = {"master": "local[2,4]", "checkpoint": str(self._directory / "checkpoint")}
        return ledger_group(TOPIC, self._ledger(number), f"{number}-{engine}", handler_options=options, **more)

    @staticmethod
    def _engine(number: int) -> str:
        return ENGINES[number % len(ENGINES)]

    def _ledger(self, number: int) -> Path:
        return self._directory / f"ledger-{number:03}"

    def _legs(self) -> list[Leg]:
        if not self._legs_path.exists():
            return []
        return [Leg(**json.loads(line)) for line in self._legs_path.read_text().splitlines()]

    # --- the end

    def _drain(self, sent_path: Path) -> None:
        sent = {entry.key for entry in ledger.read(sent_path)}
        paths = [self._ledger(leg.number) for leg in self._legs()]
        # the ledger judges: a stalled drain shows as lost messages
        with contextlib.suppress(AssertionError):
            while not (finished := self._tail.finished(paths)) >= sent:
                wait_until(partial(self._is_further, paths, len(finished)), "more is handled", STILL_SECONDS)

    def _is_further(self, paths: Sequence[Path], handled: int) -> bool:
        return len(self._tail.finished(paths)) > handled

    def _result(self, sent_path: Path, seconds: float) -> MovesResult:
        legs = self._legs()
        by_leg = {leg.number: ledger.read(self._ledger(leg.number)) for leg in legs}
        entries = sorted((entry for leg in by_leg.values() for entry in leg), key=lambda entry: entry.at_micros)
        sent = {entry.key for entry in ledger.read(sent_path)}
        finished = [entry for entry in entries if entry.event == FINISH]
        cut = {f"{leg.number - 1}-{self._engine(leg.number - 1)}" for leg in legs if leg.way == START_WAY}
        refused = [event for daemon in self._daemons for event in daemon.events("group_held_elsewhere")]
        return MovesResult(
            plan=self._plan,
            legs=legs,
            sent=len(sent),
            lost=Handlings(entries).lost(sent),
            twice=begun_twice(entries, cut),
            handled=Counter(entry.member.partition("-")[2] for entry in finished),
            failed=sum(entry.event == FAIL for entry in entries),
            stood_still_seconds=[
                (by_leg[leg.number][0].at_micros - by_leg[leg.number - 1][-1].at_micros) / 1e6
                for leg in legs
                if leg.way != START_WAY
            ],
            refused=len(refused),
            lag=offsets.lag(self._cluster, GROUP, TOPIC),
            seconds=seconds,
        )


def begun_twice(entries: Sequence[Entry], cut: Collection[str] = ()) -> list[tuple[Entry, Entry]]:
    """Return attempts that began twice, except those first begun by members that an interruption cut."""
    first: dict[tuple[str, int], Entry] = {}
    found = []
    for entry in entries:
        if entry.event != START:
            continue
        before = first.setdefault((entry.key, entry.reconsume_times), entry)
        if before is not entry and before.member not in cut:
            found.append((before, entry))
    return found
