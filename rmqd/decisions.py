"""What a handler decides about messages, how it says so by exceptions, and what these and their groups mean."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from rmqd.wire.messages.message import Message

T = TypeVar("T")

_HIGHEST_LEVEL: Final = 2**31 - 1  # the field that carries it has 32 bits; brokers take the highest that they know


class Outcome(enum.Enum):
    """What becomes of one message."""

    ACK = "ack"
    RETRY = "retry"
    DEAD_LETTER = "dead_letter"
    AGAIN = "again"
    """Handed out again as if it had not been: it waits for another message, another member, or a counterpart."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What a handler decided about one message."""

    outcome: Outcome
    delay_level: int | None = None
    """For a retry: RocketMQ's delay level; None leaves it to the group's `delay_level_when_next_consume`."""
    reason: str = ""
    """For a dead letter: why, in the handler's words."""
    error: BaseException | None = None
    """What was raised for this message alone, while others of its batch went on."""
    seconds: float = 0.0  # for AGAIN: how long it waits before that


ACK = Decision(Outcome.ACK)


class Retry(Exception):
    """Raised by a handler: deliver every message again that it did not decide about.

    Raises ValueError for what is no delay level.
    """

    delay_level: int | None = None  # also of a class that inherits, and does not call our __init__

    def __init__(self, delay_level: int | None = None) -> None:
        super().__init__(delay_level)
        self.delay_level = checked_level(delay_level)

    def __str__(self) -> str:
        return "retry" if self.delay_level is None else f"retry at delay level {self.delay_level}"


class DeadLetter(Exception):
    """Raised by a handler: send every message to the dead letters that it did not decide about.

    The reason may be any object, such as an exception: its text is what is told.
    """

    reason: str = ""

    def __init__(self, reason: object = "") -> None:
        super().__init__(reason)
        self.reason = reason_text(reason)


class Suspend(Exception):
    """Raised by a handler of an orderly group: let the queue rest, then hand over the same batch again.

    `seconds` is RocketMQ's suspendCurrentQueueTimeMillis, 0.01 to 30; without it the group's setting holds. Raises
    ValueError for what is no number.
    """

    seconds: float | None = None

    def __init__(self, seconds: float | None = None) -> None:
        super().__init__(seconds)
        self.seconds = checked_seconds(seconds)

    def __str__(self) -> str:
        return "suspend" if self.seconds is None else f"suspend for {self.seconds} s"


class AlreadyHandled(Exception):
    """Raised by `message.once`: the mark of a message stands, so what its handler does was done by an earlier attempt.

    A handler that lets it pass has the message acknowledged. Where its batch has several messages nothing says which of
    the others were handled, so that they come again: catch it around each message there.
    """

    def __init__(self, message: Message) -> None:
        super().__init__(message)
        self.message = message

    def __str__(self) -> str:
        return f"{self.message.msg_id} was handled before"


for _public in (Retry, DeadLetter, Suspend, AlreadyHandled):
    _public.__module__ = "rmqd"  # where authors import them from: so tracebacks and dead letters name them


class InvalidPayloadError(Exception):
    """The body of a message is not what its typed handler takes. The text says why, without values of the body."""


DECISIONS: Final = (Retry, DeadLetter, Suspend, AlreadyHandled)
"""The exceptions by which a handler decides. What else it raises is a failure."""
_BY_STRICTNESS: Final = (Outcome.ACK, Outcome.AGAIN, Outcome.RETRY, Outcome.DEAD_LETTER)
_LEAST_WAIT_SECONDS: Final = 0.1
WAIT: Final = "rmqd_wait_seconds"
"""The attribute by which a handler's exception says that it tells nothing of its messages: they wait so long.

It is the state of the counterpart: a database that is down, a right that is missing. No attempt counts.
"""
_inside: Final = BaseExceptionGroup.exceptions.__get__  # a class may hide the attribute


