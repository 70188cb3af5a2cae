"""A handler's decisions about messages, and the exceptions that express them."""

from __future__ import annotations

import enum
from collections import UserList, deque
from collections.abc import Callable, Iterator, Mapping, Set, ValuesView
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeGuard, TypeVar

if TYPE_CHECKING:
    from rmqd.wire.messages.message import Message


T = TypeVar("T")

_HIGHEST_LEVEL: Final = 2**31 - 1  # the wire field has 32 bits; brokers limit it to their highest level


class Outcome(enum.Enum):
    """How one message is settled."""

    ACK = "ack"
    RETRY = "retry"
    DEAD_LETTER = "dead_letter"
    AGAIN = "again"
    """The message is handled again, and no attempt is counted, for example because it waits for another message,
    another member, or an unavailable system.
    """


@dataclass(frozen=True, slots=True)
class Decision:
    """A handler's decision about one message."""

    outcome: Outcome
    delay_level: int | None = None
    """For a retry: RocketMQ's delay level; None leaves it to the group's `delay_level_when_next_consume`."""
    reason: str = ""
    """For a dead letter: the handler's reason."""
    error: BaseException | None = None
    """The exception that was raised for this message, while other messages of its batch continued."""
    seconds: float = 0.0  # delay of the outcome AGAIN


ACK = Decision(Outcome.ACK)


class Retry(Exception):
    """Raised by a handler: retry every message that the handler did not decide about.

    Raises ValueError for an invalid delay level.
    """

    delay_level: int | None = None  # for subclasses that do not call Retry.__init__

    def __init__(self, delay_level: int | None = None) -> None:
        super().__init__(delay_level)
        self.delay_level = checked_level(delay_level)

    def __str__(self) -> str:
        return "retry" if self.delay_level is None else f"retry at delay level {self.delay_level}"


class DeadLetter(Exception):
    """Raised by a handler: dead-letter every message that the handler did not decide about.

    The reason may be any object, such as an exception: its text is used.
    """

    reason: str = ""

    def __init__(self, reason: object = "") -> None:
        super().__init__(reason)
        self.reason = reason_text(reason)


class Suspend(Exception):
    """Raised by a handler of an orderly group: suspend the queue, then handle the same batch again.

    `seconds` is RocketMQ's suspendCurrentQueueTimeMillis in seconds, 0.01 to 30; None means the group's setting.
    Raises ValueError if it is not a number.
    """

    seconds: float | None = None

    def __init__(self, seconds: float | None = None) -> None:
        super().__init__(seconds)
        self.seconds = checked_seconds(seconds)

    def __str__(self) -> str:
        from rmqd.runtime.plain_text import duration  # here, as in `reason_text`

        return "suspend" if self.seconds is None else f"suspend for {duration(self.seconds)}"


class AlreadyHandled(Exception):
    """Raised by `message.once` if the message has a mark, because an earlier attempt handled it.

    If the handler does not catch it, its message is acknowledged. But if other messages of the batch are undecided too,
    all of these are retried, because rmqd cannot know which of them were handled. So catch it for each message.
    """

    def __init__(self, message: Message) -> None:
        super().__init__(message)
        self.message = message

    def __str__(self) -> str:
        return f"{self.message.msg_id} was handled before"


for _public in (Retry, DeadLetter, Suspend, AlreadyHandled):
    _public.__module__ = "rmqd"  # tracebacks and dead letters show the name that users import


class InvalidPayloadError(Exception):
    """A message body is not valid for its typed handler. The text gives the reason, without values of the body."""


DECISION_CLASSES: Final = (Retry, DeadLetter, Suspend, AlreadyHandled)
"""The exceptions that express a decision. All other exceptions are failures."""
_BY_STRICTNESS: Final = (Outcome.ACK, Outcome.AGAIN, Outcome.RETRY, Outcome.DEAD_LETTER)
_MIN_WAIT_SECONDS: Final = 0.1
WAIT_ATTRIBUTE: Final = "rmqd_wait_seconds"
"""If an exception has this attribute, its messages wait for that number of seconds, and no attempt is counted.

Such an exception is not caused by a message, but for example by an unavailable database or a missing permission.
"""
_RETRIES_OF_OTHER_CLIENTS: Final = frozenset(
    ("RECONSUME_LATER", "SUSPEND_CURRENT_QUEUE_A_MOMENT", "ConsumeOrderlyStatus.ROLLBACK", "ConsumeResult.FAILURE")
)
_inside: Final = BaseExceptionGroup.exceptions.__get__  # because a subclass may hide the attribute `exceptions`


def raise_returned_decision(result: object) -> None:
    """Raise the decision that a handler returned, as an instance or a class, as if the handler had raised it.

    Raises TypeError for a collection of decisions, and for results of other clients, such as RECONSUME_LATER.
    """
    if _is_decision(result):
        raise result
    members = list(flattened_members(result))
    for one in members:
        if isinstance(one, enum.Enum) and {one.name, f"{type(one).__name__}.{one.name}"} & _RETRIES_OF_OTHER_CLIENTS:
            raise TypeError(f"the handler returned {one.name}, a result of another client; expected raise Retry()")
    if any(map(_is_decision, members)):
        raise TypeError(
            f"the handler returned a {type(result).__name__} with decisions, which belong to no message; "
            "call batch.retry(message) or batch.dead_letter(message) for each, or return one decision"
        )


