"""The allocate strategies: which member of a group gets which queue.

Each member computes its own queues, without asking the other members. So rmqd must divide queues exactly as Java does,
because some members of a group may run Java's client.

A strategy is called with the group, this member's client id, all queues of one topic and all client ids. Queues and
client ids are sorted and without duplicates. The strategy returns this member's queues. As in Java
(`CL/consumer/rebalance`, reference protocol 5.9) a member that is not in the list gets no queues. If the strategy
cannot decide, it raises, and the member keeps its current queues.
"""

from __future__ import annotations

import hashlib
import traceback
from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rmqd.errors import RmqdError
from rmqd.wire.message_queue import MessageQueue

AllocateMessageQueueStrategy = Callable[[str, str, Sequence[MessageQueue], Sequence[str]], Collection[MessageQueue]]
"""Called with the group, this member's client id, the sorted queues and client ids. Returns this member's queues."""

JAVA_STRATEGY_NAMES: Final = {
    "averagely": "AVG",
    "averagely_by_circle": "AVG_BY_CIRCLE",
    "consistent_hash": "CONSISTENT_HASH",
    "by_config": "CONFIG",
    "by_machine_room": "MACHINE_ROOM",
    "machine_room_nearby": "MACHINE_ROOM_NEARBY-AVG",
}
STRATEGY_NAMES: Final = tuple(JAVA_STRATEGY_NAMES)
"""The strategies included in rmqd."""

BROKER_STRATEGY_NAMES: Final = {name: JAVA_STRATEGY_NAMES[name] for name in ("averagely", "averagely_by_circle")}
"""The strategies that brokers apply to popped queues, with the brokers' names for them."""
VIRTUAL_NODES_PER_MEMBER: Final = 10  # points of each member on the hash ring; Java's default
MACHINE_ROOM_SEPARATOR: Final = "@"


class AllocateError(RmqdError):
    """A strategy cannot decide which member owns a queue. The error text states the strategy's expectation."""


@dataclass(frozen=True, slots=True)
class AllocateStrategy:
    """A strategy with its name in the configuration."""

    name: str
    function: AllocateMessageQueueStrategy

    def share(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> frozenset[MessageQueue]:
        """Return this member's queues. Raises AllocateError if the strategy fails or returns an unknown queue."""
        try:
            share: object = self.function(group, client_id, tuple(queues), tuple(client_ids))
        except AllocateError:
            raise
        except Exception as error:  # a plugin's strategy may raise anything
            *_, frame = traceback.extract_tb(error.__traceback__)
            place = f"{frame.filename}:{frame.lineno}"
            raise AllocateError(f"{self.name} raised {type(error).__name__}: {error} ({place})") from error
        if not isinstance(share, Collection) or isinstance(share, str | bytes):
            raise AllocateError(f"{self.name} returned {_a(share)}; expected a list of queues")
        known = frozenset(queues)
        if stray := [one for one in share if not isinstance(one, MessageQueue) or one not in known]:
            raise AllocateError(f"{self.name} returned {stray[0]}, but the topic has no such queue")
        return frozenset(share)


def averagely(
    group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
) -> list[MessageQueue]:
    """Return a contiguous range; the first members may get one queue more (`AllocateMessageQueueAveragely`)."""
    if not _is_member(client_id, queues, client_ids):
        return []
    index, members = client_ids.index(client_id), len(client_ids)
    share, rest = divmod(len(queues), members)
    size = share + 1 if index < rest else share
    start = index * size if index < rest else index * size + rest
    return list(queues[start : start + size])


def averagely_by_circle(
    group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
) -> list[MessageQueue]:
    """Give one queue to each member in turn (`AllocateMessageQueueAveragelyByCircle`)."""
    if not _is_member(client_id, queues, client_ids):
        return []
    return list(queues[client_ids.index(client_id) :: len(client_ids)])


def consistent_hash(
    group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
) -> list[MessageQueue]:
    """Assign queues by an MD5 hash ring: a new member moves few queues (`AllocateMessageQueueConsistentHash`)."""
    if not _is_member(client_id, queues, client_ids):
        return []
    ring = {_ring_hash(f"{member}-{node}"): member for member in client_ids for node in range(VIRTUAL_NODES_PER_MEMBER)}
    places = sorted(ring)

    def owner(queue: MessageQueue) -> str:
        # Java hashes the text of `MessageQueue.toString()`
        text = f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, queueId={queue.queue_id}]"
        return ring[places[bisect_left(places, _ring_hash(text)) % len(places)]]

    return [queue for queue in queues if owner(queue) == client_id]


