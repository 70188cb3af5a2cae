"""A topic's attributes, and requests to change them: `+key=value,-key` (`AttributeParser`, `AttributeUtil`)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from rmqd.errors import RmqdError
from rmqd.wire.topic_kinds import (
    BATCH_QUEUE,
    CLEANUP_POLICIES,
    CLEANUP_POLICY,
    MESSAGE_TYPE,
    MESSAGE_TYPES,
    QUEUE_TYPE,
)

_LONG: Final = re.compile(r"[+-]?\d{1,19}", re.ASCII)
_LEAST: Final = -1


class TopicAttributeError(RmqdError):
    """A change is rejected. The text is the real broker's."""


class _Attribute(NamedTuple):
    """An attribute. `values` are its valid values in Java's order; empty for an integer from -1 to `most`."""

    changeable: bool
    values: tuple[str, ...] = ()
    most: int = 2**63 - 1


_ATTRIBUTES: Final = {
    QUEUE_TYPE: _Attribute(False, ("SimpleCQ", BATCH_QUEUE)),
    CLEANUP_POLICY: _Attribute(False, CLEANUP_POLICIES),
    MESSAGE_TYPE: _Attribute(True, MESSAGE_TYPES),
    "reserve.time": _Attribute(True),
    "lite.topic.expiration": _Attribute(True, most=30 * 24 * 60),
}


def parse_attributes(text: str) -> dict[str, str]:
    """Parse the changes of a request into values by signed key. Raises TopicAttributeError."""
    changes: dict[str, str] = {}
    for part in text.split(",") if text else ():
        key, equals, value = part.partition("=")
        if equals and "+" not in key:
            raise TopicAttributeError(f"add/alter attribute format is wrong: {key}")
        if not equals and "-" not in key:
            raise TopicAttributeError(f"delete attribute format is wrong: {key}")
        if key in changes:
            raise TopicAttributeError(f"key duplication: {key}")
        changes[key] = value.partition("=")[0]
    return changes


def altered(current: Mapping[str, str] | None, changes: Mapping[str, str]) -> dict[str, str]:
    """Return the attributes of a topic after changes. `current` is None for a new topic. Raises TopicAttributeError."""
    seen = set()
    for signed in changes:
        key = signed[1:]
        if not key or "+" in key or "-" in key:
            raise TopicAttributeError("kv string format wrong.")
        if key in seen:
            raise TopicAttributeError(f"alter duplication key. key: {key}")
        seen.add(key)
        _check_sign(signed[0], key, current)
    for signed, value in changes.items():
        _check_value(signed, value, new=current is None)
    result = dict(current or {})
    for signed, value in changes.items():
        if signed[0] == "+":
            result[signed[1:]] = value
        else:
            del result[signed[1:]]
    return result


def _check_sign(sign: str, key: str, current: Mapping[str, str] | None) -> None:
    if current is None and sign != "+":
        raise TopicAttributeError(f"only add attribute is supported while creating topic. key: {key}")
    if current is not None and sign == "-" and key not in current:
        raise TopicAttributeError(f"attempt to delete a nonexistent key: {key}")
    if sign not in "+-":
        raise TopicAttributeError(f"wrong format key: {key}")


def _check_value(signed: str, value: str, *, new: bool) -> None:
    key = signed[1:]
    attribute = _ATTRIBUTES.get(key)
    if attribute is None:
        raise TopicAttributeError(f"unsupported key: {key}")
    if not new and not attribute.changeable:
        raise TopicAttributeError(f"attempt to update an unchangeable attribute. key: {key}")
    if signed[0] == "-":
        return
    if attribute.values:
        if value not in attribute.values:
            raise TopicAttributeError(f"value is not in set: [{', '.join(attribute.values)}]")
    elif not _LONG.fullmatch(value):
        raise TopicAttributeError(f'For input string: "{value}"')
    elif not _LEAST <= int(value) <= attribute.most:
        raise TopicAttributeError(f"value is not in range({_LEAST}, {attribute.most})")
