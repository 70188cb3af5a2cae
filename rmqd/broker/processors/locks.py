"""Locks of queues (`AdminBrokerProcessor.java`)."""

from __future__ import annotations

from rmqd.broker.channel import Channel
from rmqd.broker.processors.base import RequestProcessor, answers
from rmqd.broker.reply import Reply
from rmqd.codes import RequestCode
from rmqd.wire.bodies.lock import LockBatchRequestBody, LockBatchResponseBody
from rmqd.wire.command import RemotingCommand


class LockProcessor(RequestProcessor):
    """Locks and unlocks queues."""

    @answers(RequestCode.LOCK_BATCH_MQ)
    def lock(self, channel: Channel, request: RemotingCommand) -> Reply:
        """LOCK_BATCH_MQ (41): lock queues. Queues that are missing from the response belong to another member."""
        body = LockBatchRequestBody.from_json(request.body)
        got = self._broker.locks.lock(body.consumer_group, body.client_id, body.queues)
        return Reply(body=LockBatchResponseBody(got).to_json())

    @answers(RequestCode.UNLOCK_BATCH_MQ)
    def unlock(self, channel: Channel, request: RemotingCommand) -> Reply:
        """UNLOCK_BATCH_MQ (42): unlock the queues that the client owns."""
        body = LockBatchRequestBody.from_json(request.body)
        self._broker.locks.unlock(body.consumer_group, body.client_id, body.queues)
        return Reply()
