"""Converts a group's configuration to the engine's options.

An option of ConsumerOptions has the name of its key, perhaps with a unit at its end, and is copied by this name. This
module only defines the other options.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Final

from rmqd.client.options import TraceOptions
from rmqd.config.model.group import GroupConfig
from rmqd.config.model.root import RootConfig
from rmqd.consumer.options import CircuitOptions, ConsumerOptions, DeduplicationOptions, FailureOptions
from rmqd.plugins.offset_stores import load_offset_store
from rmqd.plugins.strategies import load_strategy
from rmqd.wire.topics import wrap_namespace

_KEYS: Final = {
    field.name: key
    for field in fields(ConsumerOptions)
    if (key := field.name.removesuffix("_seconds").removesuffix("_bytes")) in GroupConfig.model_fields
}
"""The configuration key of each option."""


def consumer_options(config: RootConfig, group: str) -> ConsumerOptions:
    """Return the options of a group. Raises ConfigError."""
    namespace = config.cluster_of(group).client.namespace
    return options_of_group(config.groups[group], group, config.state_of(group), namespace)


def options_of_group(settings: GroupConfig, name: str, state_directory: str, namespace: str = "") -> ConsumerOptions:
    """Return the options of a group; `name` is its key in the configuration. Raises ConfigError.

    The `namespace` is added to the names of the group and its topics, because the engine uses the brokers' names.
    """
    options: dict[str, Any] = {option: getattr(settings, key) for option, key in _KEYS.items()}
    options |= {
        "group": wrap_namespace(name, namespace),
        "namespace": namespace,
        "local_offsets_directory": f"{state_directory}/offsets",
        "subscriptions": {wrap_namespace(topic, namespace): one for topic, one in settings.subscriptions.items()},
        "consume_timestamp_ms": settings.consume_timestamp_ms(),
        "allocate_strategy": load_strategy(name, settings, namespace),
        "concurrency": (settings.handler.processes or settings.handler.most_calls) if settings.handler else 1,
        "auto_concurrency": settings.handler is not None and settings.handler.concurrency == "auto",
        "failures": _failures(settings),
        "circuit": _circuit(settings),
        "deduplication": _deduplication(settings, f"{state_directory}/deduplicate/{name}.sqlite3"),
        "offset_store": load_offset_store(name, settings),
        "trace": TraceOptions(settings.trace_topic, settings.trace_msg_batch_num) if settings.enable_trace else None,
    }
    return ConsumerOptions(**options)


def _failures(settings: GroupConfig) -> FailureOptions | None:
    """Return how the group handles failures of its handler; None for the default."""
    retry, dead_letter_on = settings.retry, frozenset(settings.dead_letter.on)
    if not retry.in_place and not dead_letter_on:
        return None
    return FailureOptions(retry.in_place, retry.backoff, retry.max_backoff, frozenset(retry.on), dead_letter_on)


def _circuit(settings: GroupConfig) -> CircuitOptions | None:
    """Return when the group stops calling its handler; None if never."""
    breaker = settings.circuit_breaker
    if not breaker.is_on:
        return None
    return CircuitOptions(breaker.consecutive, breaker.ratio, breaker.window, breaker.open_for)


def _deduplication(settings: GroupConfig, file: str) -> DeduplicationOptions | None:
    """Return how the group deduplicates. `file` is the default path for SQLite."""
    one = settings.deduplicate
    return None if one is None else DeduplicationOptions(one.by, one.store, one.url or file, one.keep)
