"""The whole configuration: the keys of `rmqd.yaml`, their defaults and ranges.

`rmqd.config.reading` reads the files, `${...}` and `--set`, and adds line numbers to errors.
"""

# No `from __future__ import annotations`: pydantic would have to parse every annotation from text at every start.

from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field

from rmqd.client.client_options import SECRET_TEXT, ClientKeys, ClientOptions, TlsOptions
from rmqd.config.model.forms import ConfigSection, NameServerList, is_host_port, setting
from rmqd.config.model.group_model import GroupConfig
from rmqd.runtime.files import read_small_file
from rmqd.runtime.value_kinds import Choice, Flag, Integer, Text

DEFAULT_CLUSTER: Final = "default"
"""The name of the cluster at the top level of the configuration, and of the default cluster for groups."""

_HTTP_URL = Text("an http:// or https:// URL", lambda text: not text or text.startswith(("http://", "https://")))


class TlsConfig(ConfigSection, TlsOptions):  # type: ignore[misc]  # mypy: see GroupConfig
    """Encryption of the connections to name servers and brokers."""

    def options(self) -> TlsOptions:
        return TlsOptions(**dict(self))


class ClientConfig(ConfigSection, ClientKeys):  # type: ignore[misc]  # mypy: see GroupConfig
    """The connections that all groups of a cluster share."""

    tls: TlsConfig = Field(default_factory=TlsConfig, description="encryption of the connections")


class ClusterConfig(ConfigSection):
    """A cluster of brokers with its name servers."""

    nameserver: Annotated[tuple[str, ...], NameServerList()] = Field(
        default=(), description='name servers: host:port, "host:port;host:port", or a list'
    )
    nameserver_url: Annotated[str, _HTTP_URL] = setting(
        "", "instead of nameserver: an address server, polled every 2 minutes"
    )
    client: ClientConfig = Field(
        default_factory=ClientConfig, description="the connections, shared by all groups of the cluster"
    )

    @property
    def has_name_servers(self) -> bool:
        return bool(self.nameserver or self.nameserver_url)

    def client_options(self, state_dir: str = "") -> ClientOptions:
        """Return the client's options for the cluster. `state_dir` is the folder for cluster ids."""
        settings = dict(self.client) | {"tls": self.client.tls.options()}
        return ClientOptions(
            nameservers=self.nameserver, nameserver_url=self.nameserver_url, state_dir=state_dir, **settings
        )


_LISTEN = Text("host:port such as 127.0.0.1:9464, or port 0 for a free one", lambda text: is_host_port(text, 0))


class HttpConfig(ConfigSection):
    """Metrics, health, and the API of the running daemon."""

    listen: Annotated[str, _LISTEN] = setting(
        "127.0.0.1:9464", "host:port; port 0 selects a free port. The default is $RMQD_HTTP_LISTEN if that is set"
    )
    token: Annotated[str, SECRET_TEXT] = setting(
        "", "required for requests that change something; without a token only this machine may make changes"
    )
    token_file: Annotated[str, Text()] = setting("", "file with the token, instead of token")
    allowed_hosts: list[Annotated[str, Text()]] = Field(
        default_factory=list, description="additional host names for the page and the API"
    )

    def read_token(self) -> str:
        """Return the token, or the content of `token_file`; "" without both. Raises OSError. Raises ValueError if the
        file is empty, because an empty token would permit changes to every local user.
        """
        if not self.token_file:
            return self.token
        if not (token := read_small_file(Path(self.token_file)).decode("utf-8").strip()):
            raise ValueError("is empty")
        return token


class TracingConfig(ConfigSection):
    """Tracing, in addition to RocketMQ's message trace, which groups enable."""

    opentelemetry: Annotated[bool, Flag()] = setting(
        False,
        "a span for every handler call, exported as the OTEL_* environment variables specify; needs OpenTelemetry",
    )


