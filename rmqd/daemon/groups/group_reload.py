"""Compares two configurations for a reload: which groups change, which of them need no restart, and refused changes.

`ClusterClients` holds the clients of the current configuration, and replaces them at a reload.

A reload applies the whole new configuration, or nothing.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pydantic import ValidationError

from rmqd.client.client_options import ClientOptions, TlsOptions
from rmqd.client.remoting.pending import ClientSnapshot
from rmqd.config.model.group_model import CanaryConfig, GroupConfig, HandlerConfig
from rmqd.config.model.root_model import RootConfig
from rmqd.daemon.groups.group_engine import ReloadedGroups, settings_of
from rmqd.runtime.figures import add_counters, merge_two
from rmqd.runtime.value_kinds import Key

if TYPE_CHECKING:
    from rmqd.client.instance import ClientInstance

Checked = TypeVar("Checked", HandlerConfig, CanaryConfig)


@dataclass(frozen=True, slots=True)
class ReloadReport:
    """The result of a reload. If it has problems, nothing was changed."""

    changes: ReloadedGroups = field(default_factory=ReloadedGroups)
    problems: tuple[str, ...] = ()
    refusal: str = "the new configuration was not applied; the old one stays in force"
    """The consequence of the problems, for the operator."""

    @property
    def successful(self) -> bool:
        """Whether the new configuration was applied."""
        return not self.problems

    def as_document(self) -> dict[str, Any]:
        """Return the report as JSON, for the API and the command."""
        if self.problems:
            return {"result": "refused", "error": self.refusal, "problems": list(self.problems)}
        return {"result": "applied"} | {name: list(groups) for name, groups in asdict(self.changes).items()}


@dataclass(frozen=True, slots=True)
class ConfigState:
    """A configuration, and the contents of its certificate and key files, by cluster (`files`)."""

    config: RootConfig
    files: Mapping[str, tuple[bytes, ...]]

    @classmethod
    def of(cls, config: RootConfig) -> ConfigState:
        """Read the files that clients use. An unreadable file counts as empty, because the client reports it."""
        tls = {name: cluster.client.tls for name, cluster in config.known_clusters.items()}
        paths = {name: (one.ca_file, one.cert_file, one.key_file) for name, one in tls.items()}
        return cls(config, {name: tuple(_contents(path) for path in found if path) for name, found in paths.items()})

    def can_share_client(self, other: ConfigState, cluster: str) -> bool:
        """Return whether one client of a cluster can serve both configurations. Keys and TLS settings may differ."""
        known = cluster in self.config.known_clusters and cluster in other.config.known_clusters
        return known and _without_security(self.options(cluster)) == _without_security(other.options(cluster))

    def same_security(self, other: ConfigState, cluster: str) -> bool:
        """Return whether both configurations have the same keys and certificates for a cluster."""
        is_same = self.options(cluster) == other.options(cluster)
        return is_same and self.files.get(cluster) == other.files.get(cluster)

    def options(self, cluster: str) -> ClientOptions:
        return self.config.known_clusters[cluster].client_options(self.config.state_dir)


def _without_security(options: ClientOptions) -> ClientOptions:
    return replace(options, access_key="", secret_key="", security_token="", tls=TlsOptions())


def _contents(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""


@dataclass(frozen=True, slots=True)
class NewClients:
    """The clients of a new configuration, before it is applied."""

    clients: Mapping[str, ClientInstance]
    """All clients, by cluster. Clients that serve both the old and the new configuration already use the new keys."""
    fresh: Mapping[str, ClientInstance]
    secured: Mapping[str, ClientOptions]
    """The previous options of clients that already use new keys or certificates, by cluster."""

    async def roll_back(self) -> None:
        """Restore the old configuration's keys, and close the clients that were built for the new configuration."""
        for cluster, options in self.secured.items():
            self.clients[cluster].update_security(options)
        await asyncio.gather(*(client.close() for client in self.fresh.values()))


