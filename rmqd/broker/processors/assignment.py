"""Assignments of queues to members by the broker (`QueryAssignmentProcessor.java`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rmqd.broker.channel import Channel
from rmqd.broker.pop.assignment import STRATEGIES, allocate_for_pop
from rmqd.broker.processors.base import RequestProcessor, answers
from rmqd.broker.reply import Reply
from rmqd.codes import RequestCode
from rmqd.wire.bodies.heartbeat import MessageModel
from rmqd.wire.bodies.pop import (
    MessageQueueAssignment,
    MessageRequestMode,
    QueryAssignmentRequestBody,
    QueryAssignmentResponseBody,
)
from rmqd.wire.bodies.route import PERM_READ
from rmqd.wire.command import RemotingCommand
from rmqd.wire.message_queue import MessageQueue

if TYPE_CHECKING:
    from collections.abc import Iterable


class QueryAssignmentProcessor(RequestProcessor):
    """Answers which queues of a topic a member reads, and whether it pulls or pops them."""

    @answers(RequestCode.QUERY_ASSIGNMENT)
    def assignment(self, channel: Channel, request: RemotingCommand) -> Reply:
        """QUERY_ASSIGNMENT (400): a member's queues; no list for a new client, or an unknown topic or strategy."""
        asked = QueryAssignmentRequestBody.from_json(request.body)
        set_mode = self._broker.groups.request_mode(asked.topic, asked.consumer_group)
        is_pop = set_mode is not None and set_mode.mode == MessageRequestMode.POP
        queues = self._queues(asked, set_mode.pop_share_queue_num if is_pop and set_mode is not None else None)
        mode = MessageRequestMode.POP if is_pop else MessageRequestMode.PULL
        assignments = None if queues is None else tuple(MessageQueueAssignment(queue, mode) for queue in sorted(queues))
        return Reply(body=QueryAssignmentResponseBody(assignments).to_json())

    def queues_of(self, topic: str) -> list[MessageQueue] | None:
        """Return all queues of a topic, sorted, because this broker is the whole cluster. None if none is readable."""
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
