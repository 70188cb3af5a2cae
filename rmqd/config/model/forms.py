"""The base class of the configuration's models, user-friendly texts for pydantic's errors, and some kinds of value."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from rmqd.config.model import java_names
from rmqd.config.model.java_names import word_of_constant
from rmqd.config.problems import ConfigProblem, KeyPath, Locations, path_text, unknown
from rmqd.consumer.consumer_options import GroupKeys, Subscription
from rmqd.errors import InvalidNameError
from rmqd.runtime.value_kinds import (
    Choice,
    Duration,
    Flag,
    Integer,
    Key,
    Size,
    SubstitutedText,
    ValueKind,
    key_of_field,
    list_example,
    show_value,
    value_error,
)
from rmqd.wire.lite_topic import MAX_LITE_TOPIC_LENGTH, check_lite_topic
from rmqd.wire.topics import check_topic


def setting(default: object, description: str) -> Any:
    """Declare a key with its default, as a user would write it, and its description for `rmqd schema`."""
    return Field(default, validate_default=True, description=description)


def fields_of(model: type[BaseModel]) -> list[tuple[str, FieldInfo]]:
    """Return a model's fields in the order that users see. For a group, the engine's keys (GroupKeys) are last."""
    inherited = GroupKeys.__dataclass_fields__ if issubclass(model, GroupKeys) else ()
    return sorted(model.model_fields.items(), key=lambda field: field[0] in inherited)


@functools.cache
def keys_of(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """Return a model's fields by key, in the order that users see."""
    return {key_of_field(name): field for name, field in fields_of(model)}


def kind_of(field: FieldInfo) -> object:
    """Return the kind of a field's value, usually a ValueKind; None for a mapping or a list."""
    return next(iter(field.metadata), None)


def description_of(field: FieldInfo) -> str:
    return next((one.meaning for one in field.metadata if isinstance(one, Key)), field.description or "")


class ConfigSection(BaseModel):
    """A mapping in the configuration file. It refuses unknown keys, and never changes after loading."""

    model_config = ConfigDict(
        alias_generator=key_of_field, extra="forbid", frozen=True, protected_namespaces=(), hide_input_in_errors=True
    )

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """Return the fields for `repr`, without secrets."""
        kinds = {name: kind_of(field) for name, field in type(self).model_fields.items()}
        return ((name, value) for name, value in super().__repr_args__() if not getattr(kinds[name or ""], "secret", 0))


_MANY_KEYS = 12
_BASIC_KEYS = ("subscriptions", "handler")
_PLACEHOLDERS = {"groups": "NAME"}
MAX_SUGGESTIONS: Final = 100
"""How many unknown keys get a suggestion: each suggestion compares all known keys."""


def problems_of_error(
    error: ValidationError, root: type[BaseModel], places: Locations
) -> Iterator[tuple[KeyPath, ConfigProblem, bool]]:
    """Yield the path and the problem of each pydantic error, and True if the error is a missing key."""
    unknown_keys = 0
    for details in error.errors(include_url=False, include_context=False):
        path: KeyPath = tuple(details["loc"])
        if details["type"] == "extra_forbidden":
            unknown_keys += 1
            what = _unknown_key(root, path, details["input"]) if unknown_keys <= MAX_SUGGESTIONS else "unknown key"
            yield path, ConfigProblem(places.of_key(path), places.declared_path(path), what), False
        elif details["type"] == "missing":
            yield path, ConfigProblem(places.of_missing(path), path, _missing_key(root, path)), True
        else:
            message = _wrong_value(root, path, details)
            yield path, ConfigProblem(places.of(path), places.declared_path(path), message), False


