"""The plan of a reset: each queue's current and new offset, or the reason why a queue's offset cannot change."""

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
from rmqd.errors import BrokerUnknownError, OffsetResetError, RmqdError, RouteNotFoundError
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
    the new offsets for `exact`, by broker name and queue id. Queues that are not in `offsets` keep their offsets.
    """

    kind: Literal["first", "last", "offset", "time", "skip", "exact"]
    number: int = 0
    offsets: Mapping[tuple[str, int], int] | None = None
    forward_only: bool = False
    """Whether queues in which the group is at the target or beyond keep their offsets."""

    @property
    def timestamp_ms(self) -> int | None:
        """The Unix milliseconds for brokers that reset only by time; -1 for the end, None if the goal is not a time."""
        return {"first": 0, "last": -1, "time": self.number}.get(self.kind)

    async def offset_in(
        self, remoting: RemotingClient, address: str, queue: MessageQueue, ends: TopicOffset, committed: int | None
    ) -> int | None:
        """Return a queue's target, which may be outside its `ends`; None keeps its offset. Raises RmqdError."""
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
    """A selection of a topic's queues by broker name, queue id, or both. None selects all brokers or all ids."""

    broker: str | None = None
    queue_id: int | None = None

    def has(self, queue: MessageQueue) -> bool:
        return self.broker in (None, queue.broker_name) and self.queue_id in (None, queue.queue_id)


@dataclass(frozen=True, slots=True)
class OffsetChange:
    """The requested reset of a group in a topic. Names include the namespace, as on brokers."""

    group: str
    topic: str
    goal: ResetGoal
    scope: QueueSelection = QueueSelection()


SERVER_SIDE_RESET: Final = "useServerSideResetOffset"


class ResetNotice(Enum):
    """How one broker notifies members of a reset.

    PULLED: brokers of 5.x with `useServerSideResetOffset` store the reset, and report it in the response to the group's
    next pull of the queue. They can reset any queue to any offset. PUSHED: other brokers push the reset to the
    connected members. They can only reset to a time, only all queues of the topic on that broker, and only if all these
    queues have a stored offset. If the group has no members, rmqd commits the offset instead.
    """

    PULLED = "with their next pull"
    PUSHED = "by a push"


async def _notice_of(remoting: RemotingClient, address: str) -> ResetNotice:
    config = await broker_config(remoting, address)
    return ResetNotice.PULLED if config.get(SERVER_SIDE_RESET) == "true" else ResetNotice.PUSHED


@dataclass(frozen=True, slots=True)
class QueuePosition:
    """A group's offset in one queue at one moment.

    `owner` is the client id of the member that reports owning the queue, or "". `held` is the owner's report on the
    queue; None if there is no owner, or it pops the queue.
    """

    committed: int | None
    owner: str = ""
    held: ProcessQueueInfo | None = None
    is_popped: bool = False
    is_orderly: bool = False


@dataclass(frozen=True, slots=True)
class GroupPositions:
    """A group's offsets in a topic. `members` read the topic; `silent` members do not report their queues."""

    places: Mapping[MessageQueue, QueuePosition]
    errors: Mapping[MessageQueue, RmqdError]
    members: frozenset[str]
    silent: frozenset[str]
    message_model: str | None


async def read_places(reader: GroupReader, topic: str, queues: Iterable[MessageQueue]) -> GroupPositions:
    """Return a group's offsets in these queues.

    Brokers are asked before members, so a member that has applied a reset reports at least the stored offset.
    """
    remoting, group = reader.brokers.client.remoting, reader.group
    committed, known = await asyncio.gather(
        reader.brokers.request_for_queues(
            queues, lambda address, queue: query_consumer_offset(remoting, address, group, queue)
        ),
        reader.connections(),
    )
    members = await reader.members(known.found)
    readers = {one.client_id for one in members.values() if _reads(one, topic, known.found)}
    any_known = next(iter(known.found.values()), None)
    return GroupPositions(
        {queue: _place(queue, offset, members.values()) for queue, offset in committed.found.items()},
        committed.errors,
        frozenset(readers),
        frozenset(client_id for client_id in readers if members[client_id].info is None),
        None if any_known is None else message_model(any_known),
    )


def _reads(member: MemberReport, topic: str, known: Mapping[str, ConsumerConnection]) -> bool:
    """Return whether a member may read the topic. For a silent member, its broker's record of the group decides."""
    if member.subscriptions is None:
        table = known[next(iter(member.connections))].subscription_table
        return not table or topic in table
    return topic in member.subscriptions or any(queue.topic == topic for queue in member.queues)


