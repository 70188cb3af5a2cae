"""A configuration to display: every key with its current value, without secrets.

Hidden values: keys that the models declare as secrets; options with names like `password`; passwords inside URLs and
longer texts; and all values from `${...}` in options whose meaning rmqd does not know.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from typing import Any, Final

from pydantic.fields import FieldInfo

from rmqd.config.model.kinds import Duration, Size, Substituted, Text
from rmqd.config.model.quantities import format_duration, format_size
from rmqd.config.model.root import RootConfig
from rmqd.config.model.section import Section

HIDDEN: Final = "(hidden)"

_SECRET_WORDS: Final = (
    r"passw(?:or)?d|passphrase|pwd|secret|token|credential|(?:access|api|private|account|shared)[-_.]?key"
)
_SECRET_NAME: Final = re.compile(
    rf"{_SECRET_WORDS}|(?:^|[-_.])(?:auth|authorization|sas|dsn)(?:$|[-_.])", re.IGNORECASE
)
_IN_URL: Final = re.compile(r"(\w[\w+.-]*://)[^/?#\s]*@")
_IN_TEXT: Final = re.compile(
    rf"((?:{_SECRET_WORDS}|authorization)[\w.-]*[\"']?\s*[=:]\s*)(?:bearer\s+|basic\s+)?[^\s,;&\"']+", re.IGNORECASE
)
_CREDENTIALS: Final = re.compile(r"\b(bearer|basic)\s+[\w.~+/=-]{6,}", re.IGNORECASE)


def shown_config(config: RootConfig) -> dict[str, Any]:
    """Return the current configuration as plain data, including defaults. Durations and sizes have units."""
    return _section(config, only_given=False)


def given_config(config: RootConfig) -> dict[str, Any]:
    """Return the same without the keys that have their defaults because no file and no `--set` sets them."""
    return _section(config, only_given=True)


def _section(section: Section, only_given: bool) -> dict[str, Any]:
    shown = {}
    for name, field in type(section).model_fields.items():
        if not only_given or name in section.model_fields_set:
            shown[name] = _field(field, getattr(section, name), only_given)
    return shown


def _field(field: FieldInfo, value: object, only_given: bool) -> Any:
    kind = next((one for one in field.metadata if isinstance(one, Duration | Size | Text)), None)
    if isinstance(kind, Text) and kind.secret:
        return HIDDEN if value else ""
    if isinstance(kind, Duration) and isinstance(value, int | float):
        return format_duration(value * 1000)
    if isinstance(kind, Size) and isinstance(value, int):
        return value if value < 0 else format_size(value)
    return _value(value, only_given)


def _value(value: object, only_given: bool, name: str = "") -> Any:
    if isinstance(value, Section):
        return _section(value, only_given)
    if is_dataclass(value) and not isinstance(value, type):
        return {key: _value(inner, only_given) for key, inner in asdict(value).items() if inner not in ((), "")}
    if isinstance(value, Mapping):
        return {str(key): _named(str(key), inner, only_given) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return _items([_value(inner, only_given, name) for inner in value])
    if isinstance(value, Substituted):
        return HIDDEN
    if isinstance(value, str):
        return _CREDENTIALS.sub(rf"\1 {HIDDEN}", _IN_TEXT.sub(rf"\1{HIDDEN}", _IN_URL.sub(rf"\1{HIDDEN}@", value)))
    return value if isinstance(value, bool | int | float) or value is None else str(value)


def _named(name: str, value: object, only_given: bool) -> Any:
    """Return a value in a mapping of names that rmqd does not know, or of groups, clusters and topics."""
    if _SECRET_NAME.search(name) and not isinstance(value, Section) and not is_dataclass(value):
        return HIDDEN if value else value
    return _value(value, only_given, name)


def _items(items: list[Any]) -> list[Any]:
    """Return a list, such as a command's arguments: the item after `--password` is hidden."""
    for i, item in enumerate(items[:-1]):
        if isinstance(item, str) and item.startswith("-") and "=" not in item and _SECRET_NAME.search(item):
            items[i + 1] = HIDDEN
    return items
