"""Entries of a queue's index as administrators see them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from rmqd.wire.bodies.base import Body
from rmqd.wire.bodies.heartbeat import SubscriptionData


@dataclass(frozen=True, slots=True)
class ConsumeQueueData(Body, called="an entry of a queue"):
    """One entry: the message's commit log offset and the hash of its tag.

    `eval` says whether an extended index passes the message; this broker has no such index.
    """

    constants: ClassVar[Mapping[str, Any]] = {"eval": False}

    physic_offset: int
    physic_size: int
    tags_code: int


@dataclass(frozen=True, slots=True)
class QueryConsumeQueueResponseBody(Body):
    """The response to QUERY_CONSUME_QUEUE (321): entries, the queue's ends, and the subscription of the given group."""

    min_queue_index: int
    max_queue_index: int
    queue_data: tuple[ConsumeQueueData, ...]
    subscription_data: SubscriptionData | None = None
    filter_data: str | None = None
