"""Members of a group that join and leave: rmqd daemons and official Java consumers, each with a ledger."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tests.integration.rmqd_process import RmqdProcess, ledger_group
from tests.rocketmq import RealCluster, offsets
from tests.rocketmq.offsets import Queue
from tests.rocketmq.peers import JavaPeer, PeerOptions, start_consumer

RMQD, JAVA = "rmqd", "java"
JOIN, LEAVE, LEFT, KILL = "join", "leave", "left", "kill"


@dataclass(frozen=True, slots=True)
class MemberEvent:
    """An event of a member. `member` is its name in the ledger, new at each join."""

    at_micros: int
    action: str
    member: str
    kind: str

    def line(self) -> str:
        """The event as a line of JSON."""
        return json.dumps(asdict(self)) + "\n"


@dataclass(frozen=True, slots=True)
class Group:
    """The common settings of a run's members."""

    cluster: RealCluster
    name: str
    topic: str
    directory: Path
    handler_options: dict[str, float]
    """`seconds`, `slow_every`, `slow_seconds` of the ledger handler."""
    settings: dict[str, Any]
    """Keys of the rmqd group."""
    peer_options: dict[str, object] = field(default_factory=dict)
    """Further options of a Java member."""
    nameserver: str = ""
    """The name server of rmqd members; the cluster's own if empty."""


class Member(Protocol):
    """One incarnation of a member, from its join to its end."""

    name: str
    kind: str
    ledger: Path

    def leave(self) -> None:
        """Stop in order, and wait for the end."""

    def kill(self) -> None:
        """kill -9."""

    def queues(self) -> Iterable[Queue]:
        """Return the topic's queues that the member reports as its own."""


class RmqdMember:
    """An `rmqd run` process."""

    kind = RMQD

    def __init__(self, group: Group, name: str) -> None:
        self.name = name
        self.ledger = group.directory / f"{name}.ledger"
        self._group = group
        config = ledger_group(group.topic, self.ledger, name, handler_options=group.handler_options, **group.settings)
        nameserver = group.nameserver or group.cluster.nameservers
        self.process = RmqdProcess(group.directory / name, nameserver, {group.name: config})
        self.process.start()
        self.process.wait_ready()

    def leave(self) -> None:
        """Send SIGTERM. Another exit status than 0 fails the run."""
        status, _ = self.process.terminate(60)
        assert status == 0, f"{self.name} left with status {status}\n{self.process.tail()}"

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()

    def queues(self) -> list[Queue]:
        """Read the queues from /api/v1/status."""
        return [
            Queue(queue["broker"], queue["queue"])
            for queue in self.process.queues(self._group.name)
            if queue["topic"] == self._group.topic and not queue["is_retry"]
        ]


class JavaMember:
    """The official Java client."""

    kind = JAVA

    def __init__(self, group: Group, name: str) -> None:
        self.name = name
        self.ledger = group.directory / f"{name}.ledger"
        self._group = group
        millis = round(group.handler_options["seconds"] * 1000)
        peer = PeerOptions(group.cluster.nameserver, group.topic, self.ledger)
        self._process: JavaPeer = start_consumer(
            peer, group.name, handle_millis=millis, member=name, **group.peer_options
        )

    def leave(self) -> None:
        """Send SIGTERM: consumer.shutdown() waits for handlers."""
        self._process.stop()

    def kill(self) -> None:
        """kill -9."""
        self._process.kill()

    def queues(self) -> list[Queue]:
        """Return the queues that the member reports to the broker for `mqadmin consumerStatus`."""
        return offsets.queues_of(self._group.cluster, self._group.name, self._group.topic, self._process.client_id)


class Roster:
    """Present and past members: every join and every end is a line in `members.jsonl`."""

    def __init__(self, group: Group) -> None:
        self.path = group.directory / "members.jsonl"
        self.running: dict[str, Member] = {}
        """By slot, such as `rmqd-a`. Members of a slot follow each other."""
        self._group = group

    def join(self, slot: str) -> None:
        """Start the next incarnation of a slot. Its kind is the part of the slot's name before the dash."""
        kind = slot.partition("-")[0]
        number = sum(event.action == JOIN and event.member.startswith(f"{slot}.") for event in self.events()) + 1
        name = f"{slot}.{number}"
        self._write(JOIN, name, kind)
        self.running[slot] = RmqdMember(self._group, name) if kind == RMQD else JavaMember(self._group, name)

    def step(self, slots: Sequence[str], chance: random.Random, kill_share: float = 0.5) -> None:
        """Cause one event: a member joins, leaves or, with the probability `kill_share`, is killed."""
        away = [slot for slot in slots if slot not in self.running]
        there = [slot for slot in slots if slot in self.running]
        if away and (len(there) == 1 or chance.random() < 0.6):
            self.join(chance.choice(away))
        elif chance.random() < 1 - kill_share:
            self.leave(chance.choice(there))
        else:
            self.kill(chance.choice(there))

    def leave(self, slot: str) -> None:
        """Stop a member in order."""
        member = self.running.pop(slot)
        self._write(LEAVE, member.name, member.kind)
        member.leave()
        self._write(LEFT, member.name, member.kind)

    def kill(self, slot: str) -> None:
        """Kill a member with kill -9."""
        member = self.running.pop(slot)
        member.kill()
        self._write(KILL, member.name, member.kind)

    def kill_all(self) -> None:
        """Kill all running members."""
        for slot in list(self.running):
            self.kill(slot)

    def owners(self) -> dict[Queue, list[str]]:
        """Return every queue of the topic with the members that report it as theirs."""
        found: dict[Queue, list[str]] = {queue: [] for queue in offsets.queues(self._group.cluster, self._group.topic)}
        for member in self.running.values():
            for queue in member.queues():
                found[queue].append(member.name)
        return found

    def events(self) -> list[MemberEvent]:
        """Return all events, including events of an earlier process of the same run."""
        if not self.path.exists():
            return []
        return [MemberEvent(**json.loads(line)) for line in self.path.read_text().splitlines()]

    def ledgers(self) -> list[Path]:
        """Return the ledgers of all present and past members."""
        return sorted(self.path.parent.glob("*.ledger"))

    def _write(self, action: str, member: str, kind: str) -> None:
        event = MemberEvent(time.time_ns() // 1000, action, member, kind)
        with self.path.open("a") as file:
            file.write(event.line())
