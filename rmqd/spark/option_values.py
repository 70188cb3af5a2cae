"""How options of Spark's `load()` and `save()` are read, and the values that both have. Pure.

Spark hands over all values as text, and the names in small letters.
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
    """The options that are given, by their proper names, and a line for each problem with them."""

    instead: ClassVar[Mapping[str, str]] = {}
    """By an option of another source, what is meant by it here."""

    def __init__(
        self,
        values: Mapping[str, str],
        names: tuple[str, ...],
        *,
        unknown: str = "there is no such option",
        passed_over: frozenset[str] = frozenset(),
    ) -> None:
        """An option that is not among `names` is a problem, which `unknown` says, unless it is to be passed over."""
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
        """What `parse` makes of an option, by RmqdError or ValueError a problem; `default` where it is not given."""
        text = self.values.get(name)
        if text is None:
            return default
        try:
            return parse(text)
        except (RmqdError, ValueError) as error:
            self.problem(name, str(error))
            return default

    def fields(self, table: Mapping[str, tuple[str, Callable[[str], Any]]]) -> dict[str, Any]:
        """Fields by name, of those options of the table that are given: it has the field and its reading by option."""
        found = {field: self.read(name, parse, None) for name, (field, parse) in table.items() if name in self.values}
        return {field: value for field, value in found.items() if value is not None}

    def problem(self, name: str, text: str) -> None:
        """Note what is wrong with an option."""
        self.problems.append(f"{name}: {text}")


def meant_or_all(wrong: str, names: Sequence[str]) -> str:
    """What was probably meant by a wrong name, or else all names."""
    guess = nearest(wrong, names)
    return f"did you mean {guess}?" if guess else f"there are {', '.join(names)}"


def positive(text: str) -> int:
    """A number above 0. Raises ValueError, as all that follow, with what is accepted."""
    if not text.strip().isdecimal() or int(text) == 0:
        raise ValueError(f"{text!r} is no number above 0")
    return int(text)


def milliseconds(text: str) -> float:
    """Seconds, of a number of milliseconds."""
    if not text.strip().isdecimal():
        raise ValueError(f"{text!r} is no number of milliseconds")
    return int(text) / 1000


def nameservers(text: str) -> str:
    """Addresses `host:port`, separated by `;` or commas, as the client takes them."""
    addresses = [part.strip() for part in re.split("[;,]", text) if part.strip()]
    wrong = [address for address in addresses if not _HOST_PORT.fullmatch(address)]
    if wrong or not addresses:
        raise ValueError(f"{(wrong or [text])[0]!r} is not host:port")
    return ";".join(addresses)