class LogConfig(ConfigSection):
    """The level and format of the log."""

    level: Annotated[Literal["debug", "info", "warning", "error"], Choice(("debug", "info", "warning", "error"))] = (
        setting("info", "the lowest level that is logged")
    )
    format: Annotated[Literal["auto", "console", "json"], Choice(("auto", "console", "json"))] = setting(
        "auto", "auto: console on a terminal, JSON otherwise"
    )


class MetricsConfig(ConfigSection):
    """The size of `/metrics`."""

    per_queue: Annotated[Literal["auto", "always", "never"], Choice(("auto", "always", "never"))] = setting(
        "auto",
        "whether each queue has series: always; never, only sums by topic; auto: up to per_queue_limit queues, else "
        "sums by topic, and the lag of the ten worst queues of each group",
    )
    per_queue_limit: Annotated[int, Integer(0)] = setting(
        1000, "0 or more: how many queues of this daemon have series with per_queue: auto"
    )


class RootConfig(ClusterConfig):
    """The configuration of rmqd. Cluster settings at the top level belong to the cluster `default`."""

    clusters: dict[str, ClusterConfig] = Field(
        default_factory=dict,
        description="more clusters by name; a group without one uses `default`: the cluster at the top level, the one "
        "with this name here, or the only one",
    )
    http: HttpConfig = Field(default_factory=HttpConfig, description="metrics, health and API")
    metrics: MetricsConfig = Field(default_factory=MetricsConfig, description="size of /metrics")
    tracing: TracingConfig = Field(default_factory=TracingConfig, description="spans of handler calls")
    log: LogConfig = Field(default_factory=LogConfig, description="logging")
    state_dir: Annotated[str, Text("a folder, with ${HOME} instead of ~", lambda text: text[:1] not in ("", "~"))] = (
        setting("/var/lib/rmqd", "folder of broadcasting offsets, backups and local state")
    )
    groups: dict[str, GroupConfig] = Field(default_factory=dict, description="consumer groups by name")
    defaults: GroupConfig = Field(
        default_factory=GroupConfig, exclude=True, repr=False, description="settings that every group inherits"
    )

    @property
    def known_clusters(self) -> dict[str, ClusterConfig]:
        """All clusters by name, the cluster at the top level first."""
        if self.clusters and not self.has_name_servers:
            return self.clusters
        return {DEFAULT_CLUSTER: self, **self.clusters}

    @property
    def default_cluster(self) -> str | None:
        """The cluster of groups and commands that name no cluster; None if they must name one of several clusters."""
        known = self.known_clusters
        if DEFAULT_CLUSTER in known:
            return DEFAULT_CLUSTER
        return next(iter(known)) if len(known) == 1 else None

    def cluster_name(self, group: str) -> str:
        return self.groups[group].cluster or self.default_cluster or DEFAULT_CLUSTER

    def cluster_of(self, group: str) -> ClusterConfig:
        """Return the cluster of a group. It exists, because the rules refuse an unknown name."""
        return self.known_clusters.get(self.cluster_name(group), self)

    @property
    def namespaces(self) -> tuple[str, ...]:
        named = (cluster.client.namespace for cluster in self.known_clusters.values())
        return tuple(dict.fromkeys(namespace for namespace in named if namespace))

    def state_dir_of_group(self, group: str) -> str:
        """Return the folder of a group's local state. Each cluster has a separate folder, because the offsets of one
        cluster are wrong in another cluster.
        """
        return self.state_dir_of_cluster(self.cluster_name(group))

    def state_dir_of_cluster(self, cluster: str) -> str:
        return self.state_dir if cluster == DEFAULT_CLUSTER else f"{self.state_dir}/clusters/{cluster}"

    def of_group(self, name: str, settings: GroupConfig | None = None) -> Self:
        """Return the part of the configuration that one group needs, for a separate process.

        It contains no other group or cluster, so that their keys are not sent to that process.
        """
        cluster = self.cluster_name(name)
        update: dict[str, Any] = {"groups": {name: settings or self.groups[name]}, "clusters": {}}
        if cluster in self.clusters:
            update |= dict(ClusterConfig())
            update["clusters"] = {cluster: self.clusters[cluster]}
        return self.model_copy(update=update)
