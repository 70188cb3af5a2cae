"""Rules about clusters: each cluster needs name servers, and each group an existing cluster."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from rmqd.client.client_id import SPARK_PREFIX
from rmqd.client.options import NAMESRV_ADDR
from rmqd.config.model.cluster import DEFAULT_CLUSTER, ClientConfig, ClusterConfig
from rmqd.config.model.root import RootConfig
from rmqd.config.problems import Finding, Path, unknown

_NAME: Final = re.compile(r"[A-Za-z0-9_-]+")  # it becomes the name of a folder, and a part of keys in `--set`


def cluster_findings(config: RootConfig) -> Iterator[Finding]:
    """Check the clusters, and the clusters that groups name."""
    if not config.clusters or config.is_named or "client" in config.model_fields_set:
        yield from _findings(config, ())
    for name, cluster in config.clusters.items():
        yield from _findings(cluster, ("clusters", name))
        if not _NAME.fullmatch(name):
            message = f"the name {name!r} is not valid; expected letters a-z and A-Z, digits, - and _"
            yield Finding(("clusters", name), message, at_key=True)
    if DEFAULT_CLUSTER in config.clusters and config.is_named:
        message = (
            f"the cluster of nameserver at the top level is called {DEFAULT_CLUSTER}; use another name here, or "
            "remove that nameserver"
        )
        yield Finding(("clusters", DEFAULT_CLUSTER), message, at_key=True)
    yield from _choices(config)


def _choices(config: RootConfig) -> Iterator[Finding]:
    """Yield groups with an unknown cluster, or without one although they must name one."""
    known = config.known_clusters
    for name, group in config.groups.items():
        path = ("groups", name, "cluster")
        if group.cluster and group.cluster not in known:
            yield Finding(path, f"{group.cluster}: {unknown('cluster', group.cluster, known)}")
        elif not group.cluster and config.default_cluster is None:
            accepted = f"{', '.join(known)}; or rename the default cluster to {DEFAULT_CLUSTER}"
            yield Finding(
                path, f"missing, because there are several clusters; expected one of {accepted}", missing=True
            )


def _findings(cluster: ClusterConfig, at: Path) -> Iterator[Finding]:
    if not cluster.is_named:
        others = "or nameserver_url instead" if at else f"nameserver_url, or ${NAMESRV_ADDR} in the environment"
        message = f'missing; expected host:port, "host:port;host:port", a list, {others}'
        yield Finding((*at, "nameserver"), message, missing=True, instead=(*at, "nameserver_url"))
    if cluster.nameserver and cluster.nameserver_url:
        yield Finding((*at, "nameserver_url"), "set together with nameserver; remove one of them", at_key=True)
    yield from _client_findings(cluster.client, (*at, "client"))


def _client_findings(client: ClientConfig, at: Path) -> Iterator[Finding]:
    tls = client.tls
    if client.instance_name.startswith(SPARK_PREFIX):
        message = (
            f"{client.instance_name}: {SPARK_PREFIX} is reserved for drivers of engine: spark; expected another name"
        )
        yield Finding((*at, "instance_name"), message)
    for one, other in (("access_key", "secret_key"), ("secret_key", "access_key")):
        if getattr(client, one) and not getattr(client, other):
            yield Finding((*at, other), f"missing with {one}; expected both or neither", missing=True)
    if client.security_token and not client.access_key and not client.secret_key:
        message = "missing with security_token; expected access_key and secret_key"
        yield Finding((*at, "access_key"), message, missing=True)
    for one, other in (("cert_file", "key_file"), ("key_file", "cert_file")):
        if getattr(tls, one) and not getattr(tls, other):
            yield Finding((*at, "tls", other), f"missing with {one}; expected both or neither", missing=True)
    if tls.enabled and bool(tls.cert_file) == bool(tls.key_file):
        from rmqd.client.remoting.tls import file_problems

        for problem in file_problems(tls.options()):
            yield Finding((*at, "tls", problem.key), f"{problem.message}; expected a valid PEM file")
