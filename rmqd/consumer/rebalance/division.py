"""The division of a topic's queues among a group's members."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import ClassVar, Final, NamedTuple

import structlog

from rmqd.consumer.allocate import AllocateError, ByConfig
from rmqd.consumer.assigned.assignment import Assignment
from rmqd.consumer.context import GroupContext
from rmqd.consumer.pull.assigned_queue import AssignedQueue
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.topics import is_retry_topic, retry_topic

log = structlog.get_logger(__name__)

_WITH_RETRIES: Final = ("clustering", "concurrently")
_KEPT: Final = "until then the member keeps its present queues; docs/configuration.md explains the strategies"
_MISSING: Final = "correct allocate_queues, or restore the broker or the queues (`rmqd topics show {topic}`)"


class Share(NamedTuple):
    """The queues of a topic assigned to one member, to pull and to pop."""

    pulled: frozenset[MessageQueue] = frozenset()
    popped: frozenset[MessageQueue] = frozenset()


class Division:
    """Divides a topic's queues: each member computes its share by the group's allocate strategy."""

    is_of_members: ClassVar[bool] = True  # whether the consumer joins the group

    def __init__(self, context: GroupContext) -> None:
        self._context = context

    def begin(self, tasks: asyncio.TaskGroup, changed: Callable[[], None]) -> list[asyncio.Task[None]]:
        """Called when the member joins. Return further tasks, which run until they are cancelled.

        `changed` triggers the next rebalance. Logs a warning if `allocate_queues` lists no queue of the retry topic,
        because this member would then never receive a retry.
        """
        options = self._context.options
        strategy = options.allocate_strategy.function
        # broadcasting groups have no retries, and orderly groups retry in place
        if (
            isinstance(strategy, ByConfig)
            and (options.message_model, options.consume_mode) == _WITH_RETRIES
            and not any(is_retry_topic(queue.topic) for queue in strategy.allocated)
        ):
            log.warning("rebalance.retries_left_out", topic=retry_topic(options.group))
        return []

    async def share_of(
        self, topic: str, queues: Sequence[MessageQueue], client_ids: Sequence[str], held: Collection[MessageQueue]
    ) -> Share | None:
        """Return this member's share of a topic's `queues`; `held` are the queues of the topic that it owns now.

        None if the strategy fails: the member keeps its queues, as in Java, and the strategy is called again later.
        """
        options, client_id = self._context.options, self._context.client.client_id
        if client_id not in client_ids:
            log.warning("rebalance.not_listed", topic=topic, client_id=client_id)
        try:
            share = options.allocate_strategy.share(options.group, client_id, queues, client_ids)
        except AllocateError as error:
            evidence = f"allocate_strategy cannot divide the queues of {topic}: {error}"
            problem = self._context.found("allocate_failed", evidence, step=_KEPT)
            self._context.problems.begin(("allocate", topic), problem)
            return None
        self._context.problems.end(("allocate", topic))
        self._tell_missing(topic, queues)
        return Share(pulled=frozenset(share))

    def assignment(self, message_queue: MessageQueue, *, is_popped: bool) -> Assignment:
        """Return the assignment for a queue of a share. This division never assigns popped queues."""
        assert not is_popped
        return AssignedQueue(self._context, message_queue)

    def _tell_missing(self, topic: str, queues: Collection[MessageQueue]) -> None:
        """Report queues that the configuration lists for this member but the topic does not have."""
        strategy = self._context.options.allocate_strategy.function
        if not isinstance(strategy, ByConfig):
            return
        missing = [str(queue) for queue in strategy.allocated if queue.topic == topic and queue not in queues]
        if missing:
            evidence = f"allocate_queues lists queues that {topic} does not have: {', '.join(missing)}"
            problem = self._context.found("allocate_failed", evidence, topic=topic, step=_MISSING)
            self._context.problems.begin(("missing", topic), problem)
        else:
            self._context.problems.end(("missing", topic))