def machine_room_nearby(
    group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
) -> list[MessageQueue]:
    """Divide the queues of each machine room among the members in that room (`AllocateMachineRoomNearby`).

    Queues of rooms without members are divided among all members. Both divisions use `averagely`. In Java, the user
    writes the code that finds the machine room of a broker or member. Here the room is part of the broker's name and of
    the member's client id. Raises AllocateError if a name or client id has no room.
    """
    if not _is_member(client_id, queues, client_ids):
        return []
    queues_of: dict[str, list[MessageQueue]] = {}
    for queue in queues:
        queues_of.setdefault(machine_room_of_broker(queue.broker_name), []).append(queue)
    members_of: dict[str, list[str]] = {}
    for member in client_ids:
        members_of.setdefault(machine_room_of_member(member), []).append(member)
    own_room = machine_room_of_member(client_id)
    near = queues_of.pop(own_room, [])
    mine = averagely(group, client_id, near, members_of[own_room]) if near else []
    for room in sorted(queues_of, key=_java_order):
        if room not in members_of:
            mine += averagely(group, client_id, queues_of[room], client_ids)
    return mine


def machine_room_of_broker(broker_name: str) -> str:
    """Return the machine room of a broker named `room@name`. Raises AllocateError if the name has no room."""
    room, separator, _ = broker_name.partition(MACHINE_ROOM_SEPARATOR)
    if not (room and separator):
        raise AllocateError(
            f"broker {broker_name} has no machine room in its name; expected brokers named room@name for "
            "machine_room_nearby"
        )
    return room


def machine_room_of_member(client_id: str) -> str:
    """Return the machine room in a client id of the form `ip@room@name`. Raises AllocateError if there is no room.

    The client's instance name is then `room@name`. A client id `ip@instance@unit`, with a unit name, cannot be
    distinguished from this form, so its instance name counts as the room.
    """
    parts = client_id.split(MACHINE_ROOM_SEPARATOR)
    if len(parts) < 3 or not parts[1]:
        raise AllocateError(
            f"member {client_id} has no machine room in its client id; expected instance names (client.instance_name) "
            "of the form room@name in every member of the group, for machine_room_nearby"
        )
    return parts[1]


@dataclass(frozen=True, slots=True)
class AllocateByConfig:
    """Assigns the queues that this member's configuration lists (`AllocateMessageQueueByConfig`)."""

    configured_queues: tuple[MessageQueue, ...]

    def __call__(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """Return the configured queues of this topic. Java returns the queues of all topics; the effect is equal."""
        return [queue for queue in self.configured_queues if queue in queues]


@dataclass(frozen=True, slots=True)
class AllocateByMachineRoom:
    """Divides the queues of the brokers in `machine_rooms` among all members (`AllocateMessageQueueByMachineRoom`)."""

    machine_rooms: frozenset[str]

    def __call__(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """Return a contiguous range. Ranges have equal size; the first members also get one remaining queue each."""
        if not _is_member(client_id, queues, client_ids):
            return []
        near = [queue for queue in queues if self._has(queue.broker_name)]
        index, members = client_ids.index(client_id), len(client_ids)
        share, rest = divmod(len(near), members)
        mine = near[index * share : (index + 1) * share]
        return [*mine, near[members * share + index]] if index < rest else mine

    def _has(self, broker_name: str) -> bool:
        parts = broker_name.split(MACHINE_ROOM_SEPARATOR)
        while len(parts) > 1 and not parts[-1]:  # Java's split drops empty parts at the end
            parts.pop()
        return len(parts) == 2 and parts[0] in self.machine_rooms


ALLOCATE_STRATEGIES: Mapping[str, AllocateMessageQueueStrategy] = {
    "averagely": averagely,
    "averagely_by_circle": averagely_by_circle,
    "consistent_hash": consistent_hash,
    "machine_room_nearby": machine_room_nearby,
}
"""The strategies without settings, by name."""


def sorted_client_ids(client_ids: Sequence[str]) -> list[str]:
    """Return the client ids in Java's string order (by UTF-16 units), without duplicates."""
    return sorted(set(client_ids), key=_java_order)


def _a(value: object) -> str:
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def _java_order(text: str) -> bytes:
    return text.encode("utf-16-be", "surrogatepass")


def _is_member(client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> bool:
    """Return whether the member is listed. Raises AllocateError (Java: IllegalArgumentException) if a list is empty."""
    if not queues or not client_ids:
        raise AllocateError(f"nothing to allocate: there are no {'members' if queues else 'queues'}")
    return client_id in client_ids


def _ring_hash(text: str) -> int:
    return int.from_bytes(hashlib.md5(text.encode("utf-8", "replace"), usedforsecurity=False).digest()[:4])
