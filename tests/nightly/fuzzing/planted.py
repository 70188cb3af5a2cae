"""Bugs to be put into what the targets try, behind conditions that no kept input meets, to see that they are found.

This module is instrumented as rmqd's own are, so that a fuzzer sees that it has met one more of the conditions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

Plant = Callable[[], tuple[Any, str, Callable[..., object]]]
"""Gives a module, a function of it, and what is to stand in its place."""


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
"""By target."""