def _unknown_key(root: type[BaseModel], path: KeyPath, value: object) -> str:
    key = str(path[-1])
    model = model_at(root, path[:-1])
    known = list(keys_of(model)) if model is not None else []
    if key not in known:
        if "subscriptions" in known and key.removesuffix("s") in ("topic", "tag"):
            return 'unknown key; expected topics and tags in subscriptions, such as subscriptions: {orders: "*"}'
        elsewhere = _places_of_keys(root).get(key)
        if elsewhere is not None:
            if path[-2:-1] == ("handler",) and elsewhere[-1:] == ("sink",):  # an option of the plugin, such as url
                elsewhere = ("groups", "NAME", "handler", "options")
            return f"unknown key here; move it to {path_text(elsewhere) or 'the top level'}"
    return _java_name(root, path, value, known) or unknown("key", key, known)


def _java_name(root: type[BaseModel], path: KeyPath, value: object, known: list[str]) -> str | None:
    """Return the message for an unknown key that is a name of the Java client; None for other unknown keys."""
    key = str(path[-1])
    word, reason = java_names.word_of_constant(key), java_names.find_entry(key, java_names.REASONS)
    if word in known:
        return f"this is the Java client's name; write {word}"
    place = place_of_java_name(root, key)
    if place is None:
        return f"no key for this Java setting: {reason}" if reason else None
    what = "this is the Java client's name" if java_names.find_entry(key, java_names.KEYS) else "unknown key"
    if place == ("groups",):
        return f"{what}; write groups.NAME"
    model, written = model_at(root, path[:-1]) or root, _written(root, place, key, value)
    for start in range(len(place) - 1, -1, -1):
        if issubclass(model_at(root, place[:start]) or object, model):
            return f"{what}; write {path_text(place[start:])}{written}"
    return f"{what}; write {path_text(place)}{written}{'' if place[0] == 'groups' else ' at the top level'}"


def place_of_java_name(root: type[BaseModel], name: str) -> KeyPath | None:
    """Return the path of the key that corresponds to a parameter of the Java client; None without such a key."""
    key = java_names.find_entry(name, java_names.KEYS) or java_names.snake_case(name)
    first, *rest = key.split(".")
    section = _places_of_keys(root).get(first)
    return None if section is None else (*section, first, *rest)


def _written(root: type[BaseModel], place: KeyPath, name: str, value: object) -> str:
    """Return a Java value in rmqd's notation; "" for text, which may be a secret, and for invalid values."""
    model = model_at(root, place[:-1])
    kind = None if model is None else kind_of(keys_of(model)[str(place[-1])])
    if not isinstance(kind, Choice | Duration | Flag | Size | Integer) or isinstance(value, SubstitutedText):
        return ""
    accepted = java_names.value_from_java(kind, name, value)
    return "" if accepted is None else f": {str(accepted).lower() if isinstance(accepted, bool) else accepted}"


def _missing_key(root: type[BaseModel], path: KeyPath) -> str:
    model = model_at(root, path[:-1])
    field = keys_of(model).get(str(path[-1])) if model is not None else None
    return f"missing; expected {(field and description_of(field)) or 'a value'}"


def _wrong_value(root: type[BaseModel], path: KeyPath, details: ErrorDetails) -> str:
    kind, shown = details["type"], show_value(details["input"])
    if kind == "model_type":
        model = model_at(root, path)
        keys = list(keys_of(model)) if model is not None else []
        basic = [key for key in _BASIC_KEYS if key in keys] or keys[:1]
        these = ", ".join(keys) if len(keys) <= _MANY_KEYS else f"{', '.join(basic)} and others (rmqd schema)"
        example = ", such as {plugin: NAME}" if "plugin" in keys[:1] else ""
        return f"{shown} is not a mapping; expected a mapping with the keys {these}{example}"
    if kind == "dict_type":
        example = ', such as {orders: "*"}' if path[-1] == "subscriptions" else ""
        return f"{shown} is not a mapping; expected a mapping of names to values{example}"
    if kind == "list_type":
        one = details["input"] if isinstance(details["input"], str) else None
        return f"{shown} is not a list; expected a list, such as {list_example(one)}"
    model = model_at(root, path[:-1])
    accepting = None if model is None or path[-1] not in keys_of(model) else kind_of(keys_of(model)[str(path[-1])])
    if isinstance(accepting, Choice) and (word := word_of_constant(details["input"])) in accepting.words:
        return f"{shown} is Java's name for {word}; expected {accepting.accepted}"
    return details["msg"]


