"""Converts a message to the arguments and id of a task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from rmqd import Message
from rmqd_handlers.message_values import InvalidBodyError, Opened, Value, as_text


@dataclass(frozen=True, slots=True)
class Task:
    """One message as a task."""

    id: str
    """The same whenever the message is sent again."""
    args: list[Any]
    kwargs: dict[str, Any]


def task_of(message: Message, task_id: Value, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Task:
    """Return the task of a message. Raises InvalidBodyError if it cannot be one."""
    opened = Opened(message)
    found = task_id(opened)
    if found is None:
        raise InvalidBodyError(f"the message has no {task_id.text}, which is used as the id of its task")
    return Task(
        as_text(found),
        [_plain(value(opened)) for value in args],
        {name: _plain(value(opened)) for name, value in kwargs.items()},
    )


def _plain(value: Any) -> Any:
    """Convert to plain JSON values: a number with a decimal point becomes a float, a body becomes text. Raises
    InvalidBodyError.
    """
    try:
        return _simplified(value)
    except RecursionError:
        raise InvalidBodyError("the body is nested too deeply") from None


def _simplified(value: Any) -> Any:
    match value:
        case bytes() | str():
            return as_text(value)
        case Decimal():
            return float(value)
        case list():
            return [_simplified(inner) for inner in value]
        case dict():
            return {as_text(key): _simplified(inner) for key, inner in value.items()}
    return value
