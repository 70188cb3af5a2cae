"""Types of columns: parsed from SQL and written as SQL, without a JVM. No I/O."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_PLAIN: Final = {
    "boolean": "boolean",
    "byte": "tinyint",
    "tinyint": "tinyint",
    "short": "smallint",
    "smallint": "smallint",
    "int": "int",
    "integer": "int",
    "long": "bigint",
    "bigint": "bigint",
    "float": "float",
    "real": "float",
    "double": "double",
    "string": "string",
    "binary": "binary",
    "date": "date",
    "timestamp": "timestamp",
    "timestamp_ntz": "timestamp_ntz",
}
_TOKEN: Final = re.compile(r"\s*(?:(?P<name>[A-Za-z_][\w]*|`(?:[^`]|``)+`)|(?P<number>[0-9]+)|(?P<sign>[<>(),:]))")
_DECIMALS: Final = ("decimal", "dec", "numeric")
MOST_DIGITS: Final = 38


@dataclass(frozen=True, slots=True)
class ColumnKind:
    """A type. `name` is Spark's simple name, or array, map, struct, decimal."""

    name: str
    fields: tuple[tuple[str, ColumnKind], ...] = ()
    """The fields of a struct; the `element` of an array; the `value` of a map, whose keys are strings."""
    precision: int = 0
    scale: int = 0

    @property
    def sql(self) -> str:
        """The type like Spark's `simpleString`, but with names in backquotes if SQL requires them."""
        if self.name == "decimal":
            return f"decimal({self.precision},{self.scale})"
        if self.name == "array":
            return f"array<{self.fields[0][1].sql}>"
        if self.name == "map":
            return f"map<string,{self.fields[0][1].sql}>"
        if self.name == "struct":
            return f"struct<{','.join(f'{_written(name)}:{kind.sql}' for name, kind in self.fields)}>"
        return self.name


def decimal_kind(precision: int, scale: int) -> ColumnKind:
    """Return a decimal. Raises ValueError if it exceeds Spark's limits."""
    if not 0 < precision <= MOST_DIGITS or not 0 <= scale <= precision:
        raise ValueError(
            f"decimal({precision},{scale}) is not valid; expected at most {MOST_DIGITS} digits, and a scale within them"
        )
    return ColumnKind("decimal", precision=precision, scale=scale)


def parse_kind(text: str) -> ColumnKind:
    """Parse a schema in SQL as a struct: `id bigint, lines array<struct<sku: string>>`.

    Raises ValueError with the text that is not valid.
    """
    reading = _Reading(text)
    return ColumnKind("struct", reading.fields(end=""))


class _Reading:
    """Parses the text of a schema."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[tuple[str, int]] = []
        place = 0
        while text[place:].strip():
            match = _TOKEN.match(text, place)
            if match is None:
                raise ValueError(f"{text[place:].strip()[:20]!r} is not valid in a schema")
            self._tokens.append((match.group().strip(), match.start()))
            place = match.end()
        self._at = 0

    def fields(self, end: str) -> tuple[tuple[str, ColumnKind], ...]:
        found: dict[str, ColumnKind] = {}
        while True:
            name = self._next("the name of a field")
            if not re.match(r"[A-Za-z_`]", name):
                raise ValueError(f"{name!r} is not a valid field name")
            name = name[1:-1].replace("``", "`") if name.startswith("`") else name
            if name.lower() in (known.lower() for known in found):
                raise ValueError(f"{name} occurs more than once")
            if self._peek() == ":":
                self._at += 1
            found[name] = self._kind()
            if self._peek() != ",":
                break
            self._at += 1
        self._expect(end)
        return tuple(found.items())

    def _kind(self) -> ColumnKind:
        name = self._next("a type").lower()
        if name in _PLAIN:
            return ColumnKind(_PLAIN[name])
        if name in _DECIMALS:
            return self._decimal()
        if name == "array":
            self._expect("<")
            element = self._kind()
            self._expect(">")
            return ColumnKind("array", (("element", element),))
        if name == "map":
            self._expect("<")
            if self._next("a type").lower() != "string":
                raise ValueError("the keys of a map must be strings")
            self._expect(",")
            value = self._kind()
            self._expect(">")
            return ColumnKind("map", (("value", value),))
        if name == "struct":
            self._expect("<")
            return ColumnKind("struct", self.fields(end=">"))
        known = ", ".join([*dict.fromkeys(_PLAIN.values()), "decimal(p,s)", "array<>", "map<string,>", "struct<>"])
        raise ValueError(f"{name} is not a valid type; expected one of {known}")

    def _decimal(self) -> ColumnKind:
        precision, scale = 10, 0
        if self._peek() == "(":
            self._at += 1
            precision = self._number()
            if self._peek() == ",":
                self._at += 1
                scale = self._number()
            self._expect(")")
        return decimal_kind(precision, scale)

    def _number(self) -> int:
        text = self._next("a number")
        if not text.isdecimal():
            raise ValueError(f"{text!r} is not a valid number")
        return int(text)

    def _peek(self) -> str:
        return self._tokens[self._at][0] if self._at < len(self._tokens) else ""

    def _next(self, what: str) -> str:
        token = self._peek()
        if not token:
            raise ValueError(f"{self._text!r} ends too early; expected {what}")
        self._at += 1
        return token

    def _expect(self, sign: str) -> None:
        token = self._peek()
        if token != sign:
            raise ValueError(f"{token or 'the end'!r} is not valid here; expected {sign or 'the end or a comma'!r}")
        self._at += 1


def _written(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z_]\w*", name) else "`" + name.replace("`", "``") + "`"
