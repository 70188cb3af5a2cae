"""Which member of a group gets which queue. Every member computes this alone, so results must equal Java's.

A strategy is called with the group, the own client id, all queues of one topic and all client ids, both sorted and each
once, and returns the own queues. As in Java (`CL/consumer/rebalance`, reference protocol 5.9) it gives nothing to a
member that is not in the list, and raises where it cannot tell; then the member keeps what it has.
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
"""(group, own client id, all queues sorted, all client ids sorted) -> own queues"""

JAVA_NAMES: Final = {
    "averagely": "AVG",
    "averagely_by_circle": "AVG_BY_CIRCLE",
    "consistent_hash": "CONSISTENT_HASH",
    "by_config": "CONFIG",
    "by_machine_room": "MACHINE_ROOM",
    "machine_room_nearby": "MACHINE_ROOM_NEARBY-AVG",
}
STRATEGY_NAMES: Final = tuple(JAVA_NAMES)
"""The names of the strategies that come with rmqd."""

BROKERS_NAMES: Final = {name: JAVA_NAMES[name] for name in ("averagely", "averagely_by_circle")}
"""The strategies by which brokers divide queues themselves, as they call them."""
VIRTUAL_NODES: Final = 10  # Java's default for each client of a ring
ROOM_SEPARATOR: Final = "@"


class AllocateError(RmqdError):
    """A strategy cannot tell whose a queue is; the text says what it would need."""


@dataclass(frozen=True, slots=True)
class AllocateStrategy:
    """A strategy under the name that a configuration has for it."""

    name: str
    function: AllocateMessageQueueStrategy

    def share(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> frozenset[MessageQueue]:
        """The own queues, checked to be some of `queues`. Raises AllocateError whatever goes wrong."""
        try:
            share: object = self.function(group, client_id, tuple(queues), tuple(client_ids))
        except AllocateError:
            raise
        except Exception as error:  # somebody else's code
            *_, frame = traceback.extract_tb(error.__traceback__)
            place = f"{frame.filename}:{frame.lineno}"
            raise AllocateError(f"{self.name} raised {type(error).__name__}: {error} ({place})") from error
        if not isinstance(share, Collection) or isinstance(share, str | bytes):
            raise AllocateError(f"{self.name} returned {_a(share)}; accepted: a list of queues")
        known = frozenset(queues)
        if stray := [one for one in share if not isinstance(one, MessageQueue) or one not in known]:
            raise AllocateError(f"{self.name} returned {stray[0]}, and the topic has no such queue")
        return frozenset(share)


def averagely(
    group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
) -> list[MessageQueue]:
    """Contiguous shares; the first members get one more where it does not divide (`AllocateMessageQueueAveragely`)."""
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
    """One queue to each member in turn (`AllocateMessageQueueAveragelyByCircle`)."""
    if not _is_member(client_id, queues, client_ids):
        return []
    return list(queues[client_ids.index(client_id) :: len(client_ids)])


def consistent_hash(
    group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
) -> list[MessageQueue]:
    """The next member on a ring of MD5 hashes, so that few queues move (`AllocateMessageQueueConsistentHash`)."""
    if not _is_member(client_id, queues, client_ids):
        return []
    ring = {_ring_hash(f"{member}-{node}"): member for member in client_ids for node in range(VIRTUAL_NODES)}
    places = sorted(ring)

    def owner(queue: MessageQueue) -> str:
        # the text of Java's MessageQueue
        text = f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, queueId={queue.queue_id}]"
        return ring[places[bisect_left(places, _ring_hash(text)) % len(places)]]

    return [queue for queue in queues if owner(queue) == client_id]


def machine_room_nearby(
    group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
) -> list[MessageQueue]:
    """A room's queues to the members in it, those of rooms without members to all (`AllocateMachineRoomNearby`).

    Within both, averagely. Java has users write the rule by which rooms are told; ours is `broker_room` and
    `client_room`. Raises AllocateError where a broker or a member does not tell its room.
    """
    if not _is_member(client_id, queues, client_ids):
        return []
    queues_of: dict[str, list[MessageQueue]] = {}
    for queue in queues:
        queues_of.setdefault(broker_room(queue.broker_name), []).append(queue)
    members_of: dict[str, list[str]] = {}
    for member in client_ids:
        members_of.setdefault(client_room(member), []).append(member)
    own_room = client_room(client_id)
    near = queues_of.pop(own_room, [])
    mine = averagely(group, client_id, near, members_of[own_room]) if near else []
    for room in sorted(queues_of, key=_java_order):
        if room not in members_of:
            mine += averagely(group, client_id, queues_of[room], client_ids)
    return mine


def broker_room(broker_name: str) -> str:
    """The machine room of a broker that is called `room@name`. Raises AllocateError."""
    room, separator, _ = broker_name.partition(ROOM_SEPARATOR)
    if not (room and separator):
        raise AllocateError(
            f"the broker {broker_name} does not tell its machine room; machine_room_nearby needs brokers that are "
            "called room@name"
        )
    return room


def client_room(client_id: str) -> str:
    """The machine room of a member with the instance name `room@name`, so the id `ip@room@name`. Raises AllocateError.

    A unit name makes a fourth part of the id; without a room in the instance name it would be taken for the name.
    """
    parts = client_id.split(ROOM_SEPARATOR)
    if len(parts) < 3 or not parts[1]:
        raise AllocateError(
            f"the member {client_id} does not tell its machine room; machine_room_nearby needs instance names of the "
            "form room@name (client.instance_name) in every member of the group"
        )
    return parts[1]


@dataclass(frozen=True, slots=True)
class ByConfig:
    """What is written down for this member, whoever else there is (`AllocateMessageQueueByConfig`)."""

    allocated: tuple[MessageQueue, ...]

    def __call__(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """Java returns the queues of all topics for each topic, which comes to the same; ours are those that exist."""
        return [queue for queue in self.allocated if queue in queues]


@dataclass(frozen=True, slots=True)
class ByMachineRoom:
    """The queues of brokers in some rooms, shared by all members (`AllocateMessageQueueByMachineRoom`)."""

    rooms: frozenset[str]

    def __call__(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """Contiguous shares of equal size; what is left over goes to the first members, one each."""
        if not _is_member(client_id, queues, client_ids):
            return []
        near = [queue for queue in queues if self._has(queue.broker_name)]
        index, members = client_ids.index(client_id), len(client_ids)
        share, rest = divmod(len(near), members)
        mine = near[index * share : (index + 1) * share]
        return [*mine, near[members * share + index]] if index < rest else mine

    def _has(self, broker_name: str) -> bool:
        parts = broker_name.split(ROOM_SEPARATOR)
        while len(parts) > 1 and not parts[-1]:  # Java's split leaves them out
            parts.pop()
        return len(parts) == 2 and parts[0] in self.rooms


ALLOCATE_STRATEGIES: Mapping[str, AllocateMessageQueueStrategy] = {
    "averagely": averagely,
    "averagely_by_circle": averagely_by_circle,
    "consistent_hash": consistent_hash,
    "machine_room_nearby": machine_room_nearby,
}
"""The strategies that need no settings, by name."""


def sorted_client_ids(client_ids: Sequence[str]) -> list[str]:
    """Client ids in Java's string order (UTF-16 units), each once."""
    return sorted(set(client_ids), key=_java_order)


def _a(value: object) -> str:
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def _java_order(text: str) -> bytes:
    return text.encode("utf-16-be", "surrogatepass")


def _is_member(client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> bool:
    """Whether there is a share to compute. Raises AllocateError where Java raises IllegalArgumentException."""
    if not queues or not client_ids:
        raise AllocateError(f"there are no {'members' if queues else 'queues'} to divide among")
    return client_id in client_ids


def _ring_hash(text: str) -> int:
    return int.from_bytes(hashlib.md5(text.encode("utf-8", "replace"), usedforsecurity=False).digest()[:4])
