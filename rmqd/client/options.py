"""The settings of a client, in one frozen value."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

__all__ = ["MOST_TRACE_CALLS", "ClientOptions", "TlsOptions", "TraceOptions"]

MOST_TRACE_CALLS: Final = 20  # the limit of traceMsgBatchNum in Java's AsyncTraceDispatcher


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
