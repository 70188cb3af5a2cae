"""Makes the engine's options of a group from its configuration.

A key goes over by its name: an option of ConsumerOptions has the key's name, perhaps with a unit at its end. Only
options that are not the value of one key are made here.
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
"""By option, the configuration key whose value it has."""


def consumer_options(config: RootConfig, group: str) -> ConsumerOptions:
    """The options of a group of a configuration. Raises ConfigError."""
    namespace = config.cluster_of(group).client.namespace
    return options_of_group(config.groups[group], group, config.state_of(group), namespace)


def options_of_group(settings: GroupConfig, name: str, state_directory: str, namespace: str = "") -> ConsumerOptions:
    """The options of a group; `name` is its key in the configuration. Raises ConfigError.

    The names of the group and its topics get the `namespace`: the engine uses the names that brokers know.
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
    """What the group does about failures of its handler; None where it does nothing of its own."""
    retry, dead_letter_on = settings.retry, frozenset(settings.dead_letter.on)
    if not retry.in_place and not dead_letter_on:
        return None
    return FailureOptions(retry.in_place, retry.backoff, retry.max_backoff, frozenset(retry.on), dead_letter_on)


def _circuit(settings: GroupConfig) -> CircuitOptions | None:
    """When the group stops calling its handler; None where it never does."""
    breaker = settings.circuit_breaker
    if not breaker.is_on:
        return None
    return CircuitOptions(breaker.consecutive, breaker.ratio, breaker.window, breaker.open_for)


def _deduplication(settings: GroupConfig, file: str) -> DeduplicationOptions | None:
    """By what and where the group deduplicates; `file` is for SQLite where no path is given."""
    one = settings.deduplicate
    return None if one is None else DeduplicationOptions(one.by, one.store, one.url or file, one.keep)
