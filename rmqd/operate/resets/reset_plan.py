"""The plan of a reset in a topic: each queue's current offset and its new one, or the reason why the queue stays."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rmqd.client.api.admin_requests import topic_stats
from rmqd.client.api.group_requests import subscription_groups
from rmqd.client.api.offset_requests import search_offset
from rmqd.errors import BrokerAwayError, OffsetResetError, RmqdError, RouteNotFoundError
from rmqd.operate.resets.reset_places import PlaceReader, WayOf, way_of
from rmqd.wire.bodies.route_data import is_logical
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.topics import dlq_topic, is_light_queue

if TYPE_CHECKING:
    from rmqd.operate.queries.message_queries import Brokers
    from rmqd.operate.resets.reset_places import Goal, GroupPlaces, QueuePlace
    from rmqd.wire.bodies.stats_bodies import TopicOffset, TopicStatsTable


@dataclass(frozen=True, slots=True)
class PlannedMove:
    """The plan for one queue. `place` is the group's current offset. `target` is within `ends`, the queue's ends."""

    queue: MessageQueue
    place: QueuePlace
    ends: TopicOffset
    target: int
    wanted: int
    """The target before it was limited to the queue's ends."""
    goal: Goal

    @property
    def is_due(self) -> bool:
        """Whether the broker's offset, or the owner's, differs from the target.

        A member at the end of its queue, or beyond a skip, is not reset there: its next commit stores the same.
        """
        held, committed = self.place.held, self.place.committed
        at = committed if held is None else held.commit_offset
        if self.goal.forward_only:
            return at is None or at < self.target
        return at != self.target or (committed != self.target and self.goal.kind != "last")

    @property
    def begin(self) -> int:
        """The offset to continue at without the reset; the first message for a group without an offset."""
        return max(self.place.committed or 0, self.ends.min_offset)

    @property
    def gained(self) -> int:
        """The number of messages that are handled again."""
        return max(0, self.begin - self.target)

    @property
    def skipped(self) -> int:
        """The number of messages that are skipped."""
        return max(0, self.target - self.begin)


@dataclass(frozen=True, slots=True)
class ResetPlan:
    """A group's reset in a topic. `errors` are by broker: its queues stay, because it does not answer, or refuses."""

    group: str
    topic: str
    goal: Goal
    moves: tuple[PlannedMove, ...]
    errors: Mapping[str, RmqdError]
    places: GroupPlaces
    ways: Mapping[str, WayOf]

    @property
    def due(self) -> tuple[PlannedMove, ...]:
        """The queues that are not at their target yet."""
        return tuple(move for move in self.moves if move.is_due)


@dataclass(frozen=True, slots=True)
class Scope:
    """A selection of a topic's queues: one broker's, or one queue id, or both. None stands for all."""

    broker: str | None = None
    queue_id: int | None = None

    def has(self, queue: MessageQueue) -> bool:
        """Return whether a queue is selected."""
        return self.broker in (None, queue.broker_name) and self.queue_id in (None, queue.queue_id)


async def plan_reset(brokers: Brokers, group: str, topic: str, goal: Goal, scope: Scope) -> ResetPlan:
    """Return the plan. Raises RmqdError if the topic or the group cannot be reset at all."""
    if topic == dlq_topic(group):
        raise OffsetResetError(
            f"{topic} contains the group's dead letters, and members do not consume it; "
            "`rmqd dlq replay` handles them again, and `rmqd dlq purge` settles them"
        )
    queues = await _queues(brokers, topic, scope)
    names = sorted({queue.broker_name for queue in queues})
    here = [name for name in names if name in brokers.masters]
    remoting = brokers.client.remoting
    tables, ways, places = await asyncio.gather(
        brokers.ask(lambda address: subscription_groups(remoting, address), here),
        brokers.ask(lambda address: way_of(remoting, address), here),
        PlaceReader(brokers, group, topic).look(queues),
    )
    # query the queues' ends last: then no member's offset is above them
    stats = await brokers.ask(lambda address: topic_stats(remoting, address, topic), here)
    if places.message_model == "broadcasting":
        raise broadcasting(group)
    errors: dict[str, RmqdError] = {name: BrokerAwayError(topic, name) for name in names if name not in here}
    errors |= {**tables.errors, **stats.errors, **ways.errors}
    errors |= {queue.broker_name: error for queue, error in places.errors.items()}
    unknown = [name for name, table in tables.by_broker.items() if group not in table]
    if unknown and len(unknown) == len(names):
        raise OffsetResetError(f"no broker of topic {topic} knows group {group}; run `rmqd groups list` to see all")
    errors |= {name: OffsetResetError(f"this broker does not know group {group}: {_UNKNOWN}") for name in unknown}
    asked = [queue for queue in queues if queue.broker_name not in errors]
    moves, refused = await _moves(brokers, goal, asked, stats.by_broker, places)
    return ResetPlan(group, topic, goal, moves, errors | refused, places, ways.by_broker)


def broadcasting(group: str) -> OffsetResetError:
    """Return the error for a broadcasting group, which cannot be reset."""
    return OffsetResetError(
        f"group {group} is broadcasting: each member stores its offsets in its own file, and brokers cannot reset "
        "them; stop a member and edit its offsets.json (docs/operating.md, Broadcasting)"
    )


_UNKNOWN = "nothing is reset there; a member will begin with the first message"


async def _queues(brokers: Brokers, topic: str, scope: Scope) -> list[MessageQueue]:
    if is_light_queue(topic):
        raise OffsetResetError(f"{topic} is a light message queue: brokers reset only offsets of topics")
    routes = brokers.client.routes
    try:
        await routes.lookup(topic)
    except RouteNotFoundError as error:
        raise RmqdError(f"{error}; run `rmqd topics list` to see all") from None
    queues = routes.queues(topic)
    if any(is_logical(queue.broker_name) for queue in queues):
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
    goal: Goal,
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
        wanted = await goal.offset_in(
            queue, ends, place.committed, lambda queue, time_ms: search_offset(remoting, address, queue, time_ms)
        )
        if wanted is None:
            return None
        target = max(ends.min_offset, min(wanted, ends.max_offset))
        return PlannedMove(queue, place, ends, target, wanted, goal)

    found = await brokers.ask_about(queues, move)
    moves = tuple(one for one in found.by_queue.values() if one is not None)
    return moves, {queue.broker_name: error for queue, error in found.errors.items()}
