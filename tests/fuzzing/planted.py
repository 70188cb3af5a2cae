"""Bugs to be put into what the targets try, behind conditions that no kept input meets, to see that they are found.

This module is instrumented as rmqd's own are, so that a fuzzer sees that it has met one more of the conditions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

Plant = Callable[[], tuple[Any, str, Callable[..., object]]]
"""Gives a module, a function of it, and what is to stand in its place."""


def in_properties() -> tuple[Any, str, Callable[..., object]]:
    """Frames: a message with a property whose name has no capitals, and whose value is a number of three digits."""
    from rmqd.wire.messages import message, properties

    def parse_properties(data: str | bytes) -> dict[str, str]:
        found = properties.parse_properties(data)
        for name, value in found.items():
            if not name.islower():
                continue
            if not value[:1].isdigit():
                continue
            if value[1:2].isdigit() and value[2:3].isdigit():
                raise IndexError("planted")
        return found

    return message, "parse_properties", parse_properties


def in_substitution() -> tuple[Any, str, Callable[..., object]]:
    """Configurations: a variable whose default begins with a minus, has a colon, and is a short one."""
    from rmqd.config.reading import data, substitution

    def substitute(text: str, environ: Any) -> str:
        before, mark, default = text.partition(":-")
        if mark and default.startswith("-") and ":" in default and len(before) > 8:
            raise IndexError("planted")
        return substitution.substitute(text, environ)

    return data, "substitute", substitute


def in_scope() -> tuple[Any, str, Callable[..., object]]:
    """Requests: queues to be paused whose topic is empty and whose broker begins with a percent sign."""
    from rmqd.daemon.http import api

    right: Callable[..., object] = api._scope

    def scope(request: Any) -> object:
        given = dict(request.query_params)
        if "topic" in given and given["topic"] == "" and "broker" in given and given["broker"].startswith("%"):
            raise IndexError("planted")
        return right(request)

    return api, "_scope", scope


PLANTED: Final[dict[str, Plant]] = {
    "frames": in_properties,
    "configurations": in_substitution,
    "requests": in_scope,
}
"""By target."""
