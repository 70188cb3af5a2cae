"""Requests for queue locks. A broker keeps locks in memory; a lock that is not renewed expires after 60 s."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rmqd.client.api.request import REQUEST_TIMEOUT_SECONDS, request
from rmqd.codes import RequestCode
from rmqd.wire.bodies.lock import LockBatchRequestBody, LockBatchResponseBody

if TYPE_CHECKING:
    from rmqd.client.remoting.client import RemotingClient
    from rmqd.wire.message_queue import MessageQueue


async def lock_batch(
    remoting: RemotingClient,
    address: str,
    group: str,
    client_id: str,
    queues: Iterable[MessageQueue],
    *,
    timeout_seconds: float = REQUEST_TIMEOUT_SECONDS,
) -> frozenset[MessageQueue]:
    """Lock queues for a client, or renew its locks. Returns the queues that the client has locked."""
    body = LockBatchRequestBody(consumer_group=group, client_id=client_id, queues=tuple(queues))
    reply = await request(remoting, address, RequestCode.LOCK_BATCH_MQ, body.to_json(), timeout_seconds=timeout_seconds)
    return frozenset(LockBatchResponseBody.from_json(reply.body).queues)


async def unlock_batch(
    remoting: RemotingClient, address: str, group: str, client_id: str, queues: Iterable[MessageQueue]
) -> None:
    """Unlock queues. Locks of other clients are unchanged."""
    body = LockBatchRequestBody(consumer_group=group, client_id=client_id, queues=tuple(queues))
    await request(remoting, address, RequestCode.UNLOCK_BATCH_MQ, body.to_json())