class ClusterClients:
    """The clients of all clusters. The constructor builds the clients but does not start them."""

    def __init__(self, state: ConfigState, build: Callable[[ClientOptions], ClientInstance]) -> None:
        self._build = build
        self.current: dict[str, ClientInstance] = {
            name: build(state.options(name)) for name in used_clusters(state.config)
        }
        self._past: ClientSnapshot | None = None  # the counters of clients that were replaced
        self._tasks: asyncio.TaskGroup | None = None
        self._running: dict[str, asyncio.Task[None]] = {}

    def run_in(self, tasks: asyncio.TaskGroup) -> None:
        """Start all clients in a task group. A client's failure ends the task group, because groups need their
        client.
        """
        self._tasks = tasks
        for cluster, client in self.current.items():
            self._start(cluster, client)

    def prepare(self, before: ConfigState, after: ConfigState) -> NewClients:
        """Return the clients for `after`: new clients, and existing clients, which get the new ACL and TLS keys now."""
        kept = {name: self.current[name] for name in used_clusters(after.config) if name in self.current}
        kept = {name: client for name, client in kept.items() if before.can_share_client(after, name)}
        fresh = {name: self._build(after.options(name)) for name in used_clusters(after.config) if name not in kept}
        secured = {}
        for name, client in kept.items():
            if not before.same_security(after, name):
                client.update_security(after.options(name))
                secured[name] = before.options(name)
        return NewClients({name: (kept | fresh)[name] for name in used_clusters(after.config)}, fresh, secured)

    async def switch_to(self, following: NewClients) -> None:
        """Stop the clients that the new configuration does not use, and start the new clients."""
        gone = [name for name, client in self.current.items() if following.clients.get(name) is not client]
        await self._end(gone)
        for name in gone:
            self._past = add_counters(self.current[name].snapshot(), self._past)
        self.current = dict(following.clients)
        for name, client in following.fresh.items():
            self._start(name, client)

    async def end(self) -> None:
        await self._end(list(self.current))

    def snapshot(self) -> ClientSnapshot:
        """Return the sum of the clients' snapshots as one snapshot, with the id of the first client."""
        return add_counters(reduce(merge_two, [client.snapshot() for client in self.current.values()]), self._past)

    def _start(self, cluster: str, client: ClientInstance) -> None:
        assert self._tasks is not None
        self._running[cluster] = self._tasks.create_task(client.run(), name=f"client of {cluster}")

    async def _end(self, clusters: list[str]) -> None:
        for cluster in clusters:
            self.current[cluster].stop()
        if running := [self._running.pop(cluster) for cluster in clusters if cluster in self._running]:
            await asyncio.wait(running)


def used_clusters(config: RootConfig) -> list[str]:
    """Return the clusters of all groups. Without groups, return one cluster, because every process needs a client."""
    used = {config.cluster_name(group) for group in config.groups}
    return [name for name in config.known_clusters if name in used] or list(config.known_clusters)[:1]


LIVE_FIELDS: Final = frozenset(
    name
    for name, field in GroupConfig.model_fields.items()
    if any(isinstance(one, Key) and one.live for one in field.metadata)
)
"""The fields whose changes a running group applies, in addition to its handler's concurrency. In `subscriptions` only
the filters can change: other topics have other queues, so the group restarts. An existing circuit breaker can change;
adding a circuit breaker restarts the group, because the breaker wraps every call.
"""


def changes_while_running(before: GroupConfig, after: GroupConfig) -> bool:
    """Return whether a running group can apply `after` without a restart. A group on Spark always restarts."""
    if after.engine == "spark":
        return False
    if after.circuit_breaker.can_open and not before.circuit_breaker.can_open:
        return False
    differing = {name for name in GroupConfig.model_fields if getattr(before, name) != getattr(after, name)}
    if _same_calls(before.handler, after.handler):
        differing.discard("handler")
    return differing <= LIVE_FIELDS and before.subscriptions.keys() == after.subscriptions.keys()


def _same_calls(before: HandlerConfig | None, after: HandlerConfig | None) -> bool:
    """Return whether two handlers are equal, except for the number of concurrent calls and the canary's share."""
    live: dict[str, Any] = {"concurrency": True, "max_concurrency": True, "canary": {"share"}}
    if before is None or after is None or (before.canary is None) != (after.canary is None):
        return before is after
    return before.model_dump(exclude=live) == after.model_dump(exclude=live)


