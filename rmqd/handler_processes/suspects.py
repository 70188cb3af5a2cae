"""The messages over which processes were lost. One loss may be an accident; two over the same message are not.

A process may hang because of something that the handler waits for, regardless of the message. So a hang is a failed
attempt, but does not count as a loss.

Each member of a group remembers only its own suspects. It cannot store them at the brokers, because a sent-back message
is a copy of the broker's.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from rmqd.consumer.handling.verdict import HandlerProcessLostError
from rmqd.wire.messages.message import Message

MOST_LOSSES: Final = 2  # lost processes for each message, not counting hangs
MOST_SUSPECTS: Final = 10_000  # the oldest ones are dropped first


@dataclass(frozen=True, slots=True)
class Loss:
    """How a process was lost: `how` in words that follow its name, and the stacks that it wrote."""

    how: str
    stacks: str = ""
    is_hang: bool = False

    def error(self) -> HandlerProcessLostError:
        """Return the loss as an exception."""
        return _error(f"the handler's process {self.how}", self.stacks)


class Suspects:
    """Messages over which a process of this member was lost."""

    def __init__(self) -> None:
        self._losses: OrderedDict[tuple[str, str], list[Loss]] = OrderedDict()

    def add(self, messages: Iterable[Message], loss: Loss) -> None:
        """Record that a process was lost while it had these messages."""
        for message in messages:
            losses = self._losses.setdefault(_key(message), [])
            if not loss.is_hang:
                losses.append(loss)
            self._losses.move_to_end(_key(message))
        while len(self._losses) > MOST_SUSPECTS:
            self._losses.popitem(last=False)

    def any_of(self, messages: Sequence[Message]) -> bool:
        """Return whether a process was lost over one of these messages."""
        return bool(self._losses) and any(_key(message) in self._losses for message in messages)

    def verdict(self, message: Message) -> HandlerProcessLostError | None:
        """Return why a message must be dead-lettered; None if it may be tried again."""
        losses = self._losses.get(_key(message), [])
        if len(losses) < MOST_LOSSES:
            return None
        last = losses[-1]
        told = " and ".join(dict.fromkeys(loss.how for loss in losses))
        return _error(f"the handler's process was lost {len(losses)} times over this message: it {told}", last.stacks)

    def clear(self, message: Message) -> None:
        """Drop a message that was handled or dead-lettered."""
        self._losses.pop(_key(message), None)


def _key(message: Message) -> tuple[str, str]:
    return message.topic, message.lasting_id


def _error(text: str, stacks: str) -> HandlerProcessLostError:
    error = HandlerProcessLostError(text)
    error.told_traceback = f"{stacks}\n{HandlerProcessLostError.__name__}: {text}\n" if stacks else ""
    return error