def raise_returned(result: object) -> None:
    """Raise a decision that a handler returned, as an instance or as the class: it means the same as if it was raised.

    Does nothing for other results.
    """
    if isinstance(result, DECISIONS) or (isinstance(result, type) and issubclass(result, DECISIONS)):
        raise result


def leaves_of(error: BaseException) -> list[BaseException]:
    """The exceptions in a group, and in the groups inside of it, as asyncio.TaskGroup raises them.

    An exception that is not a group is its own only leaf.
    """
    found, rest = [], [error]
    while rest:
        one = rest.pop()
        if isinstance(one, BaseExceptionGroup):
            rest.extend(reversed(_inside(one)))
        else:
            found.append(one)
    return found


def is_only(error: BaseException | None, kinds: tuple[type[BaseException], ...]) -> bool:
    """Whether an exception is of these classes; a group, whether all exceptions in it are."""
    return error is not None and all(isinstance(one, kinds) for one in leaves_of(error))


def decision_of(error: BaseException | None) -> Decision:
    """What an exception of a handler means for the messages that it did not decide about.

    A group means the strictest decision in it: a dead letter, else the retry with the longest delay.
    """
    if error is None:
        return ACK
    if isinstance(error, BaseExceptionGroup):
        return max(map(decision_of, leaves_of(error)), key=_strictness)
    # classes that inherit from ours may set the attributes later, to anything
    if (seconds := wait_seconds(error)) is not None:
        return Decision(Outcome.AGAIN, seconds=seconds)
    if isinstance(error, Retry):
        return Decision(Outcome.RETRY, delay_level=asked(error, "delay_level", checked_level))
    if isinstance(error, AlreadyHandled):
        return ACK
    if isinstance(error, DeadLetter):
        return Decision(Outcome.DEAD_LETTER, reason=asked(error, "reason", reason_text) or "")
    return Decision(Outcome.RETRY)


def wait_seconds(error: BaseException) -> float | None:
    """How long messages wait for the counterpart of their handler, if the exception says so."""
    seconds = asked(error, WAIT, checked_seconds)
    return None if seconds is None else max(float(seconds), _LEAST_WAIT_SECONDS)


def _strictness(decision: Decision) -> tuple[int, float]:
    level = decision.delay_level or 0
    return _BY_STRICTNESS.index(decision.outcome), float("inf") if level == -1 else level


def asked(error: BaseException, name: str, check: Callable[[object], T]) -> T | None:
    """An attribute of the handler's own exception, checked; None where it is of no use."""
    try:
        return check(getattr(error, name))
    except Exception:  # noqa: BLE001  it may be a property that raises
        return None


def checked_level(delay_level: object) -> int | None:
    """Return the level. Raises ValueError for a value that is not a delay level."""
    if delay_level is None:
        return None
    if isinstance(delay_level, int) and -1 <= delay_level <= _HIGHEST_LEVEL:
        return int(delay_level)
    wrong = "is below -1" if isinstance(delay_level, int) and delay_level < -1 else "is none"
    raise ValueError(
        f"delay level {_shown(delay_level)} {wrong}; accepted: None for the group's own, -1 for the dead "
        "letters, 0 for the broker's choice, 1 to 18 for RocketMQ's levels"
    )


def checked_seconds(seconds: object) -> float | None:
    """Return the seconds of a rest. Raises ValueError for a value that is not a number."""
    if seconds is None:
        return None
    if isinstance(seconds, int | float) and seconds == seconds:  # all but NaN
        return seconds
    raise ValueError(
        f"a rest of {_shown(seconds)} seconds; accepted: a number of 0.01 to 30, or None for the group's own"
    )


def reason_text(reason: object) -> str:
    """The text of a reason for a dead letter; the class name of an exception without a text."""
    from rmqd.plain_text import class_name, text_of  # here, as `import rmqd` loads nothing but this module

    if reason is None:
        return ""
    return text_of(reason) or (class_name(reason) if isinstance(reason, BaseException) else "")


def _shown(value: object) -> str:
    from rmqd.plain_text import text_of

    return text_of(value, repr)
