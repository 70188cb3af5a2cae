"""Owners: members of three languages join and leave, and agree on every queue's owner with each strategy."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.topics import retry_topic
from tests.integration.rmqd_process import RmqdProcess
from tests.nightly.campaigns.divisions import DIVISIONS, GO, JAVA, RMQD, ROOM_OF_SLOT, Division, written_down
from tests.nightly.campaigns.members import JOIN, KILL, LEAVE
from tests.nightly.rocketmq import go_peers
from tests.rocketmq import ClusterError, RealCluster, offsets
from tests.rocketmq.peers import Peer, start_program
from tests.waiting import ASK_SECONDS

TOPIC = "owners"
QUEUES_EACH = 6
# Clients rebalance every 20 s in case a notification of the broker is lost. If Go's client cannot read an offset
# within 3 s on a busy machine, the queue has no owner until the next rebalance.
AGREE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class OwnersPlan:
    """A run: the number of membership changes after all members have joined."""

    seed: int
    changes: int
    slots: tuple[str, ...] = tuple(ROOM_OF_SLOT)


@dataclass(frozen=True, slots=True)
class Change:
    """A membership change, and the time each division took to agree; None without an agreement within the limit."""

    action: str
    slot: str
    seconds: dict[str, float | None]
    found: dict[str, str] = field(default_factory=dict)
    """The owners by division where there was no agreement."""

    def line(self) -> str:
        """The change as a line of JSON."""
        return json.dumps(asdict(self)) + "\n"


@dataclass(frozen=True, slots=True)
class OwnersResult:
    """The result of a run."""

    plan: OwnersPlan
    changes: list[Change]

    @property
    def passed(self) -> bool:
        """Whether all divisions agreed after every change."""
        return len(self.changes) >= self.plan.changes and not any(self.missed(one.name) for one in DIVISIONS)

    def missed(self, division: str) -> int:
        """Return how often a division did not agree in time."""
        return sum(change.seconds[division] is None for change in self.changes)

    def settled(self, division: str) -> tuple[float, float]:
        """Return the median and the longest time to agreement, in seconds."""
        seconds = sorted(at for change in self.changes if (at := change.seconds[division]) is not None) or [0.0]
        return seconds[len(seconds) // 2], seconds[-1]

    def events(self) -> Counter[str]:
        """Count the changes by kind of member and action."""
        return Counter(f"{change.slot.partition('-')[0]} {change.action}" for change in self.changes)

    def report(self) -> str:
        events = ", ".join(f"{count} {what}" for what, count in sorted(self.events().items()))
        lines = [f"owners, seed {self.plan.seed}: {len(self.changes)} changes ({events})"]
        for division in DIVISIONS:
            median, longest = self.settled(division.name)
            kinds = ", ".join(sorted(self._kinds(division)))
            missed = f", NO AGREEMENT {self.missed(division.name)} times" if self.missed(division.name) else ""
            lines.append(f"  {division.name} ({kinds}): agreed after {median:.1f} s (median), {longest:.1f} s{missed}")
        for change in self.changes:
            lines += [f"  {change.action} {change.slot}: {text}" for text in change.found.values()]
        return "\n".join(lines)

    def rows(self) -> Iterator[list[object]]:
        """Yield a row of docs/proof/campaigns.md for each division."""
        actions = Counter(change.action for change in self.changes)
        for division in DIVISIONS:
            median, longest = self.settled(division.name)
            yield [
                division.name,
                self.plan.seed,
                ", ".join(sorted(self._kinds(division))),
                len(self.changes),
                ", ".join(str(actions[action]) for action in (JOIN, LEAVE, KILL)),
                f"{median:.1f} s, {longest:.1f} s",
                self.missed(division.name),
            ]

    def _kinds(self, division: Division) -> set[str]:
        return {slot.partition("-")[0] for slot in self.plan.slots} & division.kinds


class Owners:
    """One run in a directory. A new start with the same directory resumes an interrupted run."""

    def __init__(self, plan: OwnersPlan, cluster: RealCluster, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._plan = plan
        self._cluster = cluster
        self._directory = directory.absolute()
        self._log = directory / "changes.jsonl"
        self._running: dict[str, Process] = {}
        self._queues: dict[str, list[MessageQueue]] = {}

    def run(self) -> OwnersResult:
        """Start all members, then let them join and leave one at a time."""
        done = self._done()
        chance = random.Random(f"{self._plan.seed} {len(done)}")
        self._make_topics()
        try:
            for slot in self._plan.slots:
                self._join(slot)
            self._expect_start()
            while len(done) < self._plan.changes:
                done.append(self._change(chance))
                with self._log.open("a") as file:
                    file.write(done[-1].line())
        finally:
            for process in self._running.values():
                process.kill()
        return OwnersResult(self._plan, done)

    def _make_topics(self) -> None:
        self._cluster.create_topic(TOPIC, QUEUES_EACH)
        for division in DIVISIONS:
            retries = retry_topic(division.group)
            self._cluster.create_topic(retries, 1)  # as the first heartbeat would
            self._queues[division.name] = sorted(
                MessageQueue(topic, queue.broker, queue.queue_id)
                for topic in (TOPIC, retries)
                for queue in offsets.queues(self._cluster, topic)
            )

    def _expect_start(self) -> None:
        agreed, found = self._settle()
        assert None not in agreed.values(), f"the members do not agree at the start: {found}"

    def _change(self, chance: random.Random) -> Change:
        """Cause one event: an absent member joins, or a running member leaves or is killed."""
        away = [slot for slot in self._plan.slots if slot not in self._running]
        there = [slot for slot in self._plan.slots if slot in self._running]
        if away and (len(there) == 1 or chance.random() < 0.5):
            action, slot = JOIN, chance.choice(away)
            self._join(slot)
        else:
            action, slot = chance.choice((LEAVE, KILL)), chance.choice(there)
            process = self._running.pop(slot)
            process.kill() if action == KILL else process.leave()
        return Change(action, slot, *self._settle())

    def _join(self, slot: str) -> None:
        name = f"{ROOM_OF_SLOT[slot]}@{slot}.{time.time_ns() // 1_000_000}"
        divisions = [division for division in DIVISIONS if slot.partition("-")[0] in division.kinds]
        self._running[slot] = Process(slot, name, divisions, self._cluster, self._directory, self._queues)

    def _settle(self) -> tuple[dict[str, float | None], dict[str, str]]:
        """Wait until every division agrees. Return the seconds of each, and the differences of the others.

        A division that agrees only after the limit has no seconds either.
        """
        begin = time.monotonic()
        seconds: dict[str, float | None] = {}
        found: dict[str, str] = {}
        while len(seconds) < len(DIVISIONS) and time.monotonic() < begin + AGREE_SECONDS:
            for division in DIVISIONS:
                if division.name not in seconds:
                    found[division.name] = self._difference(division)
                    if not found[division.name]:
                        seconds[division.name] = time.monotonic() - begin
            time.sleep(ASK_SECONDS)
        for division in DIVISIONS:  # check again: an agreement must last
            found[division.name] = self._difference(division)
            if found[division.name] or division.name not in seconds:
                seconds[division.name] = None
        return seconds, {name: text for name, text in found.items() if text}

    def _difference(self, division: Division) -> str:
        """Return the queues with other owners than the strategy gives; empty if there are none."""
        queues = self._queues[division.name]
        members = {slot: one for slot, one in self._running.items() if slot.partition("-")[0] in division.kinds}
        try:
            client_ids = {slot: one.client_id(division) for slot, one in members.items()}
            owners: dict[MessageQueue, list[str]] = {queue: [] for queue in queues}
            for slot, one in members.items():
                for queue in one.queues(division):
                    owners.setdefault(queue, []).append(slot)
        except (AssertionError, ClusterError, OSError) as error:  # a member may still be joining
            return f"{division.name}: {error}"
        expected = division.owners(client_ids, queues)
        wrong = [
            f"{queue} has {'+'.join(owners[queue]) or 'nobody'} and should have {'+'.join(expected[queue]) or 'nobody'}"
            for queue in owners
            if owners[queue] != expected.setdefault(queue, [])
        ]
        return f"{division.name}: {'; '.join(wrong)}" if wrong else ""

    def _done(self) -> list[Change]:
        return [Change(**json.loads(line)) for line in self._log.read_text().splitlines()] if self._log.exists() else []


class Process:
    """A process that is a member of every division that its client supports."""

    def __init__(
        self,
        slot: str,
        name: str,
        divisions: Sequence[Division],
        cluster: RealCluster,
        directory: Path,
        queues: dict[str, list[MessageQueue]],
    ) -> None:
        self._name = name
        self._cluster = cluster
        self._client_ids: dict[str, str] = {}
        self._rmqd: RmqdProcess | None = None
        self._peer: Peer | None = None
        kind = slot.partition("-")[0]
        if kind == RMQD:
            groups = {
                division.group: {
                    "subscriptions": {TOPIC: "*"},
                    "handler": {"plugin": "log", "concurrency": 1},
                    **division.settings(slot, queues[division.name]),
                }
                for division in divisions
            }
            where = directory / name
            self._rmqd = RmqdProcess(where, cluster.nameserver, groups, "--set", f"client.instance_name={name}")
            self._rmqd.start()
            self._rmqd.wait_ready()
        else:
            [by_config] = [division for division in divisions if division.strategy == "by_config"]
            own = [queue for queue in written_down(slot, queues[by_config.name]) if queue.topic == TOPIC]
            options: dict[str, object] = {
                "namesrv": cluster.nameserver,
                "topic": TOPIC,
                "instance": name,
                "groups": ",".join(division.peer_text for division in divisions),
                "allocate_queues": ",".join(f"{queue.broker_name}:{queue.queue_id}" for queue in own),
            }
            start = {JAVA: _start_java, GO: go_peers.start_member}[kind]
            self._peer = start(directory, options)

    def client_id(self, division: Division) -> str:
        """Return the client id that the broker lists. Raises AssertionError while it is missing."""
        if division.name not in self._client_ids:
            listed = offsets.members(self._cluster, division.group)
            named = [client_id for client_id in listed if client_id.endswith(f"@{self._name}")]
            assert len(named) == 1, f"{self._name} is listed {len(named)} times in {listed}"
            self._client_ids[division.name] = named[0]
        return self._client_ids[division.name]

    def queues(self, division: Division) -> list[MessageQueue]:
        """Return the queues that the member reports as its own."""
        if self._rmqd is None:
            found = offsets.all_queues_of(self._cluster, division.group, self.client_id(division))
            return [MessageQueue(topic, queue.broker, queue.queue_id) for topic, queue in found]
        return [
            MessageQueue(
                retry_topic(division.group) if queue["is_retry"] else queue["topic"], queue["broker"], queue["queue"]
            )
            for queue in self._rmqd.queues(division.group)
        ]

    def leave(self) -> None:
        """Send SIGTERM, and wait for the orderly end."""
        if self._rmqd is not None:
            status, _ = self._rmqd.terminate(60)
            assert status == 0, f"{self._name} left with status {status}\n{self._rmqd.tail()}"
        if self._peer is not None:
            self._peer.stop()

    def kill(self) -> None:
        """kill -9."""
        if self._rmqd is not None:
            self._rmqd.kill()
        if self._peer is not None:
            self._peer.kill()


def _start_java(directory: Path, options: dict[str, object]) -> Peer:
    return start_program("GroupsMember", directory, options)