def plan_changes(old: ConfigState, new: ConfigState) -> ReloadedGroups:
    """Return the groups that a reload changes.

    If a cluster's client is replaced, all groups on the cluster restart. If only its ACL keys change, the client keeps
    running, and only groups on Spark restart.
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
    return ReloadedGroups(
        unchanged=tuple(unchanged),
        updated=tuple(updated),
        restarted=tuple(name for name in changed if name not in updated),
        started=tuple(name for name in after if name not in before),
        stopped=tuple(name for name in before if name not in after),
    )


def _keeps_client(group: str, old: ConfigState, new: ConfigState) -> bool:
    cluster = new.config.cluster_name(group)
    return cluster == old.config.cluster_name(group) and old.can_share_client(new, cluster)


def groups_with_changed_filters(old: RootConfig, new: RootConfig, changes: ReloadedGroups) -> list[str]:
    """Return the groups whose filters must be checked with the brokers: new groups, restarted groups, and groups whose
    filters changed.
    """
    updated = [name for name in changes.updated if old.groups[name].subscriptions != new.groups[name].subscriptions]
    return [*updated, *changes.restarted, *changes.started]


def with_concurrency(config: RootConfig, group: str, concurrency: str) -> RootConfig:
    """Return the configuration with another concurrency for one group. Raises UnknownGroupError, ValueError."""
    settings = settings_of(config, group)
    handler = settings.handler
    if handler is None or settings.engine == "spark" or handler.processes:
        raise ValueError(
            f"the concurrency of group {group} is fixed, because it is on Spark, has handler.processes, or has no "
            "handler; change its configuration instead"
        )
    value = int(concurrency) if concurrency.isdecimal() else concurrency
    checked = _checked(HandlerConfig, {"plugin": handler.plugin, "concurrency": value})
    return _with_handler(config, group, handler.model_copy(update={"concurrency": checked.concurrency}))


def with_canary_share(config: RootConfig, group: str, share: str) -> RootConfig:
    """Return the configuration with another share of a group's canary. Raises UnknownGroupError, ValueError."""
    handler = _handler_with_canary(config, group)
    assert handler.canary is not None
    checked = _checked(CanaryConfig, {"plugin": handler.canary.plugin, "share": share})
    canary = handler.canary.model_copy(update={"share": checked.share})
    return _with_handler(config, group, handler.model_copy(update={"canary": canary}))


def with_promoted_canary(config: RootConfig, group: str) -> RootConfig:
    """Return the configuration with a group's canary as its only handler. Raises UnknownGroupError, ValueError."""
    return _with_handler(config, group, _handler_with_canary(config, group).with_promoted_canary)


def _handler_with_canary(config: RootConfig, group: str) -> HandlerConfig:
    handler = settings_of(config, group).handler
    if handler is None or handler.canary is None:
        raise ValueError(f"group {group} has no canary; set handler.canary in its configuration, and run rmqd reload")
    return handler


def _checked(model: type[Checked], values: dict[str, Any]) -> Checked:
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise ValueError(error.errors()[0]["msg"]) from None


def _with_handler(config: RootConfig, group: str, handler: HandlerConfig) -> RootConfig:
    changed = config.groups[group].model_copy(update={"handler": handler})
    return config.model_copy(update={"groups": {**config.groups, group: changed}})


def refused_changes(old: RootConfig, new: RootConfig) -> tuple[str, ...]:
    """Return the changes that a reload cannot make, each with the next step."""
    fixed: tuple[tuple[str, object, object], ...] = (
        ("http.listen", old.http.listen, new.http.listen),
        ("state_dir", old.state_dir, new.state_dir),
        ("tracing.opentelemetry", old.tracing.opentelemetry, new.tracing.opentelemetry),
    )
    return tuple(
        f"{key}: cannot change from {before} to {after} while the daemon runs; restart the daemon"
        for key, before, after in fixed
        if before != after
    )


def config_hash(config: RootConfig) -> str:
    """Return a short hash of a configuration, for comparisons. It uses the `repr`, which excludes secrets."""
    return hashlib.sha256(repr(config).encode()).hexdigest()[:16]
