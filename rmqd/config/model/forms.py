"""Values with a syntax: addresses, subscriptions, points in time."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from rmqd.config.model.java_names import word_of
from rmqd.config.model.kinds import Substituted, ValueKind, as_list, show, wrong
from rmqd.consumer.options import Subscription
from rmqd.errors import InvalidNameError
from rmqd.wire.lite import MAX_LITE_TOPIC_LENGTH, check_lite_topic
from rmqd.wire.topics import check_topic

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


def is_host_port(text: str) -> bool:
    """Return whether this is an address to connect to."""
    try:
        return split_host_port(text)[1] > 0
    except ValueError:
        return False


def is_listen_address(text: str) -> bool:
    """Return whether this is an address to listen on; port 0 selects a free port."""
    try:
        split_host_port(text)
    except ValueError:
        return False
    return True


def is_topic(text: str) -> bool:
    """Return whether RocketMQ accepts the text as a topic's name."""
    try:
        check_topic(text)
    except InvalidNameError:
        return False
    return True


@dataclass(eq=False, repr=False)
class NameServerList(ValueKind):
    """`host:port;host:port` or a list, as a tuple."""

    accepted: str = 'host:port, "host:port;host:port", or a list of host:port'

    def check(self, value: object) -> tuple[str, ...]:
        addresses: list[Any]
        if isinstance(value, str):
            addresses = [part.strip() for part in value.split(";") if part.strip()]
        elif isinstance(value, list):
            addresses = value
        else:
            raise wrong(f"{show(value)} is not an address", self.accepted)
        if not addresses:
            raise wrong("no address is set", self.accepted)
        for address in addresses:
            if not isinstance(address, str) or not is_host_port(address):
                shown = value if isinstance(value, Substituted) else address
                raise wrong(f"{show(shown)} is not host:port", self.accepted)
        return tuple(str(address) for address in addresses)

    def json_schema(self) -> dict[str, Any]:
        return {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]}


@dataclass(eq=False, repr=False)
class SubscriptionForm(ValueKind):
    """A tag expression, `{sql: condition}`, or `{lite_topics: [names]}`."""

    def check(self, value: object) -> Subscription:
        if isinstance(value, dict):
            if set(value) == {"lite_topics"}:
                return Subscription(expression="*", kind="TAG", lite_topics=_checked_lite_topics(value["lite_topics"]))
            sql = value.get("sql")
            if set(value) != {"sql"}:
                for kind in ("SQL92", "TAG"):
                    if kind in (*value, *value.values()):
                        raise wrong(f"{kind} is Java's name for {word_of(kind)}", _TAG_FORM)
                raise wrong(f"a mapping of {', '.join(map(repr, value)) or 'nothing'} is not a subscription", _TAG_FORM)
            if not isinstance(sql, str) or not sql.strip():
                raise wrong(f"{show(sql)} is not an SQL92 condition", _TAG_FORM)
            return Subscription(expression=_without_nul(sql), kind="SQL92")
        if not isinstance(value, str):
            raise wrong(f"{show(value)} is not a tag expression", _TAG_FORM)
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
    """A time with its zone, or `@` and Unix milliseconds. The value is in Unix milliseconds."""

    accepted: str = "ISO 8601 with a zone such as 2026-01-01T00:00:00+08:00, or @ and Unix milliseconds"

    def check(self, value: object) -> int:
        if isinstance(value, str) and re.fullmatch(r"@[0-9]{1,15}", value, re.ASCII):
            return int(value[1:])
        try:
            moment = datetime.fromisoformat(value) if isinstance(value, str) else None
        except ValueError:
            moment = None
        if moment is None and re.fullmatch(r"[0-9]{14}", str(value), re.ASCII) and not isinstance(value, Substituted):
            iso = re.sub("(....)(..)(..)(..)(..)(..)", r"\1-\2-\3T\4:\5:\6", str(value))
            raise wrong(f"{show(value)} is Java's form; write {iso} and its zone", self.accepted)
        if moment is None:
            raise wrong(f"{show(value)} is not a point in time", self.accepted)
        if moment.tzinfo is None:
            raise wrong(f"{show(value)} has no time zone", self.accepted)
        return round(moment.timestamp() * 1000)

    def json_schema(self) -> dict[str, Any]:
        return {"type": "string"}


def _checked_lite_topics(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not value:
        raise wrong(f"{show(value)} is not a list of lite topics", _LITE_FORM)
    for name in value:
        if not isinstance(name, str):
            raise wrong(f"{show(name)} is not the name of a lite topic", _LITE_FORM)
        try:
            check_lite_topic(name)
        except InvalidNameError as error:
            raise wrong(str(error), _LITE_FORM) from None
    if len(set(value)) < len(value):
        raise wrong("a lite topic is named twice", _LITE_FORM)
    return tuple(map(str, value))


def _without_nul(expression: str) -> str:
    # tags and properties of messages never contain it, and other software may cut the text there
    if "\0" in expression:
        raise wrong(f"{show(expression)} has a NUL character", _TAG_FORM)
    return str(expression)


def _checked_tags(expression: str) -> str:
    tags = [tag.strip() for tag in expression.split("||")]
    if not any(tags):
        raise wrong(f"{show(expression)} names no tag", _TAG_FORM)
    for tag in tags:
        # RocketMQ would read `a | b` as one tag of five characters, and `*` among other tags as a tag of that name.
        if "|" in tag or "&&" in tag or (tag == "*" and len(tags) > 1):
            shown = expression if isinstance(expression, Substituted) else tag
            raise wrong(f"{show(shown)} is not a tag, tags are separated by ||", _TAG_FORM)
    return _without_nul(expression)


@dataclass(eq=False, repr=False)
class HookNames(ValueKind):
    """`all`, `none`, or a list of names. They are compared with the installed hooks only when the group should run."""

    def check(self, value: object) -> str | tuple[str, ...]:
        if isinstance(value, str) and value in ("all", "none"):
            return str(value)
        if isinstance(value, list) and value and all(isinstance(name, str) and name for name in value):
            return tuple(map(str, value))
        raise wrong(f"{show(value)} names no hooks", f"all | none | a list such as {as_list(value)}")

    def json_schema(self) -> dict[str, Any]:
        names = {"type": "array", "items": {"type": "string"}, "minItems": 1}
        return {"anyOf": [{"enum": ["all", "none"]}, names]}


@dataclass(eq=False, repr=False)
class StrategyName(ValueKind):
    """The name of an allocate strategy. It is compared with the installed ones only when the group should run."""

    built_in: tuple[str, ...]

    def check(self, value: object) -> str:
        word = word_of(value)
        if isinstance(value, str) and value and word not in self.built_in:
            return str(value)
        problem = f"is Java's name for {word}" if word in self.built_in else "is not a strategy"
        raise wrong(f"{show(value)} {problem}", f"{' | '.join(self.built_in)} | the name of an installed one")

    def json_schema(self) -> dict[str, Any]:
        return {"anyOf": [{"enum": list(self.built_in)}, {"type": "string"}]}
