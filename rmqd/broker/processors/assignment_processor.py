"""The queues that the broker assigns to a member for pull or pop (`QueryAssignmentProcessor.java`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from rmqd.broker.peer_channel import Channel, Reply
from rmqd.broker.processors.processor_base import RequestProcessor, answers
from rmqd.codes import RequestCode
from rmqd.wire.bodies.heartbeat_data import MessageModel
from rmqd.wire.bodies.pop_bodies import (
    MessageQueueAssignment,
    MessageRequestMode,
    QueryAssignmentRequestBody,
    QueryAssignmentResponseBody,
)
from rmqd.wire.bodies.route_data import PERM_READ
from rmqd.wire.command import RemotingCommand
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.receipt_handle import ANY_QUEUE_ID

Allocate = Callable[[str, Sequence[MessageQueue], Sequence[str]], list[MessageQueue]]
"""Called with a client id, all queues and all client ids, both sorted. Returns the client's queues."""


def averagely(client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> list[MessageQueue]:
    """Return a member's contiguous share of the queues. The first members get one more queue for the remainder."""
    if client_id not in client_ids:
        return []
    index, (share, rest) = client_ids.index(client_id), divmod(len(queues), len(client_ids))
    start = index * share + min(index, rest)
    return list(queues[start : start + share + (index < rest)])


def averagely_by_circle(
    client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
) -> list[MessageQueue]:
    """Return a member's share of the queues if the queues are dealt to the members in turn."""
    if client_id not in client_ids:
        return []
    return list(queues[client_ids.index(client_id) :: len(client_ids)])


STRATEGIES: Final[Mapping[str, Allocate]] = MappingProxyType({"AVG": averagely, "AVG_BY_CIRCLE": averagely_by_circle})
"""The allocation strategies of brokers, by their names in requests."""


def allocate_for_pop(
    allocate: Allocate, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str], share_queues: int
) -> set[MessageQueue]:
    """Return a member's queues to pop: its own and the next `share_queues` members' queues, or -1 for any queue."""
    if share_queues <= 0 or share_queues >= len(client_ids) - 1:
        return {MessageQueue(queue.topic, queue.broker_name, ANY_QUEUE_ID) for queue in queues}
    if len(client_ids) > len(queues):
        if client_id not in client_ids or not queues:
            return set()
        return {queues[client_ids.index(client_id) % len(queues)]}
    own = set(allocate(client_id, queues, client_ids))
    if client_id in client_ids:
        index = client_ids.index(client_id)
        for step in range(1, share_queues + 1):
            own.update(allocate(client_ids[(index + step) % len(client_ids)], queues, client_ids))
    return own


class QueryAssignmentProcessor(RequestProcessor):
    """The processor of requests for the queues that a member reads, and whether the member pulls or pops them."""

    @answers(RequestCode.QUERY_ASSIGNMENT)
    def assignment(self, channel: Channel, request: RemotingCommand) -> Reply:
        """Answer QUERY_ASSIGNMENT (400) with a member's queues; null if the group, topic or strategy is unknown."""
        asked = QueryAssignmentRequestBody.from_json(request.body)
        set_mode = self._broker.groups.request_mode(asked.topic, asked.consumer_group)
        is_pop = set_mode is not None and set_mode.mode == MessageRequestMode.POP
        queues = self._queues(asked, set_mode.pop_share_queue_num if is_pop and set_mode is not None else None)
        mode = MessageRequestMode.POP if is_pop else MessageRequestMode.PULL
        assignments = None if queues is None else tuple(MessageQueueAssignment(queue, mode) for queue in sorted(queues))
        return Reply(body=QueryAssignmentResponseBody(assignments).to_json())

    def queues_of(self, topic: str) -> list[MessageQueue] | None:
        """Return all queues of a topic, sorted; None if the topic cannot be read. This broker is the whole cluster."""
        config = self._broker.topics.get(topic)
        if config is None or not config.perm & PERM_READ:
            return None
        return [MessageQueue(topic, self._broker.name, queue_id) for queue_id in range(config.read_queue_nums)]

    def _queues(self, asked: QueryAssignmentRequestBody, share_queues: int | None) -> Iterable[MessageQueue] | None:
        """Return the queues of a member. `share_queues` is None for a member that pulls."""
        queues = self.queues_of(asked.topic)
        if queues is None:
            return None
        if asked.message_model == MessageModel.BROADCASTING:
            return queues
        info, allocate = self._broker.consumers.get(asked.consumer_group), STRATEGIES.get(asked.strategy_name)
        if info is None or allocate is None:
            return None
        members = sorted(info.client_ids)
        if share_queues is None:
            return allocate(asked.client_id, queues, members)
        return allocate_for_pop(allocate, asked.client_id, queues, members, share_queues)
