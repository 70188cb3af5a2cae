"""The kinds of value in the configuration, such as durations (`50ms`, `15m`) and sizes (`256KiB`, `100MiB`).

Each kind checks a value, and its errors give the expected form. A number without a unit is refused, because half of
RocketMQ's settings are milliseconds, and the others are not. Pydantic's own checks are not used: they are lax about
types (`"5"` for 5, 1 for true), and their messages mention types and units that users do not know. Processes that read
no configuration need no pydantic, so it is imported when a model is built or a value is wrong.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, TypeVar, get_args, get_type_hints

if TYPE_CHECKING:
    from pydantic_core import PydanticCustomError

T = TypeVar("T")

DURATION_UNITS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
SIZE_UNITS: Final = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
DURATION_FORM: Final = "a duration such as 50ms, 5s, 15m or 1h"
SIZE_FORM: Final = "a size such as 256KiB, 100MiB or 1GiB"
DURATION_PATTERN: Final = r"[0-9]+(\.[0-9]+)?(ms|s|m|h|d)"
SIZE_PATTERN: Final = r"[0-9]+(\.[0-9]+)?(B|KiB|MiB|GiB)"

_QUANTITY: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([A-Za-z]*)", re.ASCII)
# No setting needs more than 100,000 days, and timers of the event loop would overflow.
_MAX_DURATION_MS: Final = 100_000 * DURATION_UNITS["d"]
# the largest number of bytes that a float represents exactly
_MAX_SIZE_BYTES: Final = 1 << 53


def parse_duration_ms(text: object) -> float:
    """Return the milliseconds of a duration such as `5s`. Raises ValueError, whose text lacks the expected form."""
    milliseconds = _parse(text, DURATION_UNITS, "a duration")
    if milliseconds > _MAX_DURATION_MS:
        raise ValueError(f"{text!r} is longer than {format_duration(_MAX_DURATION_MS)}")
    return milliseconds


def parse_duration_seconds(text: object) -> float:
    """Return the seconds of a duration such as `500ms`. Raises ValueError, whose text lacks the expected form."""
    return parse_duration_ms(text) / 1000


def parse_size_bytes(text: object) -> int:
    """Return the bytes of a size such as `100MiB`. Raises ValueError, whose text lacks the expected form."""
    size = _parse(text, SIZE_UNITS, "a size")
    if size > _MAX_SIZE_BYTES:
        raise ValueError(f"{text!r} is more than {format_size(_MAX_SIZE_BYTES)}")
    if size != int(size):
        raise ValueError(f"{text!r} is not a whole number of bytes")
    return int(size)


def format_duration(milliseconds: float) -> str:
    """Return the shortest exact form: 5000 is `5s`, 65535 is `65535ms`."""
    return _format(milliseconds, DURATION_UNITS, zero="0s")


def format_size(size_bytes: int) -> str:
    """Return the shortest exact form: 1048576 is `1MiB`."""
    return _format(size_bytes, SIZE_UNITS, zero="0B")


def _parse(text: object, units: dict[str, int], kind: str) -> float:
    if isinstance(text, int | float) and not isinstance(text, bool):
        raise ValueError(f"{text} has no unit")  # noqa: TRY004 - all problems of a value are ValueErrors
    match = _QUANTITY.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise ValueError(f"{text!r} is not {kind}")
    number, unit = match.groups()
    if not unit:
        raise ValueError(f"{text!r} has no unit")
    if unit not in units:
        raise ValueError(f"{text!r} has an unknown unit {unit!r}, known units are {', '.join(units)}")
    return float(number) * units[unit]


def _format(amount: float, units: dict[str, int], zero: str) -> str:
    if amount == 0:
        return zero
    for unit, factor in reversed(units.items()):
        if amount % factor == 0:
            return f"{int(amount // factor)}{unit}"
    return f"{amount:g}{next(iter(units))}"


_BARE_WORD: Final = re.compile(r"[\w.-]+")


class SubstitutedText(str):
    """Text that replaced a `${...}`. It may stand for a number or a flag. Errors hide it, because it may be secret."""

    __slots__ = ()


def value_error(what: str, accepted: str) -> PydanticCustomError:
    """Return an error with the problem of a value (`what`), and the expected form (`accepted`)."""
    from pydantic_core import PydanticCustomError

    return PydanticCustomError("rmqd", "{text}", {"text": f"{what}; expected {accepted}"})


def show_value(value: object) -> str:
    """Return a value as error messages show it."""
    if isinstance(value, SubstitutedText):
        return "the substituted value"
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "no value"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def list_example(value: object) -> str:
    """Return an example of a list, for an error about a value that is not a list; with the value if it may be shown."""
    given = None if isinstance(value, SubstitutedText | bool) or not isinstance(value, str | int) else str(value)
    return f"[{given}]" if given is not None and _BARE_WORD.fullmatch(given) else "[a, b]"


class ValueKind:
    """A kind of value in the configuration: how it is checked, and its JSON Schema."""

    secret: bool = False

    def parse(self, value: object) -> object:
        """Return the value to use. Raises PydanticCustomError if it is invalid."""
        raise NotImplementedError

    def json_schema(self) -> dict[str, Any]:
        """Return the JSON Schema, which editors use to check the value."""
        raise NotImplementedError

    def __get_pydantic_core_schema__(self, source: object, handler: object) -> Any:
        from pydantic_core import core_schema

        return core_schema.no_info_plain_validator_function(self.parse)

    def __get_pydantic_json_schema__(self, schema: object, handler: object) -> dict[str, Any]:
        return self.json_schema()

    def as_written(self, value: Any) -> Any:
        """Return a checked value as a user writes it."""
        return value


@dataclass(frozen=True, slots=True)
class Key:
    """The meaning of a configuration key for users. `live`: running groups apply a changed value."""

    meaning: str
    live: bool = False

    def __get_pydantic_json_schema__(self, schema: object, handler: Callable[[object], dict[str, Any]]) -> Any:
        return handler(schema) | {"description": self.meaning}


def key(default: object, meaning: str, kind: ValueKind | None = None, *, live: bool = False) -> Any:
    """Declare a configuration key as a dataclass field. The default is a checked value, in the unit of the field.

    Without a `kind`, the field's type is a Literal or bool: the value is one of its words, or a flag.
    """
    return field(default=default, repr=kind is None or not kind.secret, metadata={"key": (kind, Key(meaning, live))})


def with_kinds(options: type[T]) -> type[T]:
    """Annotate each field of a dataclass with its kind of value, so that pydantic models can inherit the fields."""
    hints = get_type_hints(options)
    for name, declared in options.__dataclass_fields__.items():  # type: ignore[attr-defined]
        kind, about = declared.metadata["key"]
        kind = kind or (Flag() if hints[name] is bool else Choice(get_args(hints[name])))
        options.__annotations__[name] = Annotated[hints[name], kind, about]
    return options


def key_of_field(field_name: str) -> str:
    """Return the configuration key of a field: the field's name without its unit, which is part of a key's value."""
    return field_name.removesuffix("_seconds").removesuffix("_bytes")


@dataclass(eq=False, repr=False)
class Integer(ValueKind):
    """A whole number in a range. `also` has values outside the range with a special meaning, such as -1 for no limit.

    `word` is a text that is allowed instead of a number.
    """

    minimum: int
    maximum: int | None = None
    also: tuple[int, ...] = ()
    meaning: str = ""
    word: str = ""

    def parse(self, value: object) -> int | str:
        if self.word and isinstance(value, str) and value == self.word:
            return self.word
        number = _substituted(value, int)
        if isinstance(number, bool) or not isinstance(number, int):
            raise value_error(f"{show_value(value)} is not a whole number", self._accepted())
        if number in self.also or (number >= self.minimum and (self.maximum is None or number <= self.maximum)):
            return number
        raise value_error(f"{number} is out of range", self._accepted())

    def json_schema(self) -> dict[str, Any]:
        number: dict[str, Any] = {"type": "integer", "minimum": self.minimum}
        if self.maximum is not None:
            number["maximum"] = self.maximum
        choices = [number, *({"const": value} for value in (*self.also, *filter(None, [self.word])))]
        return or_substituted(*choices)

    def _accepted(self) -> str:
        limits = f"{self.minimum} or more" if self.maximum is None else f"from {self.minimum} to {self.maximum}"
        also = "".join(f", or {value}{' ' if self.meaning else ''}{self.meaning}" for value in self.also)
        return f"a whole number {limits}{also}{f', or {self.word}' if self.word else ''}"


@dataclass(eq=False, repr=False)
class Share(ValueKind):
    """A number from 0.0 to 1.0."""

    accepted: ClassVar[str] = "a number from 0.0 to 1.0"

    def parse(self, value: object) -> float:
        number = _substituted(value, float)
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise value_error(f"{show_value(value)} is not a number", self.accepted)
        if 0 <= number <= 1:
            return float(number)
        raise value_error(f"{number} is out of range", self.accepted)

    def json_schema(self) -> dict[str, Any]:
        return or_substituted({"type": "number", "minimum": 0, "maximum": 1})


@dataclass(eq=False, repr=False)
class Flag(ValueKind):
    """true or false."""

    def parse(self, value: object) -> bool:
        if isinstance(value, bool):
            return value
        if isinstance(value, SubstitutedText) and value.lower() in ("true", "false"):
            return value.lower() == "true"
        raise value_error(f"{show_value(value)} is neither true nor false", "true or false")

    def json_schema(self) -> dict[str, Any]:
        return or_substituted({"type": "boolean"})


@dataclass(eq=False, repr=False)
class Text(ValueKind):
    """A text. `rule` returns whether a text is valid."""

    accepted: str = "text"
    rule: Callable[[str], bool] | None = None
    secret: bool = False
    pattern: str = ""

    def parse(self, value: object) -> str:
        shown = "the value" if self.secret else show_value(value)
        if not isinstance(value, str):
            # Numbers are not accepted as text, because YAML would change 0123 and 1e3.
            quote = ", in quotes" if isinstance(value, int | float) else ""
            raise value_error(f"{shown} is not text", f"{self.accepted}{quote}")
        if "\0" in value:
            # names of files, hosts and topics never contain NUL
            raise value_error(f"{shown} has a NUL character", self.accepted)
        if self.rule is not None and not self.rule(value):
            raise value_error(f"{shown} is not valid", self.accepted)
        return str(value)

    def json_schema(self) -> dict[str, Any]:
        return {"type": "string", "pattern": self.pattern} if self.pattern else {"type": "string"}


@dataclass(eq=False, repr=False)
class Choice(ValueKind):
    """One word of a list."""

    words: tuple[str, ...]

    def parse(self, value: object) -> str:
        if isinstance(value, str) and value in self.words:
            return str(value)
        raise value_error(f"{show_value(value)} is not a choice", self.accepted)

    @property
    def accepted(self) -> str:
        """The accepted words, as error messages show them."""
        return " | ".join(self.words)

    def json_schema(self) -> dict[str, Any]:
        return or_substituted({"enum": list(self.words)})


@dataclass(eq=False, repr=False)
class Duration(ValueKind):
    """A duration. The written value and the limits have a unit; the checked value is in seconds."""

    minimum: str
    maximum: str = ""

    def parse(self, value: object) -> float:
        low = parse_duration_ms(self.minimum)
        high = parse_duration_ms(self.maximum) if self.maximum else float("inf")
        try:
            milliseconds = parse_duration_ms(value)
        except ValueError as error:
            raise value_error(_quantity_error(value, error), self._accepted()) from None
        if low <= milliseconds <= high:
            return milliseconds / 1000
        raise value_error(f"{show_value(value)} is out of range", self._accepted())

    def as_written(self, value: Any) -> Any:
        return format_duration(value * 1000) if isinstance(value, int | float) else value

    def json_schema(self) -> dict[str, Any]:
        return or_substituted({"type": "string", "pattern": f"^{DURATION_PATTERN}$"})

    def _accepted(self) -> str:
        low = format_duration(parse_duration_ms(self.minimum))
        return f"{DURATION_FORM}, {f'from {low} to {self.maximum}' if self.maximum else f'at least {low}'}"


@dataclass(eq=False, repr=False)
class Size(ValueKind):
    """A size. The written value and the limits have a unit; the checked value is in bytes. `unlimited` allows -1."""

    minimum: str
    maximum: str
    unlimited: bool = False

    def parse(self, value: object) -> int:
        if self.unlimited and (value == "-1" if isinstance(value, SubstitutedText) else value == -1):
            return -1
        try:
            size_bytes = parse_size_bytes(value)
        except ValueError as error:
            raise value_error(_quantity_error(value, error), self._accepted()) from None
        if parse_size_bytes(self.minimum) <= size_bytes <= parse_size_bytes(self.maximum):
            return size_bytes
        raise value_error(f"{show_value(value)} is out of range", self._accepted())

    def as_written(self, value: Any) -> Any:
        return format_size(value) if isinstance(value, int) and value >= 0 else value

    def json_schema(self) -> dict[str, Any]:
        text = {"type": "string", "pattern": f"^{SIZE_PATTERN}$"}
        return or_substituted(text, {"const": -1}) if self.unlimited else or_substituted(text)

    def _accepted(self) -> str:
        low, high = (format_size(parse_size_bytes(limit)) for limit in (self.minimum, self.maximum))
        return f"{SIZE_FORM}, from {low} to {high}{', or -1 for no limit' if self.unlimited else ''}"


@dataclass(eq=False, repr=False)
class HookNames(ValueKind):
    """`all`, `none`, or a list of hooks' names. Whether the hooks are installed is checked only when the group runs."""

    def parse(self, value: object) -> str | tuple[str, ...]:
        if isinstance(value, str) and value in ("all", "none"):
            return str(value)
        if isinstance(value, list) and value and all(isinstance(name, str) and name for name in value):
            return tuple(map(str, value))
        what = f"{show_value(value)} is not a list of hooks" if value != [] else "the list is empty"
        raise value_error(what, f"all | none | a list such as {list_example(value)}")

    def json_schema(self) -> dict[str, Any]:
        names = {"type": "array", "items": {"type": "string"}, "minItems": 1}
        return {"anyOf": [{"enum": ["all", "none"]}, names]}


def or_substituted(*choices: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON Schema of a value that may also be written as `${...}`."""
    return {"anyOf": [*choices, {"type": "string", "pattern": r"\$\{.+\}"}]}


def _substituted(value: object, make: Callable[[str], T]) -> object:
    """Return the number in a text from `${...}`, if the text is a number. Return other values unchanged."""
    with contextlib.suppress(ValueError):
        return make(value) if isinstance(value, SubstitutedText) else value
    return value


def _quantity_error(value: object, error: ValueError) -> str:
    return (
        f"{show_value(value)} is not valid"
        if isinstance(value, SubstitutedText | bool | dict | list | None)
        else str(error)
    )
