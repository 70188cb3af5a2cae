"""Which messages processes were lost over, and how. One process may have died of anything; two are no accident.

Each member of a group remembers its own. Brokers cannot be told: what they send back is a copy of what they have.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from rmqd.plain_text import RaisedElsewhere
from rmqd.wire.messages.message import Message

MOST_LOSSES: Final = 2  # of processes, over one message
MOST_SUSPECTS: Final = 10_000  # the oldest ones are forgotten first


class HandlerProcessLostError(RaisedElsewhere, Exception):
    """A handler's process died, hung or used up its memory limit. The traceback is what it wrote of itself."""


@dataclass(frozen=True, slots=True)
class Loss:
    """How a process was lost: `how` in words that follow its name, and the stacks that it wrote down."""

    how: str
    stacks: str = ""

    def error(self) -> HandlerProcessLostError:
        """The exception that stands for it."""
        return _error(f"the handler's process {self.how}", self.stacks)


class Suspects:
    """Messages over which a process of this member was lost."""

    def __init__(self) -> None:
        self._losses: OrderedDict[tuple[str, str], list[Loss]] = OrderedDict()

    def add(self, messages: Iterable[Message], loss: Loss) -> None:
        """Note that a process was lost while it had these messages."""
        for message in messages:
            self._losses.setdefault(_key(message), []).append(loss)
            self._losses.move_to_end(_key(message))
        while len(self._losses) > MOST_SUSPECTS:
            self._losses.popitem(last=False)

    def any_of(self, messages: Sequence[Message]) -> bool:
        """Whether a process was lost over one of these."""
        return bool(self._losses) and any(_key(message) in self._losses for message in messages)

    def verdict(self, message: Message) -> HandlerProcessLostError | None:
        """Why a message is to be given up; None where it may be tried again."""
        losses = self._losses.get(_key(message), [])
        if len(losses) < MOST_LOSSES:
            return None
        last = losses[-1]
        told = " and ".join(dict.fromkeys(loss.how for loss in losses))
        return _error(f"the handler's process was lost {len(losses)} times over this message: it {told}", last.stacks)

    def clear(self, message: Message) -> None:
        """Forget a message that was handled, or given up."""
        self._losses.pop(_key(message), None)


def _key(message: Message) -> tuple[str, str]:
    return message.topic, message.lasting_id


def _error(text: str, stacks: str) -> HandlerProcessLostError:
    error = HandlerProcessLostError(text)
    error.told_traceback = f"{stacks}\n{HandlerProcessLostError.__name__}: {text}\n" if stacks else ""
    return error
