"""Handlers write to other systems, which are killed and restarted under load: nothing is lost."""

from __future__ import annotations

import contextlib
import json
import random
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.integration.load import Load
from tests.integration.rmqd_process import RmqdProcess
from tests.nightly.campaigns.counterparts import COUNTERPARTS, Counterpart, DeduplicatedTable, OffsetsTable
from tests.rocketmq import ClusterError, RealCluster, offsets
from tests.waiting import wait_until

QUEUES = 4
BATCH = 20
CONCURRENCY = 8
DRAIN_SECONDS = 120.0
KILLED_BETWEEN = (0.05, 0.95)
"""The range of the share of messages sent before a kill."""


@dataclass(frozen=True, slots=True)
class HandlersPlan:
    """A run. `counterpart` is a name of `COUNTERPARTS`."""

    counterpart: str
    seed: int
    messages: int
    kills: int
    daemon_kills: int = 0
    """How often rmqd itself is killed -9 and restarted, in between the kills of the counterpart."""
    per_second: float = 1000.0
    away_seconds: tuple[float, float] = (0.2, 6.0)
    retry_for_seconds: float = 3.0
    """Shorter than the longest outage: some batches are retried in place, others fail."""


@dataclass(frozen=True, slots=True)
class HandlersResult:
    """The result of a run. `arrived` counts each key in the counterpart; `failed_batches` are calls that raised."""

    plan: HandlersPlan
    most_twice: int | None
    """The allowed number of duplicate keys; None without a limit."""
    sent: set[str]
    arrived: Counter[str]
    kills: int
    failed_batches: int
    dead: int
    seconds: float

    @property
    def lost(self) -> list[str]:
        """Keys that are missing in the counterpart."""
        return sorted(self.sent - self.arrived.keys())

    @property
    def twice(self) -> int:
        """The number of keys that the counterpart has more than once."""
        return sum(times > 1 for times in self.arrived.values())

    @property
    def passed(self) -> bool:
        """Whether nothing is lost or dead-lettered, and duplicates are within the promise."""
        return not (self.lost or self.dead or self.too_many_twice) and self.kills == self.plan.kills

    @property
    def too_many_twice(self) -> bool:
        """Whether there are more duplicates than allowed."""
        return self.most_twice is not None and self.twice > self.most_twice

    def report(self) -> str:
        plan, forbidden = self.plan, " (FORBIDDEN)" if self.too_many_twice else ""
        return (
            f"handlers {plan.counterpart}, seed {plan.seed}, {self.seconds:.0f} s: {len(self.sent)} sent, "
            f"{self.kills} kills, {plan.daemon_kills} of rmqd, {self.failed_batches} batches failed; "
            f"lost {len(self.lost)} {self.lost[:5]}, twice {self.twice}{forbidden}, dead letters {self.dead}"
        )

    def cells(self) -> list[object]:
        """Return the row of the table of figures."""
        kills = f"{self.kills} + {self.plan.daemon_kills}" if self.plan.daemon_kills else self.kills
        run = (self.plan.counterpart, self.plan.seed, len(self.sent), kills, self.failed_batches)
        return [*run, len(self.lost), self.twice, self.dead, f"{self.seconds:.0f}"]


