"""Orderly consumption while members join and leave: order by sharding key, and one member at a time in each queue.

Runs with `order_by` handle up to 64 messages of different sharding keys at once. In one of them the Java member is
orderly, and all members hold the queues' locks. In the other the Java member is concurrent: it promises no order for
its own messages and does not wait at a hand-over, so that run shows which order rmqd keeps next to it.
"""

from __future__ import annotations

import contextlib
import json
import random
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from tests.nightly.campaigns.members import JOIN, KILL, LEAVE, LEFT, Group, MemberEvent, Roster
from tests.nightly.campaigns.orderly_verdict import OrderlyVerdict, judge, judge_beside_concurrent
from tests.rocketmq import ClusterError, RealCluster, ledger, offsets
from tests.rocketmq.peers import JavaPeer, PeerOptions, start_producer
from tests.waiting import wait_until

SLOTS = ("rmqd-a", "rmqd-b", "java-c")
TOPIC, GROUP = "orderly", "orderly-group"
# Java waits 500 ms for the handler of a queue to release. After that it may unlock the queue while the handler still
# runs, and two members handle the queue. This behaviour of Java would hide faults of rmqd here.
JAVA_SLOW_SECONDS = 0.4
BY = "sharding_key"  # not its keys, which identify a message in the ledger
HANDOVER_SECONDS = 5.0  # queue_handover_timeout, by default
DRAIN_SECONDS = 180.0  # a killed member's locks last up to 60 s; then the queues must catch up


@dataclass(frozen=True, slots=True)
class OrderlyPlan:
    """A run: the messages, the duration and failures of handling, and the time between two membership changes.

    A handler takes `usual_seconds`, and `slow_seconds` for every `slow_every`-th key. The first attempt fails for every
    `fail_every`-th key (0: never). A Java member's handlers take at most `JAVA_SLOW_SECONDS`.
    """

    name: str
    seed: int
    messages: int
    per_second: int
    slots: tuple[str, ...] = SLOTS
    sharding_keys: int = 64
    queues: int = 8
    batch: int = 1
    usual_seconds: float = 0.005
    slow_every: int = 400
    slow_seconds: float = 2.0
    fail_every: int = 0
    rest_seconds: tuple[float, float] = (1.0, 8.0)
    kill_share: float = 0.35
    order_by: str = ""
    java_orderly: bool = True
    """Whether the group, including Java members, is orderly. Otherwise queues have no locks."""

    @property
    def settings(self) -> dict[str, object]:
        """Keys of the rmqd group."""
        keys: dict[str, object] = {"consume_message_batch_max_size": self.batch}
        keys["consume_mode"] = "orderly" if self.java_orderly else "concurrently"
        return keys | ({"order_by": self.order_by, "concurrency": self.sharding_keys} if self.order_by else {})

    @property
    def handler_options(self) -> dict[str, float]:
        """The options of LedgerHandler."""
        return {
            "seconds": self.usual_seconds,
            "slow_every": self.slow_every,
            "slow_seconds": self.slow_seconds,
            "fail_every": self.fail_every,
        }

    @property
    def peer_options(self) -> dict[str, object]:
        """The options of LedgerConsumer, for the same handling except for slow keys."""
        return {
            "orderly": self.java_orderly,
            "batch": self.batch,
            "slow_every": self.slow_every,
            "slow_millis": round(min(self.slow_seconds, JAVA_SLOW_SECONDS) * 1000),
            "fail_every": self.fail_every,
        }


def plans(seed: int, messages: int, slots: tuple[str, ...] = SLOTS) -> list[OrderlyPlan]:
    """Return all runs: one by one with failures for five minutes, and in batches with 8 s handlers for two.

    The runs by key take two minutes each: with locks and failures, and with a concurrent Java member.
    """
    by_key = partial(
        OrderlyPlan, messages=messages // 3, per_second=250, slots=slots, queues=4, usual_seconds=0.02, order_by=BY
    )
    return [
        OrderlyPlan("one-by-one", seed, messages, per_second=300, slots=slots, fail_every=600),
        OrderlyPlan(
            "batches", seed + 1, messages // 5, per_second=150, slots=slots, batch=8, slow_every=600, slow_seconds=8
        ),
        by_key("by-key", seed + 2, fail_every=600),
        by_key("by-key-concurrent", seed + 3, java_orderly=False),
    ]


class OrderlyError(Exception):
    """The campaign cannot continue in a directory."""


