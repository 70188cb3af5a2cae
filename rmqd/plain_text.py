"""Texts of objects that are not rmqd's own, such as exceptions of handlers.

Nothing here raises, whatever the object's own methods do, and all of it can be encoded as UTF-8.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any, Final

# by the type's own descriptor: a metaclass may have a __name__ of its own, which could be anything
_name_of: Final[Callable[[type], str]] = type.__dict__["__name__"].__get__


def encodable(text: str) -> str:
    """The text with halves of surrogate pairs written out: JSON may bring them, and UTF-8 has no room for them."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def class_name(value: object) -> str:
    """The name of the object's class."""
    return _name_of(type(value))


def text_of(value: object, make: Callable[[Any], str] = str) -> str:
    """What `make` gives, `str` or `repr`; where that raises, the name of the class."""
    try:
        text = str.__str__(make(value))  # of a class that inherits from str, the plain text
    except BaseException:  # noqa: BLE001  it is not our code, and its failure is nobody's result
        return f"<{class_name(value)} without a text>"
    return encodable(text)


def describe(error: BaseException) -> str:
    """The class of an exception and its text, if it has one."""
    text = text_of(error)
    return f"{class_name(error)}: {text}" if text else class_name(error)


def traceback_of(error: BaseException) -> str:
    """The traceback as Python prints it; where that fails, the exception alone."""
    try:
        text = "".join(traceback.format_exception(error))
    except BaseException:  # noqa: BLE001  as above: attributes of the exception are asked for
        return describe(error)
    return encodable(text)