class Handlers:
    """One run in a new directory."""

    def __init__(self, plan: HandlersPlan, cluster: RealCluster, directory: Path) -> None:
        directory.mkdir(parents=True)
        self._plan = plan
        self._cluster = cluster
        self._directory = directory.absolute()
        self._random = random.Random(plan.seed)
        self._topic = f"handlers-{plan.counterpart}-{plan.seed}"
        self._group = f"{self._topic}-group"

    def run(self, given: Counterpart | None = None) -> HandlersResult:
        """Send, kill and restart the counterpart, drain, and judge.

        `given` replaces the counterpart of the plan's name.
        """
        begin, plan = time.monotonic(), self._plan
        (self._directory / "plan.json").write_text(json.dumps(asdict(plan)))
        self._cluster.create_topic(self._topic, QUEUES)
        with given or COUNTERPARTS[plan.counterpart]() as counterpart:
            daemon = RmqdProcess(
                self._directory / "rmqd", self._cluster.nameservers, {self._group: self._settings(counterpart)}
            )
            load = Load(self._cluster, self._topic, plan.messages, per_second=plan.per_second, queues=QUEUES)
            with daemon, contextlib.ExitStack() as running:
                daemon.wait_ready()
                running.enter_context(load)
                kills = self._kill_under_load(counterpart, daemon, load)
                load.wait(plan.messages / plan.per_second * 5 + 60)
                self._drain(counterpart, load.sent)
                failed = round(daemon.metric("rmqd_handler_exceptions_total", group=self._group))
                status, _ = daemon.terminate(60)
                assert status == 0, daemon.tail()
            arrived = counterpart.arrived()
        return HandlersResult(
            plan,
            self._most_twice(counterpart),
            set(load.sent),
            arrived,
            kills,
            failed,
            self._dead_letters(),
            time.monotonic() - begin,
        )

    def _settings(self, counterpart: Counterpart) -> dict[str, object]:
        options = counterpart.options() | {"retry_for": f"{self._plan.retry_for_seconds:g}s"}
        keys = counterpart.group_keys() if isinstance(counterpart, DeduplicatedTable | OffsetsTable) else {}
        return {
            "subscriptions": {self._topic: "*"},
            "consume_from_where": "first_offset",
            "consume_message_batch_max_size": BATCH,
            "delay_level_when_next_consume": 1,
            "handler": {"plugin": counterpart.plugin, "options": options, "concurrency": CONCURRENCY},
            **keys,
        }

    def _most_twice(self, counterpart: Counterpart) -> int | None:
        if counterpart.is_once:
            return 0
        if not isinstance(counterpart, DeduplicatedTable):
            return None
        # batches in flight at a kill; each has one message
        return (self._plan.kills + self._plan.daemon_kills) * CONCURRENCY

    def _kill_under_load(self, counterpart: Counterpart, daemon: RmqdProcess, load: Load) -> int:
        """Kill at moments of the load. Return the number of kills of the counterpart."""
        shares = sorted(self._random.uniform(*KILLED_BETWEEN) for _ in range(self._plan.kills))
        moments = [(share, "counterpart") for share in shares]
        moments += [(self._random.uniform(*KILLED_BETWEEN), "daemon") for _ in range(self._plan.daemon_kills)]
        for share, who in sorted(moments):
            at_least = share * self._plan.messages
            wait_until(lambda: len(load.sent) >= at_least, f"{at_least:.0f} are sent", 300)  # noqa: B023 - asked at once
            if who == "daemon":
                daemon.kill()
                daemon.start()
                daemon.wait_ready()
                continue
            counterpart.kill()
            # the first outage exceeds the in-place retry time, so that some batches fail
            away = self._plan.away_seconds
            time.sleep(away[1] if share == shares[0] else self._random.uniform(*away))
            counterpart.start()
        return len(shares)

    def _drain(self, counterpart: Counterpart, sent: dict[str, tuple[int, int]]) -> None:
        """Wait until all messages have arrived, as long as more arrive. Missing messages show as lost."""
        had = -1
        while len(arrived := counterpart.arrived()) > had:
            had = len(arrived)
            with contextlib.suppress(AssertionError):
                wait_until(lambda: self._has_all(counterpart, sent), "all arrived", DRAIN_SECONDS)
                return

    def _has_all(self, counterpart: Counterpart, sent: dict[str, tuple[int, int]]) -> bool:
        """Return whether all messages have arrived, and none is in flight that would arrive again."""
        return (
            counterpart.arrived().keys() >= sent.keys()
            and offsets.lag(self._cluster, self._group, self._topic) == 0
            and offsets.lag(self._cluster, self._group, f"%RETRY%{self._group}") == 0
        )

    def _dead_letters(self) -> int:
        with contextlib.suppress(ClusterError):
            return sum(offsets.stored(self._cluster, f"%DLQ%{self._group}").values())
        return 0
