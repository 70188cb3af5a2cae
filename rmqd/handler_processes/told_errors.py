"""Exceptions of a worker process, sent to the daemon as names, texts and traceback, not as objects.

Unpickling an object in the daemon would import the handler's modules and run their code there, and it fails for many
exceptions. rmqd's reaction to an exception depends on the names of its classes, on its texts, and on the values of
rmqd's own classes (Retry and the others). All of these can be sent. `raised` makes a stand-in. Its class has the names
of all base classes of the original, and inherits from the first of them that belongs to Python or rmqd.
"""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from rmqd.decisions import WAIT, asked, checked_level, checked_seconds, reason_text, wait_seconds
from rmqd.handler_api import AlreadyHandled, DeadLetter, InvalidPayloadError, Retry, Suspend, leaves_of
from rmqd.plain_text import RaisedElsewhere, text_of, traceback_of
from rmqd.wire.messages.message import Message

_OWN: Final[tuple[type[BaseException], ...]] = (Retry, DeadLetter, Suspend, AlreadyHandled, InvalidPayloadError)
_KINDS_KEPT: Final = 500

ClassNames = tuple[str, str]
"""The module and the name of a class."""


@dataclass(frozen=True, slots=True)
class ToldError:
    """The description of an exception."""

    classes: tuple[ClassNames, ...]
    """Its class and all base classes, in Python's order."""
    text: str
    shown: str
    """Its `repr`."""
    traceback: str
    values: dict[str, Any] = field(default_factory=dict)
    """The attributes that rmqd reads from its own classes."""
    about: int | None = None
    """For AlreadyHandled: the index of its message in the batch."""
    leaves: tuple[ToldError, ...] = ()
    """For a group: the exceptions in it and in its nested groups."""


def told(error: BaseException, batch: Sequence[Message]) -> ToldError:
    """Return the description of an exception that a call with this batch raised."""
    classes = tuple((str(one.__module__), _name(one)) for one in type(error).__mro__ if issubclass(one, BaseException))
    values: dict[str, Any] = {}
    about = None
    if (seconds := wait_seconds(error)) is not None:
        values[WAIT] = seconds
    if isinstance(error, Retry):
        values["delay_level"] = asked(error, "delay_level", checked_level)
    if isinstance(error, DeadLetter):
        values["reason"] = asked(error, "reason", reason_text) or ""
    if isinstance(error, Suspend):
        values["seconds"] = asked(error, "seconds", checked_seconds)
    if isinstance(error, AlreadyHandled):
        about = next((index for index, one in enumerate(batch) if one is error.message), 0)
    leaves = tuple(told(one, batch) for one in leaves_of(error)) if isinstance(error, BaseExceptionGroup) else ()
    return ToldError(classes, text_of(error), text_of(error, repr), traceback_of(error), values, about, leaves)


def raised(what: ToldError, batch: Sequence[Message]) -> BaseException:
    """Return the stand-in for a description; `batch` is the daemon's batch."""
    kind = _kind(what.classes)
    inside = (what.text, [raised(one, batch) for one in what.leaves]) if what.leaves else ()
    error: BaseException = kind.__new__(kind, *inside)
    attributes = {"told_text": what.text, "told_shown": what.shown, "told_traceback": what.traceback, **what.values}
    if what.about is not None:
        attributes["message"] = batch[what.about]
    for name, value in attributes.items():
        setattr(error, name, value)
    return error


class _StandIn(RaisedElsewhere):
    told_text = ""
    told_shown = ""

    def __str__(self) -> str:
        return self.told_text

    def __repr__(self) -> str:
        return self.told_shown


@lru_cache(maxsize=_KINDS_KEPT)
def _kind(classes: tuple[ClassNames, ...]) -> type[BaseException]:
    known = next((one for one in map(_known, classes) if one is not None), BaseException)
    inherited = {(one.__module__, one.__name__) for one in known.__mro__}
    kind: type[BaseException] = known
    for module, name in reversed([one for one in classes if one not in inherited]):
        kind = type(name, (kind,), {"__module__": module})
    module, name = classes[0]
    return type(name, (_StandIn, kind), {"__module__": module})


def _known(names: ClassNames) -> type[BaseException] | None:
    """Return the class of Python or rmqd with this name, if it can be created without its arguments."""
    module, name = names
    if own := next((one for one in _OWN if (one.__module__, one.__name__) == names), None):
        return own
    kind = getattr(builtins, name, None) if module == "builtins" else None
    return kind if isinstance(kind, type) and issubclass(kind, BaseException) else None


def _name(kind: type) -> str:
    return str(type.__dict__["__name__"].__get__(kind))  # a metaclass may define any __name__
