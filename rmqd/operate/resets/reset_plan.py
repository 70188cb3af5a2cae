"""The plan of a reset in a topic: each queue's current offset and its new one, or the reason why the queue stays."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, Literal

from rmqd.client.api.admin_requests import broker_config, topic_stats
from rmqd.client.api.offset_requests import query_consumer_offset, search_offset
from rmqd.client.brokers import Brokers
from rmqd.client.group_reader import GroupReader, MemberReport
from rmqd.client.remoting.remoting_client import RemotingClient
from rmqd.errors import BrokerAwayError, OffsetResetError, RmqdError, RouteNotFoundError
from rmqd.operate.queries.group_queries import message_model
from rmqd.wire.bodies.group_bodies import ProcessQueueInfo
from rmqd.wire.bodies.route_data import is_logical_broker
from rmqd.wire.bodies.stats_bodies import ConsumerConnection, TopicOffset, TopicStatsTable
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.topics import dlq_topic, is_light_queue


@dataclass(frozen=True, slots=True)
class ResetGoal:
    """The destination of a reset.

    `number` is an offset for `offset`, Unix milliseconds for `time`, and a number of messages for `skip`. `offsets` are
    for `exact`, by broker and queue id; other queues stay.
    """

    kind: Literal["first", "last", "offset", "time", "skip", "exact"]
    number: int = 0
    offsets: Mapping[tuple[str, int], int] | None = None
    forward_only: bool = False
    """A queue at this offset or beyond it stays."""

    @property
    def timestamp_ms(self) -> int | None:
        """The time for brokers that reset only by time, -1 for the end; None if the goal is not a time."""
        return {"first": 0, "last": -1, "time": self.number}.get(self.kind)

    async def offset_in(
        self, remoting: RemotingClient, address: str, queue: MessageQueue, ends: TopicOffset, committed: int | None
    ) -> int | None:
        """Return the target offset of a queue, which may exceed its ends; None if the queue stays. Raises RmqdError."""
        match self.kind:
            case "first":
                return ends.min_offset
            case "last":
                return ends.max_offset
            case "offset":
                return self.number
            case "time":
                return await search_offset(remoting, address, queue, self.number)
            case "skip":
                return (ends.min_offset if committed is None else committed) + self.number
            case "exact":
                return (self.offsets or {}).get((queue.broker_name, queue.queue_id))


@dataclass(frozen=True, slots=True)
class QueueSelection:
    """A selection of a topic's queues: one broker's, or one queue id, or both. None stands for all."""

    broker: str | None = None
    queue_id: int | None = None

    def has(self, queue: MessageQueue) -> bool:
        """Return whether a queue is selected."""
        return self.broker in (None, queue.broker_name) and self.queue_id in (None, queue.queue_id)


@dataclass(frozen=True, slots=True)
class OffsetChange:
    """The requested reset of a group in a topic, by their names at the brokers."""

    group: str
    topic: str
    goal: ResetGoal
    scope: QueueSelection = QueueSelection()


SERVER_SIDE_RESET: Final = "useServerSideResetOffset"


class ResetNotice(Enum):
    """How one broker notifies members of a reset.

    RocketMQ 5 stores a reset for the group's next pull of the queue (`useServerSideResetOffset`): to any offset of any
    queue. Brokers of 4.x, and brokers with that setting off, push it to the members: only to a time, in all queues of
    the topic on that broker, and only if all of these queues have a stored offset. If the group has no members to
    receive the reset, an offset is simply stored.
    """

    PULLED = "with their next pull"
    PUSHED = "by a push"


async def _notice_of(remoting: RemotingClient, address: str) -> ResetNotice:
    config = await broker_config(remoting, address)
    return ResetNotice.PULLED if config.get(SERVER_SIDE_RESET) == "true" else ResetNotice.PUSHED


@dataclass(frozen=True, slots=True)
class QueuePlace:
    """A group's offset in one queue at one moment.

    `owner` is the member that reports owning the queue, or "". `held` is its report on the queue; None if it pops the
    queue.
    """

    committed: int | None
    owner: str = ""
    held: ProcessQueueInfo | None = None
    is_popped: bool = False
    is_orderly: bool = False


@dataclass(frozen=True, slots=True)
class GroupPlaces:
    """A group's offsets in a topic's queues. `members` are readers; `silent` ones do not report their queues."""

    places: Mapping[MessageQueue, QueuePlace]
    errors: Mapping[MessageQueue, RmqdError]
    members: frozenset[str]
    silent: frozenset[str]
    message_model: str | None


async def read_places(reader: GroupReader, topic: str, queues: Iterable[MessageQueue]) -> GroupPlaces:
    """Return the offsets. Brokers are asked first, so members that obeyed report at least the stored offset."""
    remoting, group = reader.brokers.client.remoting, reader.group
    committed, known = await asyncio.gather(
        reader.brokers.ask_masters_of(
            queues, lambda address, queue: query_consumer_offset(remoting, address, group, queue)
        ),
        reader.connections(),
    )
    members = await reader.members(known.found)
    readers = {one.client_id for one in members.values() if _reads(one, topic, known.found)}
    any_known = next(iter(known.found.values()), None)
    return GroupPlaces(
        {queue: _place(queue, offset, members.values()) for queue, offset in committed.found.items()},
        committed.errors,
        frozenset(readers),
        frozenset(client_id for client_id in readers if members[client_id].info is None),
        None if any_known is None else message_model(any_known),
    )


def _reads(member: MemberReport, topic: str, known: Mapping[str, ConsumerConnection]) -> bool:
    """Return whether a member may read the topic; a silent member by the group's last heartbeat at its broker."""
    if member.subscriptions is None:
        table = known[next(iter(member.connections))].subscription_table
        return not table or topic in table
    return topic in member.subscriptions or any(queue.topic == topic for queue in member.queues)


