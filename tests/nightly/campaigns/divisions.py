"""Groups with an allocation strategy that members of several languages share, and the expected owner of each queue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rmqd.consumer.allocate import (
    ALLOCATE_STRATEGIES,
    AllocateByConfig,
    AllocateByMachineRoom,
    AllocateMessageQueueStrategy,
    sorted_client_ids,
)
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.topics import retry_topic

RMQD, JAVA, GO = "rmqd", "java", "go"
BROKER_ROOMS = ("east", "west")
BROKER_NAMES = tuple(f"{room}@{number}" for number, room in enumerate(BROKER_ROOMS, 1))
ROOM_OF_SLOT = {"rmqd-a": "east", "rmqd-b": "west", "java-c": "west", "java-d": "north", "go-e": "east"}
"""The slots in which members join and leave, and their machine rooms. The last room has no broker."""


@dataclass(frozen=True, slots=True)
class Division:
    """A group with a strategy, and the clients whose allocation equals Java's."""

    name: str
    strategy: str
    kinds: frozenset[str]
    machine_rooms: tuple[str, ...] = ()

    @property
    def group(self) -> str:
        """The group's name."""
        return f"owners_{self.name}"

    @property
    def peer_text(self) -> str:
        """The format that the Java and the Go program read."""
        return f"{self.strategy}={self.group}={'+'.join(self.machine_rooms)}"

    def settings(self, slot: str, queues: Sequence[MessageQueue]) -> dict[str, Any]:
        """Return the keys of the rmqd group."""
        found: dict[str, Any] = {"allocate_strategy": self.strategy}
        if self.strategy == "by_config":
            found["allocate_queues"] = [
                {"topic": queue.topic, "broker_name": queue.broker_name, "queue_id": queue.queue_id}
                for queue in written_down(slot, queues)
            ]
        if self.strategy == "by_machine_room":
            found["machine_rooms"] = list(self.machine_rooms)
        return found

    def owners(self, members: Mapping[str, str], queues: Sequence[MessageQueue]) -> dict[MessageQueue, list[str]]:
        """Return the expected owners of each queue, by slot. `members` are the client ids by slot."""
        client_ids = sorted_client_ids(list(members.values()))
        found: dict[MessageQueue, list[str]] = {queue: [] for queue in queues}
        for topic in sorted({queue.topic for queue in queues}):
            of_topic = [queue for queue in queues if queue.topic == topic]
            for slot, client_id in members.items():
                for queue in self._function(slot, queues)(self.group, client_id, of_topic, client_ids):
                    found[queue].append(slot)
        return found

    def _function(self, slot: str, queues: Sequence[MessageQueue]) -> AllocateMessageQueueStrategy:
        if self.strategy == "by_config":
            return AllocateByConfig(tuple(written_down(slot, queues)))
        if self.strategy == "by_machine_room":
            return AllocateByMachineRoom(frozenset(self.machine_rooms))
        return ALLOCATE_STRATEGIES[self.strategy]


def written_down(slot: str, queues: Sequence[MessageQueue]) -> list[MessageQueue]:
    """Return the configured queues of a slot: every fifth queue; the retry queues belong to rmqd-a."""
    slots = list(ROOM_OF_SLOT)
    own = [queue for queue in queues if not queue.topic.startswith(retry_topic(""))][slots.index(slot) :: len(slots)]
    return own + [queue for queue in queues if queue.topic.startswith(retry_topic("")) and slot == slots[0]]


_ALL, _NOT_GO = frozenset({RMQD, JAVA, GO}), frozenset({RMQD, JAVA})
DIVISIONS = (
    Division("averagely", "averagely", _ALL),
    Division("averagely_by_circle", "averagely_by_circle", _ALL),
    Division("by_config", "by_config", _ALL),
    Division("by_machine_room", "by_machine_room", _ALL, BROKER_ROOMS),
    # Go's strategies of these names differ or are wrong; see docs/migrating.md
    Division("by_one_machine_room", "by_machine_room", _NOT_GO, BROKER_ROOMS[:1]),
    Division("consistent_hash", "consistent_hash", _NOT_GO),
    Division("machine_room_nearby", "machine_room_nearby", _NOT_GO),
)
