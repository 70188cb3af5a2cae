"""Converts pydantic's errors to problems with the location of the value and the expected form."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from rmqd.config.model import java_names
from rmqd.config.model.forms import StrategyName
from rmqd.config.model.kinds import Choice, Duration, Flag, Size, Substituted, Whole, as_list, show
from rmqd.config.problems import ConfigProblem, Path, Places, path_text, unknown

_MANY_KEYS = 12
_BASIC_KEYS = ("subscriptions", "handler")
_PLACEHOLDERS = {"groups": "NAME"}


MOST_GUESSES: Final = 100
"""How many unknown keys get a suggestion: each suggestion compares all known keys."""


def problems_of(
    error: ValidationError, root: type[BaseModel], places: Places
) -> Iterator[tuple[Path, ConfigProblem, bool]]:
    """Yield the path and the problem of each pydantic error, and whether a key is missing."""
    unknown_keys = 0
    for details in error.errors(include_url=False, include_context=False):
        path: Path = tuple(details["loc"])
        if details["type"] == "extra_forbidden":
            unknown_keys += 1
            what = _unknown_key(root, path, details["input"]) if unknown_keys <= MOST_GUESSES else "unknown key"
            yield path, ConfigProblem(places.of_key(path), path, what), False
        elif details["type"] == "missing":
            yield path, ConfigProblem(places.of_key(path[:-1]), path, _missing_key(root, path)), True
        else:
            yield path, ConfigProblem(places.of(path), path, _wrong_value(root, path, details)), False


def _unknown_key(root: type[BaseModel], path: Path, value: object) -> str:
    key = str(path[-1])
    model = model_at(root, path[:-1])
    known = list(model.model_fields) if model is not None else []
    if key not in known:
        elsewhere = _places_of_keys(root).get(key)
        if elsewhere is not None:
            return f"unknown key; it belongs to {path_text(elsewhere) or 'the top level'}"
    return _java_name(root, path, value, known) or unknown("key", key, known)


def _java_name(root: type[BaseModel], path: Path, value: object, known: list[str]) -> str | None:
    """Return the message for a name of the Java client, with its counterpart here; None for another name."""
    key = str(path[-1])
    word, reason = java_names.word_of(key), java_names.listed(key, java_names.REASONS)
    if word in known:
        return f"Java's name; write {word}"
    place = place_of_java_name(root, key)
    if place is None:
        return f"Java's name; there is no key: {reason}" if reason else None
    what = "Java's name" if java_names.listed(key, java_names.KEYS) else "unknown key"
    if place == ("groups",):
        return f"{what}; write groups.NAME"
    model, written = model_at(root, path[:-1]) or root, _written(root, place, key, value)
    for start in range(len(place) - 1, -1, -1):
        if issubclass(model_at(root, place[:start]) or object, model):
            return f"{what}; write {path_text(place[start:])}{written}"
    return f"{what}; write {path_text(place)}{written}{'' if place[0] == 'groups' else ' at the top level'}"


def place_of_java_name(root: type[BaseModel], name: str) -> Path | None:
    """Return the key that corresponds to a parameter of the Java client; None if there is none."""
    key = java_names.listed(name, java_names.KEYS) or java_names.snake_case(name)
    first, *rest = key.split(".")
    section = _places_of_keys(root).get(first)
    return None if section is None else (*section, first, *rest)


def _written(root: type[BaseModel], place: Path, name: str, value: object) -> str:
    """Return a Java value in rmqd's notation; "" for text, which may be a secret, and for invalid values."""
    model = model_at(root, place[:-1])
    kind = next(iter(model.model_fields[str(place[-1])].metadata), None) if model is not None else None
    if not isinstance(kind, Choice | Duration | Flag | Size | StrategyName | Whole) or isinstance(value, Substituted):
        return ""
    unit = {Duration: "m" if name.lower().endswith("timeout") else "ms", Size: "MiB"}.get(type(kind), "")
    for one in (java_names.word_of(value) or value, f"{value}{unit}"):
        try:
            kind.check(one)
        except PydanticCustomError:
            continue
        return f": {str(one).lower() if isinstance(one, bool) else one}"
    return ""


def _missing_key(root: type[BaseModel], path: Path) -> str:
    model = model_at(root, path[:-1])
    field = model.model_fields.get(str(path[-1])) if model is not None else None
    accepted = field.description if field is not None and field.description else "a value"
    return f"missing; expected {accepted}"


def _wrong_value(root: type[BaseModel], path: Path, details: ErrorDetails) -> str:
    kind, shown = details["type"], show(details["input"])
    if kind == "model_type":
        model = model_at(root, path)
        keys = list(model.model_fields) if model is not None else []
        these = ", ".join(keys) if len(keys) <= _MANY_KEYS else f"{', '.join(_BASIC_KEYS)} and others (rmqd schema)"
        return f"{shown} is not a mapping; expected a mapping with the keys {these}"
    if kind == "dict_type":
        return f"{shown} is not a mapping; expected a mapping of names to values"
    if kind == "list_type":
        one = details["input"] if isinstance(details["input"], str) else None
        return f"{shown} is not a list; expected a list, such as {as_list(one)}"
    return details["msg"]


def model_at(root: type[BaseModel], path: Path) -> type[BaseModel] | None:
    """Return the model at a path of the configuration; None if there is none."""
    kind: object = root
    for step in path:
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            field = kind.model_fields.get(str(step))
            kind = _bare(field.annotation) if field is not None else None
        elif get_origin(kind) in (dict, list):
            kind = _bare(get_args(kind)[-1])
        else:
            return None
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


@functools.cache
def _places_of_keys(root: type[BaseModel]) -> dict[str, Path]:
    """Return, for each key, the path of the model that has it. If there are several, the first in the order of
    fields.
    """
    places: dict[str, Path] = {}
    _add_keys(places, root, ())
    return places


def _add_keys(places: dict[str, Path], model: type[BaseModel], path: Path) -> None:
    for name in model.model_fields:
        places.setdefault(name, path)
    for name, field in model.model_fields.items():
        inner = _bare(field.annotation)
        steps: Path = (name,)
        if get_origin(inner) is dict and name in _PLACEHOLDERS:
            inner, steps = _bare(get_args(inner)[-1]), (name, _PLACEHOLDERS[name])
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            _add_keys(places, inner, (*path, *steps))


def _bare(annotation: Any) -> object:
    """Return an annotation without `Annotated` and `| None`."""
    if get_origin(annotation) is Annotated:
        return _bare(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        others = [one for one in get_args(annotation) if one is not NoneType]
        return _bare(others[0]) if len(others) == 1 else annotation
    return annotation
