"""Removes the namespace that brokers of a shared cluster put before names from texts and plain data."""

from __future__ import annotations

import dataclasses
import re
from typing import Any, TypeVar

T = TypeVar("T")


def without_namespace(value: T, namespace: str) -> T:
    """Return a copy of `value` whose texts name topics and groups without the namespace, also inside a broker's remark.

    Texts, mappings, sequences and frozen dataclasses are converted recursively. Other values are unchanged.
    """
    return _plain(value, namespace) if namespace else value


def _plain(value: Any, namespace: str) -> Any:
    if isinstance(value, str):
        return _plain_text(value, f"{namespace}%")
    if isinstance(value, dict):
        return {_plain(key, namespace): _plain(inner, namespace) for key, inner in value.items()}
    if isinstance(value, tuple | list | set | frozenset):
        return type(value)([_plain(inner, namespace) for inner in value])
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return dataclasses.replace(value, **{name: _plain(inner, namespace) for name, inner in fields.items()})
    return value


def _plain_text(text: str, head: str) -> str:
    return re.sub(rf"(?<![\w-]){re.escape(head)}", "", text) if head in text else text
