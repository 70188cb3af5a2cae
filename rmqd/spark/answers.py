"""The answers of brokers and name servers for many queues, and their errors. No I/O."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from rmqd.broker_errors import TopicNotExistError
from rmqd.errors import RemotingError, RmqdError, RouteNotFoundError
from rmqd.wire.message_queue import MessageQueue

T = TypeVar("T")


class MasterAwayError(RemotingError):
    """The broker's master is missing in all routes, and only a master can answer."""


# errors that do not go away after a moment
AWAY: Final = RouteNotFoundError, TopicNotExistError, MasterAwayError


@dataclass(frozen=True, slots=True)
class Answers(Generic[T]):
    """The answers for many queues, and the errors of queues without an answer."""

    found: dict[MessageQueue, T] = field(default_factory=dict)
    failed: dict[MessageQueue, RmqdError] = field(default_factory=dict)

    @property
    def away(self) -> frozenset[MessageQueue]:
        """Queues whose topic, broker or master is in no route. The other answers are complete without them."""
        return frozenset(queue for queue, error in self.failed.items() if isinstance(error, AWAY))

    @property
    def failures(self) -> list[RmqdError]:
        """The errors of all other queues without an answer."""
        return [error for error in self.failed.values() if not isinstance(error, AWAY)]


def those_there(answers: Answers[T]) -> dict[MessageQueue, T]:
    """Return the answers for all queues except missing ones. Raises the first other error if there is one."""
    for error in answers.failures:
        raise error
    return answers.found
