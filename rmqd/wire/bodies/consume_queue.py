"""Entries of a queue's index as administrators see them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from rmqd.wire.bodies.base import Body
from rmqd.wire.bodies.heartbeat import SubscriptionData


@dataclass(frozen=True, slots=True)
class ConsumeQueueData(Body, called="an entry of a queue"):
    """One entry: where its message is in the commit log, and the hash of its tag.

    `eval` says whether an extended index lets the message through; there is no such index here.
    """

    constants: ClassVar[Mapping[str, Any]] = {"eval": False}

    physic_offset: int
    physic_size: int
    tags_code: int


@dataclass(frozen=True, slots=True)
class QueryConsumeQueueResponseBody(Body):
    """The reply to QUERY_CONSUME_QUEUE (321): entries, the queue's ends, and the subscription of the group named."""

    min_queue_index: int
    max_queue_index: int
    queue_data: tuple[ConsumeQueueData, ...]
    subscription_data: SubscriptionData | None = None
    filter_data: str | None = None
