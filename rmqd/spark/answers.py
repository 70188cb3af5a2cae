"""What brokers and name servers answered about many queues, each of which may have been answered or not. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from rmqd.broker_errors import TopicNotExistError
from rmqd.errors import RemotingError, RmqdError, RouteNotFoundError
from rmqd.wire.message_queue import MessageQueue

T = TypeVar("T")


class MasterAwayError(RemotingError):
    """Routes name slaves of the broker, but no master, and only a master can answer the question."""


# waiting a moment changes none of them
AWAY: Final = RouteNotFoundError, TopicNotExistError, MasterAwayError


@dataclass(frozen=True, slots=True)
class Answers(Generic[T]):
    """The answers about many queues, and the errors of the queues without an answer."""

    found: dict[MessageQueue, T] = field(default_factory=dict)
    failed: dict[MessageQueue, RmqdError] = field(default_factory=dict)

    @property
    def away(self) -> frozenset[MessageQueue]:
        """The queues whose topic, broker or master is in no route. The other answers are complete without them."""
        return frozenset(queue for queue, error in self.failed.items() if isinstance(error, AWAY))

    @property
    def failures(self) -> list[RmqdError]:
        """The errors of all other queues that were not answered."""
        return [error for error in self.failed.values() if not isinstance(error, AWAY)]


def those_there(answers: Answers[T]) -> dict[MessageQueue, T]:
    """The answers about all queues but those that are away. Raises the first error where there is one."""
    for error in answers.failures:
        raise error
    return answers.found
