"""Compares two configurations for a reload: what changes, what a running group takes over, what is refused.

A reload applies all of the new configuration, or nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from rmqd.client.options import ClientOptions, TlsOptions
from rmqd.config.model.group import HandlerConfig
from rmqd.config.model.root import GroupConfig, RootConfig
from rmqd.daemon.groups.host import GroupChanges, UnknownGroupError


@dataclass(frozen=True, slots=True)
class ReloadReport:
    """The outcome of a reload. If it has problems, nothing was changed."""

    changes: GroupChanges = field(default_factory=GroupChanges)
    problems: tuple[str, ...] = ()

    @property
    def successful(self) -> bool:
        """Whether the new configuration was applied."""
        return not self.problems

    def as_document(self) -> dict[str, Any]:
        """The report as JSON, for the API and the command."""
        if self.problems:
            error = "the configuration was not taken over; the old one stays in force"
            return {"result": "refused", "error": error, "problems": list(self.problems)}
        return {"result": "applied"} | {name: list(groups) for name, groups in asdict(self.changes).items()}


@dataclass(frozen=True, slots=True)
class ConfigState:
    """A configuration and the contents of the files that it names: `files` has certificates by cluster."""

    config: RootConfig
    files: Mapping[str, tuple[bytes, ...]]

    @classmethod
    def of(cls, config: RootConfig) -> ConfigState:
        """Read the files that clients use. One that cannot be read counts as empty; the client reports it."""
        tls = {name: cluster.client.tls for name, cluster in config.known_clusters.items()}
        paths = {name: (one.ca_file, one.cert_file, one.key_file) for name, one in tls.items()}
        return cls(config, {name: tuple(_contents(path) for path in found if path) for name, found in paths.items()})

    def same_client(self, other: ConfigState, cluster: str) -> bool:
        """Whether one client of a cluster can serve both configurations. Its keys and TLS settings may differ."""
        ours, theirs = self._options(cluster), other._options(cluster)
        return ours is not None and theirs is not None and _without_security(ours) == _without_security(theirs)

    def same_security(self, other: ConfigState, cluster: str) -> bool:
        """Whether keys and certificates for a cluster are the same in both configurations."""
        is_same = self._options(cluster) == other._options(cluster)
        return is_same and self.files.get(cluster) == other.files.get(cluster)

    def _options(self, cluster: str) -> ClientOptions | None:
        found = self.config.known_clusters.get(cluster)
        return None if found is None else found.client_options(self.config.state_dir)


def _without_security(options: ClientOptions) -> ClientOptions:
    return replace(options, access_key="", secret_key="", security_token="", tls=TlsOptions())


def _contents(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""


LIVE_KEYS: Final = frozenset(
    {
        "subscriptions",
        "consume_from_where",
        "consume_timestamp",
        "pull_batch_size",
        "pull_interval",
        "pull_threshold_for_queue",
        "pull_threshold_size_for_queue",
        "pull_threshold_for_topic",
        "pull_threshold_size_for_topic",
        "consume_concurrently_max_span",
        "persist_consumer_offset_interval",
        "circuit_breaker",
        "shutdown_timeout",
        "pull_rate_limit",
        "pop_invisible_time",
        "pop_batch_nums",
        "pop_threshold_for_queue",
        "max_body_size",
        "on_corrupt_message",
        "on_offset_illegal",
    }
)
"""The keys that a running group takes over (`Consumer.change`), with the concurrency of its handler. Of the
subscriptions only the filters are taken over: other topics mean other queues, and a group starts anew to have these
divided. A circuit breaker is taken over where there is one: it stands around every call, and a group without starts
anew to get one."""


def changes_while_running(before: GroupConfig, after: GroupConfig) -> bool:
    """Whether a running group can change from `before` to `after` without leaving. A group on Spark cannot."""
    if after.engine == "spark":
        return False
    if after.circuit_breaker.is_on and not before.circuit_breaker.is_on:
        return False
    differing = {key for key in GroupConfig.model_fields if getattr(before, key) != getattr(after, key)}
    if _same_calls(before.handler, after.handler):
        differing.discard("handler")
    return differing <= LIVE_KEYS and before.subscriptions.keys() == after.subscriptions.keys()


def _same_calls(before: HandlerConfig | None, after: HandlerConfig | None) -> bool:
    """Whether two handlers differ at most by how many calls are made at once."""
    live = {"concurrency", "max_concurrency"}
    if before is None or after is None:
        return before is after
    return before.model_dump(exclude=live) == after.model_dump(exclude=live)


def plan_changes(old: ConfigState, new: ConfigState) -> GroupChanges:
    """The groups that a reload changes.

    If the client of a cluster is replaced, all groups on it restart. If only its keys change, groups on Spark restart.
    """
    before, after = old.config.groups, new.config.groups
    kept = [name for name in after if name in before]
    stay = {name for name in kept if _keeps_client(name, old, new)}
    unchanged = [
        name
        for name in kept
        if name in stay
        and before[name] == after[name]
        and (after[name].engine != "spark" or old.same_security(new, new.config.cluster_name(name)))
    ]
    changed = [name for name in kept if name not in unchanged]
    updated = [name for name in changed if name in stay and changes_while_running(before[name], after[name])]
    return GroupChanges(
        unchanged=tuple(unchanged),
        updated=tuple(updated),
        restarted=tuple(name for name in changed if name not in updated),
        started=tuple(name for name in after if name not in before),
        stopped=tuple(name for name in before if name not in after),
    )


def _keeps_client(group: str, old: ConfigState, new: ConfigState) -> bool:
    cluster = new.config.cluster_name(group)
    return cluster == old.config.cluster_name(group) and old.same_client(new, cluster)


def filtered_anew(old: RootConfig, new: RootConfig, changes: GroupChanges) -> list[str]:
    """The groups whose filters brokers have to accept: new ones, restarted ones, and those with another filter."""
    updated = [name for name in changes.updated if old.groups[name].subscriptions != new.groups[name].subscriptions]
    return [*updated, *changes.restarted, *changes.started]


def with_concurrency(config: RootConfig, group: str, concurrency: str) -> RootConfig:
    """The configuration with another concurrency for one group. Raises UnknownGroupError, and ValueError."""
    if group not in config.groups:
        raise UnknownGroupError(group, list(config.groups))
    settings = config.groups[group]
    handler = settings.handler
    if handler is None or settings.engine == "spark" or handler.processes:
        raise ValueError(f"the calls of group {group} are not limited by handler.concurrency; change its configuration")
    value = int(concurrency) if concurrency.isdecimal() else concurrency
    try:
        checked = HandlerConfig.model_validate({"plugin": handler.plugin, "concurrency": value})
    except ValidationError as error:
        raise ValueError(error.errors()[0]["msg"]) from None
    changed = settings.model_copy(update={"handler": handler.model_copy(update={"concurrency": checked.concurrency})})
    return config.model_copy(update={"groups": {**config.groups, group: changed}})


def refused_changes(old: RootConfig, new: RootConfig) -> tuple[str, ...]:
    """Changes that a reload cannot make, each with what to do instead."""
    fixed: tuple[tuple[str, object, object], ...] = (
        ("http.listen", old.http.listen, new.http.listen),
        ("state_dir", old.state_dir, new.state_dir),
        ("tracing.opentelemetry", old.tracing.opentelemetry, new.tracing.opentelemetry),
    )
    return tuple(
        f"{key}: cannot change from {before} to {after} while the daemon runs; restart it for that"
        for key, before, after in fixed
        if before != after
    )


def config_hash(config: RootConfig) -> str:
    """A short hash of a configuration, for comparisons. It is made of the `repr`, which has no secrets."""
    return hashlib.sha256(repr(config).encode()).hexdigest()[:16]
