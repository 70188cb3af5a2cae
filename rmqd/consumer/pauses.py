"""The scopes that an operator paused: a whole group, or some of its queues."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from rmqd.wire.message_queue import MessageQueue


@dataclass(frozen=True, slots=True)
class PauseScope:
    """Queues of a group, selected by topic, broker and queue id. None matches any value."""

    topic: str | None = None
    broker: str | None = None
    queue: int | None = None

    def covers(self, other: PauseScope) -> bool:
        """Return whether this scope includes every queue of `other`."""
        pairs = ((self.topic, other.topic), (self.broker, other.broker), (self.queue, other.queue))
        return all(mine is None or mine == theirs for mine, theirs in pairs)

    def includes(self, queue: MessageQueue) -> bool:
        return self.covers(PauseScope(queue.topic, queue.broker_name, queue.queue_id))

    def __str__(self) -> str:
        parts = [("topic", self.topic), ("broker", self.broker), ("queue", self.queue)]
        return ", ".join(f"{name} {value}" for name, value in parts if value is not None) or "the whole group"


WHOLE_GROUP: Final = PauseScope()


class Pauses:
    """The paused scopes of one group. If a paused queue moves to another member and returns, it is paused again."""

    def __init__(self, scopes: Iterable[PauseScope] = ()) -> None:
        self._scopes: set[PauseScope] = set(scopes)

    def pause(self, scope: PauseScope) -> None:
        self._scopes.add(scope)

    def resume(self, scope: PauseScope) -> None:
        """End the pauses whose scopes lie within `scope`. A pause with a wider scope stays."""
        self._scopes = {paused for paused in self._scopes if not scope.covers(paused)}

    @property
    def is_whole_group_paused(self) -> bool:
        return WHOLE_GROUP in self._scopes

    @property
    def scopes(self) -> tuple[PauseScope, ...]:
        """All scopes in a stable order."""

        def order(scope: PauseScope) -> tuple[str, str, int]:
            return scope.topic or "", scope.broker or "", -1 if scope.queue is None else scope.queue

        return tuple(sorted(self._scopes, key=order))

    def is_paused(self, queue: MessageQueue) -> bool:
        return bool(self._scopes) and any(scope.includes(queue) for scope in self._scopes)