def model_at(root: type[BaseModel], path: KeyPath) -> type[BaseModel] | None:
    """Return the model of the section at a path of the configuration; None if the path leads to no model."""
    kind: object = root
    for step in path:
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            field = keys_of(kind).get(str(step))
            kind = _bare(field.annotation) if field is not None else None
        elif get_origin(kind) in (dict, list):
            kind = _bare(get_args(kind)[-1])
        else:
            return None
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


@functools.cache
def _places_of_keys(root: type[BaseModel]) -> dict[str, KeyPath]:
    """Return, for each key, the path of the first model that has the key."""
    places: dict[str, KeyPath] = {}
    _add_keys(places, root, ())
    return places


def _add_keys(places: dict[str, KeyPath], model: type[BaseModel], path: KeyPath) -> None:
    keys = keys_of(model)
    for name in keys:
        places.setdefault(name, path)
    for name, field in keys.items():
        inner = _bare(field.annotation)
        steps: KeyPath = (name,)
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


_HOST_PORT: Final = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})", re.ASCII)
_TAG_FORM: Final = (
    'a tag expression such as "paid || refunded", "*" for all messages, {sql: "amount > 100"}, or '
    "{lite_topics: [session-1, session-2]}"
)
_LITE_FORM: Final = "a list of lite topics, each named once, such as [session-1, session-2]"


def split_host_port(text: str) -> tuple[str, int]:
    """Split `host:port` (or `[IPv6]:port`). Raises ValueError for anything else."""
    match = _HOST_PORT.fullmatch(text)
    if match is None or int(match[2]) > 65535:
        raise ValueError(f"{text!r} is not host:port")
    return match[1].strip("[]"), int(match[2])


def is_host_port(text: str, min_port: int = 1) -> bool:
    """Return whether the text is `host:port`. Use `min_port=0` for addresses to listen on: port 0 means a free port."""
    try:
        return split_host_port(text)[1] >= min_port
    except ValueError:
        return False


def is_topic(text: str) -> bool:
    """Return whether RocketMQ accepts the text as a topic's name."""
    try:
        check_topic(text)
    except InvalidNameError:
        return False
    return True


@dataclass(eq=False, repr=False)
class NameServerList(ValueKind):
    """Name servers, written as `host:port;host:port` or as a list. The checked value is a tuple."""

    accepted: str = 'host:port, "host:port;host:port", or a list of host:port'

    def parse(self, value: object) -> tuple[str, ...]:
        addresses: list[Any]
        if isinstance(value, str):
            addresses = [part.strip() for part in value.split(";") if part.strip()]
        elif isinstance(value, list):
            addresses = value
        else:
            raise value_error(f"{show_value(value)} is not an address", self.accepted)
        if not addresses:
            raise value_error("no address is set", self.accepted)
        for address in addresses:
            if not isinstance(address, str) or not is_host_port(address):
                shown = value if isinstance(value, SubstitutedText) else address
                raise value_error(f"{show_value(shown)} is not host:port", self.accepted)
        return tuple(str(address) for address in addresses)

    def json_schema(self) -> dict[str, Any]:
        return {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]}


