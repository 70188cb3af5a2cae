"""The base class of the loops that fetch an assignment's messages: pull loops and pop loops."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final

from rmqd.consumer.cache.flow_control import FlowControlReason
from rmqd.consumer.cache.process_queue import ProcessQueue
from rmqd.consumer.context import GroupContext
from rmqd.errors import RmqdError
from rmqd.errors.broker_errors import (
    BrokerError,
    FilterDataNotExistError,
    FilterDataNotLatestError,
    SubscriptionNotExistError,
    SubscriptionNotLatestError,
)
from rmqd.wire.message_queue import MessageQueue

# A broker returns these errors if it lacks this group's filter or has an old one. A heartbeat sends the current filter.
_SUBSCRIPTION_AWAY: Final = (
    SubscriptionNotExistError,
    SubscriptionNotLatestError,
    FilterDataNotExistError,
    FilterDataNotLatestError,
)


class RequestLoop(ABC):
    """Fetches the messages of one assignment.

    `asked_at` and `last_response_at` are when the last request was sent, and the last response received (monotonic).
    `begun_at` is when the cache was created (Unix seconds): at the acquisition, or at an operator's reset.
    """

    def __init__(self, context: GroupContext, message_queue: MessageQueue) -> None:
        self.hold_reason: FlowControlReason | None = None  # why no request is sent now; None if requests are sent
        self.failure: RmqdError | None = None  # error of the last request; None after a success
        self.last_response_at = self.last_request_at = context.clock.monotonic()
        self.cache_created_at = context.clock.wall()
        self._context = context
        self._message_queue = message_queue

    @property
    @abstractmethod
    def process_queues(self) -> Sequence[ProcessQueue]:
        """The caches of the queues with messages."""

    @property
    @abstractmethod
    def has_backlog(self) -> bool:
        """Whether messages wait on the broker, according to its last response."""

    @property
    def is_paused(self) -> bool:
        """Whether an operator paused the whole assignment."""
        return self._context.pauses.is_paused(self._message_queue)

    @abstractmethod
    def apply_options(self) -> int:
        """Apply changed options at once. Returns how many cached messages the new filter discards."""

    def apply_pauses(self) -> None:
        """Apply the operator's pauses to the caches."""
        self._context.idle_queues.pop(self._message_queue, None)
        for process_queue in self.process_queues:
            if self.is_paused or self._context.pauses.is_paused(process_queue.message_queue):
                process_queue.pause()
            elif process_queue.is_paused:
                process_queue.resume()
                self._context.service.submit(process_queue)

    def _bring_up_to_date(self, error: RmqdError) -> bool:
        """After a failed request, send a heartbeat soon if the broker lacks the subscription. Refresh a stale route.

        Returns whether the route may be stale.
        """
        client = self._context.client
        if isinstance(error, _SUBSCRIPTION_AWAY):
            client.heartbeat.send_heartbeats_soon()
        is_stale = not isinstance(error, BrokerError) or error.stale_route
        if is_stale:
            client.routes.refresh_soon([self._message_queue.topic])
        return is_stale