def _place(queue: MessageQueue, committed: int | None, members: Iterable[MemberReport]) -> QueuePosition:
    for member in members:
        held = member.pulled_queue_info(queue)
        if held is not None and not held.dropped:
            return QueuePosition(committed, member.client_id, held, is_orderly=member.orderly is True)
    popper = next((member.client_id for member in members if member.popped_queue_infos(queue)), "")
    return QueuePosition(committed, popper, is_popped=bool(popper))


@dataclass(frozen=True, slots=True)
class PlannedQueueReset:
    """The planned reset of one queue, from the group's `place` to `target`, which is within the queue's `ends`."""

    queue: MessageQueue
    place: QueuePosition
    ends: TopicOffset
    target: int
    wanted: int
    """The target before it was limited to the queue's ends."""
    goal: ResetGoal

    @property
    def is_due(self) -> bool:
        """Whether a reset must be sent: the owner's or the broker's offset differs from the target.

        If the owner is at the queue's end (goal `last`), or at or beyond a `forward_only` target, no reset is sent. The
        owner's next commit has the same effect.
        """
        held, committed = self.place.held, self.place.committed
        at = committed if held is None else held.commit_offset
        if self.goal.forward_only:
            return at is None or at < self.target or at > self.ends.max_offset
        return at != self.target or (committed != self.target and self.goal.kind != "last")

    @property
    def starts_above_end(self) -> bool:
        """Whether the group's offset is above the queue's end: the topic was recreated, or the broker lost messages."""
        return (self.place.committed or 0) > self.ends.max_offset

    @property
    def offset_without_reset(self) -> int:
        """The offset at which the group would continue without a reset; the first message if it has no offset."""
        return min(max(self.place.committed or 0, self.ends.min_offset), self.ends.max_offset)

    @property
    def handled_again(self) -> int:
        """How many messages the group will handle again because of the reset."""
        return max(0, self.offset_without_reset - self.target)

    @property
    def skipped(self) -> int:
        """How many messages the group will not handle because of the reset."""
        return max(0, self.target - self.offset_without_reset)


@dataclass(frozen=True, slots=True)
class ResetPlan:
    """The plan of a reset. `errors` are by broker name; queues on these brokers keep their offsets."""

    change: OffsetChange
    moves: tuple[PlannedQueueReset, ...]
    errors: Mapping[str, RmqdError]
    places: GroupPositions
    notices: Mapping[str, ResetNotice]

    @property
    def due(self) -> tuple[PlannedQueueReset, ...]:
        return tuple(move for move in self.moves if move.is_due)

    @property
    def confirmed(self) -> OffsetChange:
        """The change that the user confirmed. A skip becomes the planned offsets, and moves no queue back."""
        if self.change.goal.kind != "skip":
            return self.change
        shown = {(move.queue.broker_name, move.queue.queue_id): move.wanted for move in self.moves}
        return replace(self.change, goal=ResetGoal("exact", offsets=shown, forward_only=True))


async def plan_reset(brokers: Brokers, change: OffsetChange) -> ResetPlan:
    """Read the group's offsets and plan the change. Raises RmqdError if the topic or the group cannot be reset."""
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
        reader.settings(here), brokers.request_masters(_notice_of, names=here), read_places(reader, topic, queues)
    )
    # the queues' ends are queried last, so that no member's offset is above them
    stats = await brokers.request_masters(topic_stats, topic, names=here)
    if places.message_model == "broadcasting":
        raise broadcasting(group)
    errors: dict[str, RmqdError] = {name: BrokerUnknownError(topic, name) for name in names if name not in here}
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
    """Return the error that explains why a broadcasting group cannot be reset."""
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
    places: GroupPositions,
) -> tuple[tuple[PlannedQueueReset, ...], dict[str, RmqdError]]:
    remoting = brokers.client.remoting

    async def move(address: str, queue: MessageQueue) -> PlannedQueueReset | None:
        ends = stats[queue.broker_name].offset_table.get(queue)
        if ends is None:  # the broker has fewer queues than the route, because an operator is changing the topic
            return None
        place = places.places[queue]
        wanted = await goal.offset_in(remoting, address, queue, ends, place.committed)
        if wanted is None:
            return None
        target = max(ends.min_offset, min(wanted, ends.max_offset))
        return PlannedQueueReset(queue, place, ends, target, wanted, goal)

    found = await brokers.request_for_queues(queues, move)
    moves = tuple(one for one in found.found.values() if one is not None)
    return moves, {queue.broker_name: error for queue, error in found.errors.items()}
