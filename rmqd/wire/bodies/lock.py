"""Bodies of the requests that lock and unlock queues on a broker: LOCK_BATCH_MQ (41), UNLOCK_BATCH_MQ (42)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from rmqd.wire.bodies.base import Body
from rmqd.wire.fields import Named
from rmqd.wire.message_queue import MessageQueue


@dataclass(frozen=True, slots=True)
class LockBatchRequestBody(Body):
    """LOCK_BATCH_MQ (41): the queues to lock, or to keep locked. UNLOCK_BATCH_MQ (42): the queues to unlock."""

    consumer_group: str
    client_id: str
    queues: Annotated[tuple[MessageQueue, ...], Named("mqSet")]
    only_this_broker: bool = False


@dataclass(frozen=True, slots=True)
class LockBatchResponseBody(Body):
    """The response to LOCK_BATCH_MQ (41): the caller's locked queues. Another member has the missing ones."""

    queues: Annotated[frozenset[MessageQueue], Named("lockOKMQSet")]
