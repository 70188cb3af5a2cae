"""Parsing of options in Spark's `load()` and `save()`, and parsers that both use. No I/O.

Spark passes all values as text, and all names in lower case.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final, TypeVar

from rmqd.config.problems import nearest
from rmqd.errors import RmqdError

T = TypeVar("T")

_HOST_PORT: Final = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}", re.ASCII)


class GivenOptions:
    """The given options by their proper names, and a line for each problem."""

    instead: ClassVar[Mapping[str, str]] = {}
    """Our options for options of another source."""

    def __init__(
        self,
        values: Mapping[str, str],
        names: tuple[str, ...],
        *,
        unknown: str = "there is no such option",
        passed_over: frozenset[str] = frozenset(),
    ) -> None:
        """Options that are not in `names` become problems with the text `unknown`, except those in `passed_over`."""
        proper = {name.lower(): name for name in names}
        self.values: dict[str, str] = {}
        self.problems: list[object] = []
        for key, value in values.items():
            if name := proper.get(key.lower()):
                self.values[name] = value
            elif key.lower() not in passed_over:
                instead = {name.lower(): meant for name, meant in self.instead.items()}.get(key.lower())
                self.problem(key, f"{unknown}; " + (f"expected {instead}" if instead else meant_or_all(key, names)))

    def read(self, name: str, parse: Callable[[str], T], default: T) -> T:
        """Parse an option; `default` if it is missing. An RmqdError or ValueError becomes a problem."""
        text = self.values.get(name)
        if text is None:
            return default
        try:
            return parse(text)
        except (RmqdError, ValueError) as error:
            self.problem(name, str(error))
            return default

    def fields(self, table: Mapping[str, tuple[str, Callable[[str], Any]]]) -> dict[str, Any]:
        """Return the fields that the given options set; `table` has the field and its parser by option."""
        found = {field: self.read(name, parse, None) for name, (field, parse) in table.items() if name in self.values}
        return {field: value for field, value in found.items() if value is not None}

    def problem(self, name: str, text: str) -> None:
        """Add a problem of an option."""
        self.problems.append(f"{name}: {text}")


def meant_or_all(wrong: str, names: Sequence[str]) -> str:
    """Return a suggestion for an unknown name: the most similar name, or else all names."""
    guess = nearest(wrong, names)
    return f"did you mean {guess}?" if guess else f"expected one of {', '.join(names)}"


def positive(text: str) -> int:
    """Return a number above 0. Raises ValueError with the expected value, like all parsers below."""
    if not text.strip().isdecimal() or int(text) == 0:
        raise ValueError(f"{text!r} is not valid; expected a number above 0")
    return int(text)


def milliseconds(text: str) -> float:
    """Convert a number of milliseconds to seconds."""
    if not text.strip().isdecimal():
        raise ValueError(f"{text!r} is not valid; expected a number of milliseconds")
    return int(text) / 1000


def nameservers(text: str) -> str:
    """Return addresses `host:port`, separated by `;` or commas, in the client's form."""
    addresses = [part.strip() for part in re.split("[;,]", text) if part.strip()]
    wrong = [address for address in addresses if not _HOST_PORT.fullmatch(address)]
    if wrong or not addresses:
        raise ValueError(f"{(wrong or [text])[0]!r} is not a valid address; expected host:port")
    return ";".join(addresses)