def flattened_members(result: object) -> Iterator[object]:
    """Yield the members of a collection, and of collections inside it. Any other object is yielded itself."""
    rest, seen = [result], set[int]()
    while rest:
        one = rest.pop()
        if not isinstance(one, _COLLECTIONS):
            yield one
        elif id(one) not in seen:
            seen.add(id(one))
            rest += [*one, *one.values()] if isinstance(one, Mapping) else one


_COLLECTIONS: Final = (list, tuple, Set, ValuesView, Mapping, deque, UserList)


def _is_decision(result: object) -> TypeGuard[BaseException | type[BaseException]]:
    if isinstance(result, BaseException):
        return any(isinstance(leaf, DECISION_CLASSES) for leaf in leaf_exceptions(result))
    return isinstance(result, type) and issubclass(result, DECISION_CLASSES)


def leaf_exceptions(error: BaseException) -> list[BaseException]:
    """Return all exceptions in an exception group and its nested groups; a single exception as the only item."""
    found, rest = [], [error]
    while rest:
        one = rest.pop()
        if isinstance(one, BaseExceptionGroup):
            rest.extend(reversed(_inside(one)))
        else:
            found.append(one)
    return found


def is_made_of(error: BaseException | None, kinds: tuple[type[BaseException], ...]) -> bool:
    """Return whether an exception has one of these classes; for an exception group, whether all its members do."""
    return error is not None and all(isinstance(one, kinds) for one in leaf_exceptions(error))


def decision_for_error(error: BaseException | None) -> Decision:
    """Return the decision that a handler's exception expresses for the undecided messages.

    An exception group has the strictest decision of its members: a dead letter, else the retry with the longest delay.
    """
    if error is None:
        return ACK
    if isinstance(error, BaseExceptionGroup):
        return max(map(decision_for_error, leaf_exceptions(error)), key=_strictness)
    # attributes of exceptions are checked, because a handler's subclass may set them to any value
    if (seconds := wait_seconds(error)) is not None:
        return Decision(Outcome.AGAIN, seconds=seconds)
    if isinstance(error, Retry):
        return Decision(Outcome.RETRY, delay_level=checked_field(error, "delay_level", checked_level))
    if isinstance(error, AlreadyHandled):
        return ACK
    if isinstance(error, DeadLetter):
        return Decision(Outcome.DEAD_LETTER, reason=checked_field(error, "reason", reason_text) or "")
    return Decision(Outcome.RETRY)


def wait_seconds(error: BaseException) -> float | None:
    """Return the value of `WAIT_ATTRIBUTE`, at least _MIN_WAIT_SECONDS; None if it is missing or invalid."""
    seconds = checked_field(error, WAIT_ATTRIBUTE, checked_seconds)
    return None if seconds is None else max(float(seconds), _MIN_WAIT_SECONDS)


def _strictness(decision: Decision) -> tuple[int, float]:
    level = decision.delay_level or 0
    return _BY_STRICTNESS.index(decision.outcome), float("inf") if level == -1 else level


def checked_field(error: BaseException, name: str, check: Callable[[object], T]) -> T | None:
    """Return a checked attribute of a handler's exception; None if it is missing or invalid."""
    try:
        return check(getattr(error, name))
    except Exception:  # noqa: BLE001  the attribute may be a property that raises
        return None


def checked_level(delay_level: object) -> int | None:
    """Return `delay_level` as an int or None. Raises ValueError if it is not a valid delay level."""
    if delay_level is None:
        return None
    if isinstance(delay_level, int) and -1 <= delay_level <= _HIGHEST_LEVEL:
        return int(delay_level)
    raise ValueError(
        f"{_shown(delay_level)} is not a valid delay level; expected None for the group's setting, -1 for the dead "
        "letters, 0 for the broker's choice, or 1 to 18 for RocketMQ's levels"
    )


def checked_seconds(seconds: object) -> float | None:
    """Return `seconds` if it is a number or None, else raise ValueError."""
    if seconds is None:
        return None
    if isinstance(seconds, int | float) and seconds == seconds:  # not NaN
        return seconds
    raise ValueError(
        f"{_shown(seconds)} is not a valid number of seconds; expected 0.01 to 30, or None for the group's setting"
    )


def reason_text(reason: object) -> str:
    """Return the text of a dead letter's reason; for an exception without a text, the name of its class."""
    from rmqd.runtime.plain_text import class_name, text_of  # here, so that `import rmqd` loads only this module

    if reason is None:
        return ""
    return text_of(reason) or (class_name(reason) if isinstance(reason, BaseException) else "")


def _shown(value: object) -> str:
    from rmqd.runtime.plain_text import text_of

    return text_of(value, repr)
