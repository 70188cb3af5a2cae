"""Planted bugs behind conditions that no kept input meets, to check that a fuzzer finds them.

This module is instrumented like rmqd's modules, so that a fuzzer notices each condition that an input meets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

Plant = Callable[[], tuple[Any, str, Callable[..., object]]]
"""Returns a module, the name of one of its functions, and the replacement."""


def in_substitution() -> tuple[Any, str, Callable[..., object]]:
    """Configurations: a variable whose default begins with a minus and has a colon."""
    from rmqd.config import load
    from rmqd.config.reading import yaml_tree as substitution

    def substitute(text: str, environ: Any) -> str:
        _, mark, default = text.partition(":-")
        if mark and default.startswith("-") and ":" in default:
            raise IndexError("planted")
        return substitution.substitute(text, environ)

    return load, "substitute", substitute


PLANTED: Final[dict[str, Plant]] = {"configurations": in_substitution}
"""The planted bugs by target."""
