"""The settings of a client, and the client id, which identifies a member of a group at brokers."""

from __future__ import annotations

import ipaddress
import os
import re
import secrets
import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

DEFAULT_INSTANCE = "DEFAULT"
SPARK_PREFIX = "spark-"  # prefix of the instance, for drivers with engine: spark


def make_client_id(local_address: str, instance_name: str, unit_name: str = "") -> str:
    """Return `<ip>@<instance>[@<unit>]`, like Java. DEFAULT is replaced by a unique instance name.

    Java builds that name from pid and time. In containers every process may have pid 1 and the same bridge address, and
    several may start at the same time, so random digits follow.
    """
    if instance_name == DEFAULT_INSTANCE:
        instance_name = unique_instance()
    parts = [local_address, instance_name]
    if unit_name:
        parts.append(unit_name)
    return "@".join(parts)


def unique_instance() -> str:
    """Return an instance name that no other process has."""
    return f"{os.getpid()}#{time.time_ns()}{secrets.token_hex(4)}"


def is_spark(client_id: str) -> bool:
    """Return whether the client id belongs to a driver with `engine: spark`."""
    return client_id.partition("@")[2].startswith(SPARK_PREFIX)


def host_of(client_id: str) -> str:
    """Return the host part of a client id: the machine's address as its client saw it."""
    return client_id.partition("@")[0]


def local_address(peers: Iterable[str] = ()) -> str:
    """Return this machine's address for the first numeric peer ("host:port"); 127.0.0.1 if offline.

    Sends nothing, because connecting a datagram socket only asks the kernel for the route. Peers given by host name are
    skipped, because resolving them could block.
    """
    candidates = [host for peer in peers if (host := _routable_host(peer))]
    # an address that is reserved for documentation, so the kernel chooses the default route
    for host in [*candidates, "192.0.2.1"]:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((host, 9))
                return str(probe.getsockname()[0])
        except OSError:
            continue
    return "127.0.0.1"


def _routable_host(peer: str) -> str:
    host = peer.rpartition(":")[0].strip("[]")
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return ""
    return "" if address.is_loopback or address.is_unspecified else host


__all__ = ["MAX_TRACE_CALLS", "ClientOptions", "TlsOptions", "TraceOptions"]

MAX_TRACE_CALLS: Final = 20  # the limit of traceMsgBatchNum in Java's AsyncTraceDispatcher


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """The encryption of connections. Files are PEM; an empty path means no file.

    `server_name` is the name expected in servers' certificates, instead of the host of the connection.
    """

    enabled: bool = False
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    verify: bool = True
    key_password: str = field(default="", repr=False)
    server_name: str = ""


NAMESRV_ADDR: Final = "NAMESRV_ADDR"
"""The environment variable with the name servers of all clients, of any language, that are not told of others."""


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """Settings of the connections that all groups of a process share.

    `nameservers` (`host:port` each) or `nameserver_url` (an address server) name the cluster. If both are set, the list
    wins, as in the Java client.
    """

    nameservers: tuple[str, ...] = ()
    nameserver_url: str = ""
    instance_name: str = "DEFAULT"
    namespace: str = ""
    namespace_v2: str = ""
    unit_name: str = ""
    unit_mode: bool = False
    vip_channel_enabled: bool = False
    poll_name_server_interval_seconds: float = 30.0
    heartbeat_broker_interval_seconds: float = 30.0
    access_key: str = field(default="", repr=False)
    secret_key: str = field(default="", repr=False)
    security_token: str = field(default="", repr=False)
    tls: TlsOptions = field(default_factory=TlsOptions)
    max_frame_size_bytes: int = 16 * 1024 * 1024
    state_dir: str = field(default="", compare=False)
    """The folder of local state, in which ids of clusters are noted."""

    @property
    def request_fields(self) -> dict[str, str]:
        """The ext fields of all requests. Java: `NamespaceRpcHook`."""
        return {"nsd": "true", "ns": self.namespace_v2} if self.namespace_v2 else {}

    @property
    def shown_nameserver(self) -> str:
        """The name servers for output, without a password."""
        return ";".join(self.nameservers) or without_password(self.nameserver_url)


def without_password(url: str) -> str:
    """Return a URL without its password: `http://user:password@host` becomes `http://user:***@host`."""
    return re.sub(r"(?<=://)([^/@:]*):[^/]*@", r"\1:***@", url)


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """The topic of a group's message trace, and the limit of handler calls in one trace message."""

    topic: str
    calls: int
