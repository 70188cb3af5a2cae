"""The settings of a client, in one frozen value."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

__all__ = ["MOST_TRACE_CALLS", "ClientOptions", "TlsOptions", "TraceOptions"]

MOST_TRACE_CALLS: Final = 20  # Java: AsyncTraceDispatcher cuts traceMsgBatchNum to it


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """How connections are encrypted. Files are PEM; an empty path means none.

    `server_name` is the name that servers' certificates must have, instead of the host that is connected to.
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
    """Settings of the one connection set that all groups of a process share.

    Either `nameservers` (`host:port` each) or `nameserver_url` (an address server) names the cluster; the list wins
    where both are set, as in the Java client.
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
        """What all requests carry. Java: `NamespaceRpcHook`."""
        return {"nsd": "true", "ns": self.namespace_v2} if self.namespace_v2 else {}

    @property
    def shown_nameserver(self) -> str:
        """The name servers as they are shown to people, without a password."""
        return ";".join(self.nameservers) or without_password(self.nameserver_url)


def without_password(url: str) -> str:
    """A URL as it may be shown: `http://user:password@host` without the password."""
    return re.sub(r"(?<=://)([^/@:]*):[^/]*@", r"\1:***@", url)


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """Where a group's message trace goes, and how many handler calls one trace message is about at most."""

    topic: str
    calls: int