@dataclass(eq=False, repr=False)
class SubscriptionForm(ValueKind):
    """A subscription: a tag expression, `{sql: condition}`, or `{lite_topics: [names]}`."""

    def parse(self, value: object) -> Subscription:
        if isinstance(value, dict):
            if set(value) == {"lite_topics"}:
                return Subscription(expression="*", kind="TAG", lite_topics=_checked_lite_topics(value["lite_topics"]))
            sql = value.get("sql")
            if set(value) != {"sql"}:
                for kind in ("SQL92", "TAG"):
                    if kind in (*value, *value.values()):
                        raise value_error(f"{kind} is Java's name for {word_of_constant(kind)}", _TAG_FORM)
                raise value_error(
                    f"a mapping with {', '.join(map(repr, value)) or 'no key'} is not a subscription", _TAG_FORM
                )
            if not isinstance(sql, str) or not sql.strip():
                raise value_error(f"{show_value(sql)} is not an SQL92 condition", _TAG_FORM)
            return Subscription(expression=_without_nul(sql), kind="SQL92")
        if not isinstance(value, str):
            raise value_error(f"{show_value(value)} is not a tag expression", _TAG_FORM)
        return Subscription(expression=_checked_tags(value), kind="TAG")

    def json_schema(self) -> dict[str, Any]:
        sql = {"type": "string", "description": "SQL92 condition over the messages' properties, checked by the broker"}
        names = {"type": "string", "minLength": 1, "maxLength": MAX_LITE_TOPIC_LENGTH}
        told = "lite topics of RocketMQ 5.5 below the topic; the group needs consume_mode: pop"
        lite = {"type": "array", "items": names, "minItems": 1, "uniqueItems": True, "description": told}
        return {
            "anyOf": [
                {"type": "string", "minLength": 1, "description": 'tags separated by ||, or "*" for all messages'},
                {"type": "object", "properties": {"sql": sql}, "required": ["sql"], "additionalProperties": False},
                {
                    "type": "object",
                    "properties": {"lite_topics": lite},
                    "required": ["lite_topics"],
                    "additionalProperties": False,
                },
            ]
        }


@dataclass(eq=False, repr=False)
class PointInTime(ValueKind):
    """A time with a time zone, or `@` and Unix milliseconds. The checked value is in Unix milliseconds."""

    accepted: str = "ISO 8601 with a zone such as 2026-01-01T00:00:00+08:00, or @ and Unix milliseconds"

    def parse(self, value: object) -> int:
        if isinstance(value, str) and re.fullmatch(r"@[0-9]{1,15}", value, re.ASCII):
            return int(value[1:])
        try:
            moment = datetime.fromisoformat(value) if isinstance(value, str) else None
        except ValueError:
            moment = None
        if (
            moment is None
            and re.fullmatch(r"[0-9]{14}", str(value), re.ASCII)
            and not isinstance(value, SubstitutedText)
        ):
            iso = re.sub("(....)(..)(..)(..)(..)(..)", r"\1-\2-\3T\4:\5:\6", str(value))
            raise value_error(f"{show_value(value)} is the Java client's form; write {iso} with a zone", self.accepted)
        if moment is None:
            raise value_error(f"{show_value(value)} is not a point in time", self.accepted)
        if moment.tzinfo is None:
            raise value_error(f"{show_value(value)} has no time zone", self.accepted)
        return round(moment.timestamp() * 1000)

    def json_schema(self) -> dict[str, Any]:
        return {"type": "string"}


def _checked_lite_topics(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not value:
        raise value_error(f"{show_value(value)} is not a list of lite topics", _LITE_FORM)
    for name in value:
        if not isinstance(name, str):
            raise value_error(f"{show_value(name)} is not the name of a lite topic", _LITE_FORM)
        try:
            check_lite_topic(name)
        except InvalidNameError as error:
            raise value_error(str(error), _LITE_FORM) from None
    if len(set(value)) < len(value):
        raise value_error("a lite topic is listed twice", _LITE_FORM)
    return tuple(map(str, value))


def _without_nul(expression: str) -> str:
    # tags and properties of messages never contain NUL, and other software may cut the text at this character
    if "\0" in expression:
        raise value_error(f"{show_value(expression)} has a NUL character", _TAG_FORM)
    return str(expression)


def _checked_tags(expression: str) -> str:
    tags = [tag.strip() for tag in expression.split("||")]
    if not any(tags):
        raise value_error(f"{show_value(expression)} contains no tag", _TAG_FORM)
    for tag in tags:
        # RocketMQ would read `a | b` as one tag of five characters, and `*` among other tags as a tag of that name.
        if "|" in tag or "&&" in tag or (tag == "*" and len(tags) > 1):
            shown = expression if isinstance(expression, SubstitutedText) else tag
            raise value_error(f"{show_value(shown)} is not a tag, tags are separated by ||", _TAG_FORM)
    return _without_nul(expression)