def _place(queue: MessageQueue, committed: int | None, members: Iterable[MemberReport]) -> QueuePlace:
    for member in members:
        held = member.pulled(queue)
        if held is not None and not held.dropped:
            return QueuePlace(committed, member.client_id, held, is_orderly=member.orderly is True)
    popper = next((member.client_id for member in members if member.popped(queue)), "")
    return QueuePlace(committed, popper, is_popped=bool(popper))


@dataclass(frozen=True, slots=True)
class PlannedMove:
    """The plan for one queue. `place` is the group's current offset. `target` is within `ends`, the queue's ends."""

    queue: MessageQueue
    place: QueuePlace
    ends: TopicOffset
    target: int
    wanted: int
    """The target before it was limited to the queue's ends."""
    goal: ResetGoal

    @property
    def is_due(self) -> bool:
        """Whether the broker's offset, or the owner's, differs from the target.

        A member whose own offset is at the target end of its queue, or beyond a skip, is not reset: its next commit has
        the same effect.
        """
        held, committed = self.place.held, self.place.committed
        at = committed if held is None else held.commit_offset
        if self.goal.forward_only:
            return at is None or at < self.target
        return at != self.target or (committed != self.target and self.goal.kind != "last")

    @property
    def begin(self) -> int:
        """The offset to continue at without the reset, within the queue; its first message for a group without one."""
        return min(max(self.place.committed or 0, self.ends.min_offset), self.ends.max_offset)

    @property
    def handled_again(self) -> int:
        """The number of messages that are handled again."""
        return max(0, self.begin - self.target)

    @property
    def skipped(self) -> int:
        """The number of messages that are skipped."""
        return max(0, self.target - self.begin)


@dataclass(frozen=True, slots=True)
class ResetPlan:
    """The plan of a change. `errors` has the brokers that do not answer, or refuse: their queues keep their offsets."""

    change: OffsetChange
    moves: tuple[PlannedMove, ...]
    errors: Mapping[str, RmqdError]
    places: GroupPlaces
    notices: Mapping[str, ResetNotice]

    @property
    def due(self) -> tuple[PlannedMove, ...]:
        """The queues that are not at their target yet."""
        return tuple(move for move in self.moves if move.is_due)

    @property
    def confirmed(self) -> OffsetChange:
        """The change with a fixed goal: a skip counts from the shown offsets, and never moves a queue back."""
        if self.change.goal.kind != "skip":
            return self.change
        shown = {(move.queue.broker_name, move.queue.queue_id): move.wanted for move in self.moves}
        return replace(self.change, goal=ResetGoal("exact", offsets=shown, forward_only=True))


