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

from rmqd.runtime.value_kinds import Duration, Size, Text, key, with_kinds

DEFAULT_INSTANCE = "DEFAULT"
SPARK_PREFIX = "spark-"  # prefix of the instance names of Spark drivers (engine: spark)


def make_client_id(local_address: str, instance_name: str, unit_name: str = "") -> str:
    """Return the client id `<ip>@<instance>[@<unit>]`, like Java. The instance DEFAULT becomes a unique name.

    Java builds the unique name from pid and time. Containers may all have pid 1 and the same bridge address, and start
    at the same time, so rmqd appends random digits.
    """
    if instance_name == DEFAULT_INSTANCE:
        instance_name = unique_instance_name()
    parts = [local_address, instance_name]
    if unit_name:
        parts.append(unit_name)
    return "@".join(parts)


def unique_instance_name() -> str:
    """Return an instance name that no other process uses: pid, time and random digits."""
    return f"{os.getpid()}#{time.time_ns()}{secrets.token_hex(4)}"


def is_spark_client_id(client_id: str) -> bool:
    """Return whether the client id belongs to a Spark driver (`engine: spark`)."""
    return client_id.partition("@")[2].startswith(SPARK_PREFIX)


def local_address(peers: Iterable[str] = ()) -> str:
    """Return the IP address from which this machine connects to `peers` ("host:port"); 127.0.0.1 if it is offline.

    The first peer with a route counts. Peers with host names are skipped, because resolving the names could block.
    Sends nothing: connecting a datagram socket only looks up the kernel's route.
    """
    candidates = [host for peer in peers if (host := _routable_host(peer))]
    # 192.0.2.1 is reserved for documentation, so the kernel chooses the default route for it
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


MAX_CALLS_PER_TRACE_MESSAGE: Final = 20  # the limit of traceMsgBatchNum in Java's AsyncTraceDispatcher


SECRET_TEXT: Final = Text(secret=True)
_NAMESPACE: Final = Text("letters a-z and A-Z, digits, | - and _", lambda text: not re.search(r"[^\w|-]|[^ -~]", text))


@with_kinds
@dataclass(frozen=True)
class TlsOptions:
    """Encryption of the connections to name servers and brokers."""

    enabled: bool = key(False, "connect with TLS")
    ca_file: str = key("", "PEM file of the authorities to trust; empty: the system's", Text())
    cert_file: str = key("", "PEM file of this client's certificate", Text())
    key_file: str = key("", "PEM file of this client's key", Text())
    key_password: str = key("", "password of key_file, if it is encrypted", SECRET_TEXT)
    verify: bool = key(True, "check the server's certificate and host name")
    server_name: str = key(
        "", "the name in the server's certificate, if it differs from the host in the address", Text()
    )


NAMESRV_ADDR: Final = "NAMESRV_ADDR"
"""The environment variable with the name servers, used if none are configured. Java's clients read it too."""


@with_kinds
@dataclass(frozen=True)
class ClientKeys:
    """The configuration keys of the connections that all groups of a cluster share."""

    instance_name: str = key(
        DEFAULT_INSTANCE, "part of the client id; DEFAULT becomes a unique name, also in containers", Text()
    )
    namespace: str = key(
        "", "prefix of every topic and group on the brokers, for clusters that several users share", _NAMESPACE
    )
    namespace_v2: str = key(
        "",
        "sent with every request (`nsd`, `ns`), for servers that distinguish users by it; it does not change names",
        _NAMESPACE,
    )
    unit_name: str = key("", "appended to the client id and to the address server's URL", Text())
    unit_mode: bool = key(
        False, "mark heartbeats, messages and retries as belonging to a unit, which brokers then separate"
    )
    vip_channel_enabled: bool = key(False, "send to the broker's port - 2")
    poll_name_server_interval_seconds: float = key(30.0, "a duration: how often routes are refreshed", Duration("10ms"))
    heartbeat_broker_interval_seconds: float = key(
        30.0,
        "a duration, up to 110s (brokers forget a client after 120s): how often heartbeats are sent to brokers",
        Duration("10ms", "110s"),
    )
    access_key: str = key("", "access key of ACL 1.0 or 2.0", SECRET_TEXT)
    secret_key: str = key("", "secret key of ACL 1.0 or 2.0", SECRET_TEXT)
    security_token: str = key("", "temporary token for the keys", SECRET_TEXT)
    max_frame_size_bytes: int = key(
        16 * 1024 * 1024, "a size, 64KiB to 1GiB: a larger frame closes its connection", Size("64KiB", "1GiB")
    )


@dataclass(frozen=True, kw_only=True)
class ClientOptions(ClientKeys):
    """Settings of the connections that all groups of a process share.

    The cluster is given by `nameservers` (`host:port` each), or by `nameserver_url`, the URL of an address server. If
    both are set, `nameservers` wins, as in the Java client.
    """

    nameservers: tuple[str, ...] = ()
    nameserver_url: str = ""
    tls: TlsOptions = field(default_factory=TlsOptions)
    state_dir: str = field(default="", compare=False)
    """The folder in which the client stores the ids of clusters. If `state_dir` is empty, the client stores nothing."""

    @property
    def request_fields(self) -> dict[str, str]:
        """The ext fields that are added to every request, for `namespace_v2`. Java: `NamespaceRpcHook`."""
        return {"nsd": "true", "ns": self.namespace_v2} if self.namespace_v2 else {}

    @property
    def joined_namespaces(self) -> str:
        """`namespace` and `namespace_v2`, joined by a plus sign if both are set."""
        return "+".join(filter(None, (self.namespace, self.namespace_v2)))

    @property
    def nameserver_for_output(self) -> str:
        """The configured name servers or URL as text for output, without a password."""
        return ";".join(self.nameservers) or without_password(self.nameserver_url)


def without_password(url: str) -> str:
    """Return a URL with *** for its password and its query, for output.

    `http://user:password@host/?key` becomes `http://user:***@host/?***`.
    """
    return re.sub(r"(?<=\?).+", "***", re.sub(r"(?<=://)([^/@:]*):[^/]*@", r"\1:***@", url))


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """The topic for a group's message trace, and how many handler calls one trace message may record (`calls`)."""

    topic: str
    calls: int
