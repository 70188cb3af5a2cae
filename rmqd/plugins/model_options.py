"""Loads a configuration with its plugins, and converts a group's configuration to the engine's options.

The keys in `GroupKeys` are the same in the configuration and the options, and are copied. Other keys are converted.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from rmqd.client.client_options import TraceOptions
from rmqd.config.load import ConfigProblems, read_config_files
from rmqd.config.model.group_model import GroupConfig
from rmqd.config.model.root_model import RootConfig
from rmqd.config.problems import ConfigProblem
from rmqd.config.reading.config_source import ConfigFiles
from rmqd.config.rules.group_rules import run_findings
from rmqd.consumer.consumer_options import (
    CanaryOptions,
    CircuitOptions,
    ConsumerOptions,
    DeduplicationOptions,
    FailureOptions,
    GroupKeys,
)
from rmqd.errors import ConfigError
from rmqd.plugins.entry_points import forget_entry_points
from rmqd.plugins.handler_catalogue import check_handler, pipeline_loaders
from rmqd.plugins.strategies import check_hooks, load_offset_store, load_strategy
from rmqd.wire.topics import wrap_namespace


def load_runnable(
    path: Path | None = None,
    overrides: Sequence[str] = (),
    *,
    groups: Collection[str] = (),
    environ: Mapping[str, str] = os.environ,
) -> RootConfig:
    """Load a configuration as `load_config` does, import the groups' plugins, and validate their options.

    `groups` limits the check of plugins to these groups; if it is empty, the plugins of all groups are checked. Raises
    ConfigError with all problems.
    """
    return load_runnable_source(read_config_files(path, overrides, environ=environ), groups=groups, environ=environ)


def load_runnable_source(
    source: ConfigFiles, *, groups: Collection[str] = (), environ: Mapping[str, str] = os.environ
) -> RootConfig:
    """Do the same as `load_runnable` with configuration files that were already read."""
    loading = ConfigProblems(source, environ)
    forget_entry_points()
    loading.add(run_findings(loading.config, groups))
    for name, group in loading.config.groups.items():
        if not groups or name in groups:
            for load in (check_handler, check_hooks, *pipeline_loaders(group), load_strategy, load_offset_store):
                try:
                    load(name, group)  # imports the plugin, but does not call it
                except ConfigError as error:
                    for problem in error.problems:
                        if isinstance(problem, ConfigProblem):
                            loading.report(problem)
    return loading.checked_config()


def consumer_options(config: RootConfig, group: str) -> ConsumerOptions:
    """Return the engine's options for a group of a configuration. Raises ConfigError."""
    namespace = config.cluster_of(group).client.namespace
    return options_of_group(config.groups[group], group, config.state_dir_of_group(group), namespace)


def options_of_group(settings: GroupConfig, name: str, state_directory: str, namespace: str = "") -> ConsumerOptions:
    """Return the engine's options for a group; `name` is the group's key in the configuration. Raises ConfigError.

    The `namespace` is added to the names of the group and its topics, because brokers know them by the full names.
    """
    options: dict[str, Any] = {one.name: getattr(settings, one.name) for one in fields(GroupKeys)}
    circuit, records = settings.circuit_breaker, settings.deduplicate
    canary = None if settings.handler is None else settings.handler.canary
    file = f"{state_directory}/deduplicate/{name}.sqlite3"
    options |= {
        "group": wrap_namespace(name, namespace),
        "namespace": namespace,
        "local_offsets_directory": f"{state_directory}/offsets",
        "subscriptions": {wrap_namespace(topic, namespace): one for topic, one in settings.subscriptions.items()},
        "consume_timestamp_ms": settings.consume_timestamp_ms(),
        "allocate_strategy": load_strategy(name, settings, namespace),
        "concurrency": (settings.handler.processes or settings.handler.max_concurrent_calls) if settings.handler else 1,
        "auto_concurrency": settings.handler is not None and settings.handler.concurrency == "auto",
        "failures": _failures(settings),
        "circuit": CircuitOptions(**dict(circuit)) if circuit.can_open else None,
        "deduplication": DeduplicationOptions(**dict(records) | {"url": records.url or file}) if records else None,
        "canary": CanaryOptions(canary.share, canary.by, canary.mode) if canary else None,
        "offset_store": load_offset_store(name, settings),
        "trace": TraceOptions(settings.trace_topic, settings.trace_msg_batch_num) if settings.enable_trace else None,
    }
    return ConsumerOptions(**options)


def _failures(settings: GroupConfig) -> FailureOptions | None:
    """Return how the group retries and dead-letters failed messages; None for the default, retries by send-back."""
    retry, dead_letter_on = settings.retry, frozenset(settings.dead_letter.on)
    if not retry.in_place and not dead_letter_on:
        return None
    return FailureOptions(retry.in_place, retry.backoff, retry.max_backoff, frozenset(retry.on), dead_letter_on)
