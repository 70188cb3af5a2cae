"""Spark's column types, parsed from SQL and written as SQL, without a JVM. No I/O."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_PLAIN: Final = tuple(
    "boolean tinyint smallint int bigint float double string binary date timestamp timestamp_ntz".split()
)
_SYNONYMS: Final = {"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint", "real": "float"}
_TYPES: Final = (*_PLAIN, "decimal(p,s)", "array<>", "map<string,>", "struct<>")
# one token of a schema, or else the rest of the text, which is not valid
_TOKEN: Final = re.compile(r"\s*(?:([A-Za-z_]\w*|`(?:[^`]|``)+`|[0-9]+|[<>(),:])|(\S.*))", re.DOTALL)
MAX_DECIMAL_DIGITS: Final = 38


@dataclass(frozen=True, slots=True)
class ColumnKind:
    """A column type. `name` is Spark's simple name, or one of array, map, struct and decimal."""

    name: str
    fields: tuple[tuple[str, ColumnKind], ...] = ()
    """The fields of a struct by name; one field `element` of an array; one field `value` of a map with string keys."""
    precision: int = 0
    scale: int = 0

    @property
    def sql(self) -> str:
        """The type in SQL, like Spark's `simpleString`, but with names in backquotes if SQL requires backquotes."""
        match self.name:
            case "decimal":
                return f"decimal({self.precision},{self.scale})"
            case "array":
                return f"array<{self.fields[0][1].sql}>"
            case "map":
                return f"map<string,{self.fields[0][1].sql}>"
            case "struct":
                return f"struct<{','.join(f'{_written(name)}:{kind.sql}' for name, kind in self.fields)}>"
        return self.name

    @property
    def fields_ddl(self) -> str:
        """The fields of a struct, as in the option valueSchema: `id bigint, lines array<struct<sku:string>>`."""
        return ", ".join(f"{_written(name)} {kind.sql}" for name, kind in self.fields)


def array_kind(element: ColumnKind) -> ColumnKind:
    return ColumnKind("array", (("element", element),))


def map_kind(value: ColumnKind) -> ColumnKind:
    return ColumnKind("map", (("value", value),))


def decimal_kind(precision: int, scale: int) -> ColumnKind:
    """Return a decimal type. Raises ValueError if `precision` or `scale` exceeds Spark's limits."""
    if not 0 < precision <= MAX_DECIMAL_DIGITS or not 0 <= scale <= precision:
        raise ValueError(
            f"decimal({precision},{scale}) is not valid; "
            f"expected at most {MAX_DECIMAL_DIGITS} digits, and a scale within them"
        )
    return ColumnKind("decimal", precision=precision, scale=scale)


def parse_schema(text: str) -> ColumnKind:
    """Parse the fields of a struct in SQL, such as `id bigint, lines array<struct<sku: string>>`.

    Raises ValueError, which quotes the part that is not valid.
    """
    return _Reading(text).struct(end="")


class _Reading:
    """A recursive descent parser for the SQL text of a schema."""

    def __init__(self, text: str) -> None:
        self._text = text
        found: list[tuple[str, str]] = _TOKEN.findall(text)
        if found and (wrong := found[-1][1]):
            raise ValueError(f"{wrong.strip()[:20]!r} is not valid in a schema")
        self._tokens = [token for token, _ in reversed(found)]  # reversed, so that `pop` returns the next token

    def struct(self, end: str) -> ColumnKind:
        """Parse the fields of a struct up to the sign `end`, which is empty for the end of the text."""
        fields: dict[str, ColumnKind] = {}
        while True:
            name = self._next("the name of a field")
            if not re.match(r"[A-Za-z_`]", name):
                raise ValueError(f"{name!r} is not a valid field name")
            name = name[1:-1].replace("``", "`") if name.startswith("`") else name
            if name.lower() in map(str.lower, fields):
                raise ValueError(f"{name} occurs more than once")
            self._take_if(":")
            fields[name] = self._kind()
            if not self._take_if(","):
                self._expect(end)
                return ColumnKind("struct", tuple(fields.items()))

    def _kind(self) -> ColumnKind:
        name = self._next("a type").lower()
        if (plain := _SYNONYMS.get(name, name)) in _PLAIN:
            return ColumnKind(plain)
        if name in ("decimal", "dec", "numeric"):
            return self._decimal()
        if name not in ("array", "map", "struct"):
            raise ValueError(f"{name} is not a valid type; expected one of {', '.join(_TYPES)}")
        self._expect("<")
        if name == "struct":
            return self.struct(end=">")
        if name == "map":
            if self._next("a type").lower() != "string":
                raise ValueError("the keys of a map must be strings")
            self._expect(",")
        inner = self._kind()
        self._expect(">")
        return array_kind(inner) if name == "array" else map_kind(inner)

    def _decimal(self) -> ColumnKind:
        precision, scale = 10, 0
        if self._take_if("("):
            precision = self._number()
            scale = self._number() if self._take_if(",") else 0
            self._expect(")")
        return decimal_kind(precision, scale)

    def _number(self) -> int:
        text = self._next("a number")
        if not text.isdecimal():
            raise ValueError(f"{text!r} is not a valid number")
        return int(text)

    def _take_if(self, sign: str) -> bool:
        is_next = self._tokens[-1:] == [sign]
        if is_next:
            self._tokens.pop()
        return is_next

    def _next(self, what: str) -> str:
        if not self._tokens:
            raise ValueError(f"{self._text!r} ends too early; expected {what}")
        return self._tokens.pop()

    def _expect(self, sign: str) -> None:
        token = self._tokens.pop() if self._tokens else ""
        if token != sign:
            raise ValueError(f"{token or 'the end'!r} is not valid here; expected {sign or 'the end or a comma'!r}")


def _written(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z_]\w*", name) else "`" + name.replace("`", "``") + "`"
