"""Locks of queues (`AdminBrokerProcessor.java`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rmqd.broker.channel import Channel, Processors
from rmqd.broker.reply import Reply
from rmqd.codes import RequestCode
from rmqd.wire.bodies.lock import LockBatchRequestBody, LockBatchResponseBody
from rmqd.wire.command import RemotingCommand

if TYPE_CHECKING:
    from rmqd.broker.controller import BrokerController


class LockProcessor:
    """Locks and unlocks queues."""

    def __init__(self, broker: BrokerController) -> None:
        self._locks = broker.locks

    def processors(self) -> Processors:
        """The requests that it answers."""
        return {RequestCode.LOCK_BATCH_MQ: self.lock, RequestCode.UNLOCK_BATCH_MQ: self.unlock}

    def lock(self, channel: Channel, request: RemotingCommand) -> Reply:
        """LOCK_BATCH_MQ (41): lock queues. Those that are not in the reply belong to another member."""
        body = LockBatchRequestBody.from_json(request.body)
        got = self._locks.lock(body.consumer_group, body.client_id, body.queues)
        return Reply(body=LockBatchResponseBody(got).to_json())

    def unlock(self, channel: Channel, request: RemotingCommand) -> Reply:
        """UNLOCK_BATCH_MQ (42): unlock those of the queues that the client owns."""
        body = LockBatchRequestBody.from_json(request.body)
        self._locks.unlock(body.consumer_group, body.client_id, body.queues)
        return Reply()
