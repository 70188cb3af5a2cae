"""The values of a handler's decisions, which may be anything: delay levels, rests and reasons are checked here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

_HIGHEST_LEVEL: Final = 2**31 - 1  # the field that carries it has 32 bits; brokers take the highest that they know


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
