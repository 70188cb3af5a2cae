"""The clients of one process, one for each cluster of its groups. A reload may replace them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from rmqd.client.options import ClientOptions
from rmqd.client.remoting.snapshot import ClientSnapshot
from rmqd.config.model.root import RootConfig
from rmqd.daemon.groups.engine import Client
from rmqd.daemon.groups.reload import ConfigState
from rmqd.daemon.metrics.totals import add_client_counters, merge_clients


@dataclass(frozen=True, slots=True)
class NextClients:
    """The clients of a new configuration, before it is applied."""

    clients: Mapping[str, Client]
    """By cluster. Clients that serve both configurations already use the new keys."""
    fresh: Mapping[str, Client]
    secured: Mapping[str, ClientOptions]
    """The previous keys and certificates of clients that use new ones."""

    async def give_up(self) -> None:
        """Restore the old configuration's keys, and close the clients that were built for the new configuration."""
        for cluster, options in self.secured.items():
            self.clients[cluster].secure(options)
        await asyncio.gather(*(client.close() for client in self.fresh.values()))


class ClusterClients:
    """The clients, by cluster. The constructor builds them but does not start them."""

    def __init__(self, state: ConfigState, build: Callable[[ClientOptions], Client]) -> None:
        self._build = build
        self._clients: dict[str, Client] = {name: build(_options(state, name)) for name in used_clusters(state.config)}
        self._past: ClientSnapshot | None = None  # the counters of clients that were replaced
        self._tasks: asyncio.TaskGroup | None = None
        self._running: dict[str, asyncio.Task[None]] = {}

    @property
    def current(self) -> Mapping[str, Client]:
        """The clients of the present configuration."""
        return self._clients

    def run_in(self, tasks: asyncio.TaskGroup) -> None:
        """Start all clients in a task group. A client's failure ends the task group, because groups need their
        client.
        """
        self._tasks = tasks
        for cluster, client in self._clients.items():
            self._start(cluster, client)

    def prepare(self, before: ConfigState, after: ConfigState) -> NextClients:
        """Return the clients for `after`: existing clients, with their new keys, and new clients."""
        kept = {name: self._clients[name] for name in used_clusters(after.config) if name in self._clients}
        kept = {name: client for name, client in kept.items() if before.same_client(after, name)}
        fresh = {name: self._build(_options(after, name)) for name in used_clusters(after.config) if name not in kept}
        secured = {}
        for name, client in kept.items():
            if not before.same_security(after, name):
                client.secure(_options(after, name))
                secured[name] = _options(before, name)
        return NextClients({name: (kept | fresh)[name] for name in used_clusters(after.config)}, fresh, secured)

    async def take_over(self, following: NextClients) -> None:
        """Stop the clients that the new configuration does not use, and start the new ones."""
        gone = [name for name, client in self._clients.items() if following.clients.get(name) is not client]
        await self._end(gone)
        for name in gone:
            past = add_client_counters(self._clients[name].snapshot(), self._past)
            self._past = replace(past, brokers_up={})
        self._clients = dict(following.clients)
        for name, client in following.fresh.items():
            self._start(name, client)

    async def end(self) -> None:
        """Stop all clients."""
        await self._end(list(self._clients))

    def snapshot(self) -> ClientSnapshot:
        """Return the sum of the clients' snapshots as one snapshot, with the id of the first client."""
        return add_client_counters(merge_clients([client.snapshot() for client in self._clients.values()]), self._past)

    def _start(self, cluster: str, client: Client) -> None:
        assert self._tasks is not None
        self._running[cluster] = self._tasks.create_task(client.run(), name=f"client of {cluster}")

    async def _end(self, clusters: list[str]) -> None:
        for cluster in clusters:
            self._clients[cluster].stop()
        if running := [self._running.pop(cluster) for cluster in clusters if cluster in self._running]:
            await asyncio.wait(running)


def used_clusters(config: RootConfig) -> list[str]:
    """Return the clusters of all groups. At least one: a process without groups has a client too."""
    used = {config.cluster_name(group) for group in config.groups}
    return [name for name in config.known_clusters if name in used] or list(config.known_clusters)[:1]


def _options(state: ConfigState, cluster: str) -> ClientOptions:
    return state.config.known_clusters[cluster].client_options(state.config.state_dir)