@dataclass(frozen=True, slots=True)
class OrderlyResult:
    """The result of a run: the verdict, and the membership changes during the load by kind and action."""

    plan: OrderlyPlan
    verdict: OrderlyVerdict
    events: Counter[str]
    seconds: float
    """The duration of the whole run without interruptions."""

    def report(self) -> str:
        events = ", ".join(f"{count} {what}" for what, count in sorted(self.events.items()))
        plan = self.plan
        return (
            f"orderly {plan.name}, {', '.join(plan.slots)}, seed {plan.seed}, {self.seconds:.0f} s: {events}\n"
            f"{self.verdict.report()}"
        )

    def cells(self) -> list[object]:
        """The row of docs/proof/campaigns.md, without date and commit."""
        verdict = self.verdict
        totals = [sum(n for what, n in self.events.items() if what.endswith(action)) for action in (JOIN, LEAVE, KILL)]
        causes = "; ".join(f"{count}: {cause}" for cause, count in verdict.repeated.most_common())
        return [
            self.plan.name,
            ", ".join(self.plan.slots),
            self.plan.seed,
            verdict.sent,
            f"{self.seconds:.0f}",
            ", ".join(map(str, totals)),
            len(verdict.lost),
            f"{len(verdict.disordered)} of {verdict.pairs}",
            len(verdict.overlapping) if self.plan.java_orderly else "not judged",
            f"{verdict.longest_wait_seconds:.0f} s",
            causes or "none",
        ]


class Orderly:
    """One run in a directory. A new start with the same directory resumes an interrupted run."""

    def __init__(self, plan: OrderlyPlan, cluster: RealCluster, directory: Path) -> None:
        """Raises OrderlyError if the directory holds another plan."""
        directory.mkdir(parents=True, exist_ok=True)
        self._plan = plan
        self._cluster = cluster
        self._directory = directory.absolute()
        self._sent_path = self._directory / "sent"
        self._claim_directory()
        self._group = Group(
            cluster,
            f"{GROUP}-{plan.name}",
            f"{TOPIC}-{plan.name}",
            self._directory,
            plan.handler_options,
            plan.settings,
            plan.peer_options,
        )
        self._roster = Roster(self._group)
        self._random = random.Random(plan.seed)
        self._tail = ledger.Tail()

    def run(self) -> OrderlyResult:
        """Send all messages while members join and leave, drain, and judge."""
        begin = time.monotonic()
        self._cluster.create_topic(self._group.topic, self._plan.queues)
        try:
            for slot in self._plan.slots:
                self._roster.join(slot)
            with self._sender() as sender:
                while sender.running:
                    self._rest(sender)
                    if sender.running:
                        self._roster.step(self._plan.slots, self._random, self._plan.kill_share)
                if status := sender.wait():
                    raise ClusterError(f"the producer ended with status {status}")
            happened = self._roster.events()
            self._drain()
        finally:
            self._roster.kill_all()
            with (self._directory / "seconds").open("a") as file:
                file.write(f"{time.monotonic() - begin:.1f}\n")
        return self._result(happened)

    def _claim_directory(self) -> None:
        path = self._directory / "plan.json"
        text = json.dumps(asdict(self._plan))
        if path.exists() and path.read_text() != text:
            raise OrderlyError(f"{self._directory} holds another run: {path.read_text()}; give another --dir")
        path.write_text(text)

    def _sender(self) -> JavaPeer:
        """Start the official Java producer at the first unsent message."""
        return start_producer(
            PeerOptions(self._cluster.nameserver, self._group.topic, self._sent_path),
            self._plan.messages,
            first=len(ledger.read(self._sent_path)),
            rate=self._plan.per_second,
            sharding_keys=self._plan.sharding_keys,
        )

    def _rest(self, sender: JavaPeer) -> None:
        deadline = time.monotonic() + self._random.uniform(*self._plan.rest_seconds)
        while time.monotonic() < deadline and sender.running:
            time.sleep(0.1)

    def _drain(self) -> None:
        sent = {entry.key for entry in ledger.read(self._sent_path)}
        # the ledger judges: an incomplete drain shows as lost messages
        with contextlib.suppress(AssertionError):
            wait_until(lambda: self._tail.finished(self._roster.ledgers()) >= sent, "all is handled", DRAIN_SECONDS)
            wait_until(lambda: self._lag() == 0, "all is committed", 10)

    def _lag(self) -> int:
        return offsets.lag(self._cluster, self._group.name, self._group.topic)

    def _result(self, happened: Iterable[MemberEvent]) -> OrderlyResult:
        verdict = self._judge(ledger.read(self._sent_path), ledger.read(*self._roster.ledgers()))
        counts = Counter(f"{event.kind} {event.action}" for event in happened if event.action != LEFT)
        seconds = sum(map(float, (self._directory / "seconds").read_text().split()))
        return OrderlyResult(self._plan, verdict, counts, seconds)

    def _judge(self, sent: Sequence[ledger.Entry], entries: Sequence[ledger.Entry]) -> OrderlyVerdict:
        events = self._roster.events()
        if self._plan.java_orderly:
            return judge(sent, entries, events)
        return judge_beside_concurrent(sent, entries, events, HANDOVER_SECONDS)