async def plan_reset(brokers: Brokers, change: OffsetChange) -> ResetPlan:
    """Return the plan. Raises RmqdError if the topic or the group cannot be reset at all."""
    group, topic = change.group, change.topic
    if topic == dlq_topic(group):
        raise OffsetResetError(
            f"{topic} contains the group's dead letters, and members do not consume it; "
            "`rmqd dlq replay` handles them again, and `rmqd dlq purge` settles them"
        )
    queues = await _queues(brokers, topic, change.scope)
    names = sorted({queue.broker_name for queue in queues})
    here = [name for name in names if name in brokers.masters]
    reader = GroupReader(brokers, group)
    settings, notices, places = await asyncio.gather(
        reader.settings(here), brokers.ask(_notice_of, names=here), read_places(reader, topic, queues)
    )
    # query the queues' ends last: then no member's offset is above them
    stats = await brokers.ask(topic_stats, topic, names=here)
    if places.message_model == "broadcasting":
        raise broadcasting(group)
    errors: dict[str, RmqdError] = {name: BrokerAwayError(topic, name) for name in names if name not in here}
    errors |= {**settings.errors, **stats.errors, **notices.errors}
    errors |= {queue.broker_name: error for queue, error in places.errors.items()}
    unknown = [name for name, config in settings.found.items() if config is None]
    if unknown and len(unknown) == len(names):
        raise OffsetResetError(f"no broker of topic {topic} knows group {group}; run `rmqd groups list` to see all")
    errors |= {name: OffsetResetError(f"this broker does not know group {group}: {_UNKNOWN}") for name in unknown}
    asked = [queue for queue in queues if queue.broker_name not in errors]
    has = {(queue.broker_name, queue.queue_id) for queue in queues}
    for name, number in sorted((change.goal.offsets or {}).keys() - has):
        errors[f"{name} queue {number}"] = OffsetResetError(f"the topic {topic} has no such readable queue now")
    moves, refused = await _moves(brokers, change.goal, asked, stats.found, places)
    return ResetPlan(change, moves, errors | refused, places, notices.found)


def broadcasting(group: str) -> OffsetResetError:
    """Return the error for a broadcasting group, which cannot be reset."""
    return OffsetResetError(
        f"group {group} is broadcasting: each member stores its offsets in its own file, and brokers cannot reset "
        "them; stop a member and edit its offsets.json (docs/operating.md, Broadcasting)"
    )


_UNKNOWN = "nothing is reset there; a member will begin with the first message"


async def _queues(brokers: Brokers, topic: str, scope: QueueSelection) -> list[MessageQueue]:
    if is_light_queue(topic):
        raise OffsetResetError(f"{topic} is a light message queue: brokers reset only offsets of topics")
    routes = brokers.client.routes
    try:
        await routes.lookup(topic)
    except RouteNotFoundError as error:
        raise RmqdError(f"{error}; run `rmqd topics list` to see all") from None
    queues = routes.queues(topic)
    if any(is_logical_broker(queue.broker_name) for queue in queues):
        raise OffsetResetError(
            f"{topic} is a static topic: its queues move between brokers, and each broker would reset only its part"
        )
    meant = [queue for queue in queues if scope.has(queue)]
    if not meant:
        have = ", ".join(map(str, queues)) or "none"
        raise OffsetResetError(f"topic {topic} has no such readable queue; expected one of {have}")
    return meant


async def _moves(
    brokers: Brokers,
    goal: ResetGoal,
    queues: Sequence[MessageQueue],
    stats: Mapping[str, TopicStatsTable],
    places: GroupPlaces,
) -> tuple[tuple[PlannedMove, ...], dict[str, RmqdError]]:
    remoting = brokers.client.remoting

    async def move(address: str, queue: MessageQueue) -> PlannedMove | None:
        ends = stats[queue.broker_name].offset_table.get(queue)
        if ends is None:  # the route is being changed: the broker has fewer queues than the route says
            return None
        place = places.places[queue]
        wanted = await goal.offset_in(remoting, address, queue, ends, place.committed)
        if wanted is None:
            return None
        target = max(ends.min_offset, min(wanted, ends.max_offset))
        return PlannedMove(queue, place, ends, target, wanted, goal)

    found = await brokers.ask_masters_of(queues, move)
    moves = tuple(one for one in found.found.values() if one is not None)
    return moves, {queue.broker_name: error for queue, error in found.errors.items()}
