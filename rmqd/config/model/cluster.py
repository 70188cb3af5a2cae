"""One RocketMQ cluster of the configuration: its name servers and connections."""

# No postponed annotations here: pydantic would parse all of them from text at every start.

import re
from typing import Annotated, Final

from pydantic import Field

from rmqd.client.options import ClientOptions, TlsOptions
from rmqd.config.model.forms import NameServerList
from rmqd.config.model.kinds import Duration, Flag, Size, Text
from rmqd.config.model.section import Section, setting

DEFAULT_CLUSTER: Final = "default"
"""The name of the cluster at the top level of the configuration, and of the default cluster for groups."""

_HTTP_URL = Text("an http:// or https:// URL", lambda text: not text or text.startswith(("http://", "https://")))
_SECRET = Text(secret=True)
_NAMESPACE = Text("letters a-z and A-Z, digits, | - and _", lambda text: not re.search(r"[^\w|-]|[^ -~]", text))


class TlsConfig(Section):
    """Encryption of the connections to name servers and brokers."""

    enabled: Annotated[bool, Flag()] = setting(False, "connect with TLS")
    ca_file: Annotated[str, Text()] = setting("", "PEM file of the authorities to trust; empty: the system's")
    cert_file: Annotated[str, Text()] = setting("", "PEM file of this client's certificate")
    key_file: Annotated[str, Text()] = setting("", "PEM file of this client's key")
    key_password: Annotated[str, _SECRET] = Field(
        default="", repr=False, description="password of key_file, if it is encrypted"
    )
    verify: Annotated[bool, Flag()] = setting(True, "check the server's certificate and host name")
    server_name: Annotated[str, Text()] = setting(
        "", "the name in the server's certificate, if it differs from the host in the address"
    )

    def options(self) -> TlsOptions:
        """Return the client's TLS options."""
        return TlsOptions(
            self.enabled, self.ca_file, self.cert_file, self.key_file, self.verify, self.key_password, self.server_name
        )


class ClientConfig(Section):
    """The connections that all groups of a cluster share."""

    instance_name: Annotated[str, Text()] = setting(
        "DEFAULT", "part of the client id; DEFAULT becomes a unique name, also in containers"
    )
    namespace: Annotated[str, _NAMESPACE] = setting(
        "", "prefix of every topic and group on the brokers, for clusters that several users share"
    )
    namespace_v2: Annotated[str, _NAMESPACE] = setting(
        "", "sent with every request (`nsd`, `ns`), for servers that distinguish users by it; it does not change names"
    )
    unit_name: Annotated[str, Text()] = setting("", "appended to the client id and to the address server's URL")
    unit_mode: Annotated[bool, Flag()] = setting(
        False, "mark heartbeats, messages and retries as belonging to a unit, which brokers then separate"
    )
    vip_channel_enabled: Annotated[bool, Flag()] = setting(False, "send to the broker's port - 2")
    poll_name_server_interval: Annotated[float, Duration("10ms")] = setting(
        "30s", "a duration: how often routes are refreshed"
    )
    heartbeat_broker_interval: Annotated[float, Duration("10ms", "110s")] = setting(
        "30s", "a duration, up to 110s (brokers forget a client after 120s): how often heartbeats are sent to brokers"
    )
    access_key: Annotated[str, _SECRET] = Field(default="", repr=False, description="access key of ACL 1.0 or 2.0")
    secret_key: Annotated[str, _SECRET] = Field(default="", repr=False, description="secret key of ACL 1.0 or 2.0")
    security_token: Annotated[str, _SECRET] = Field(default="", repr=False, description="temporary token for the keys")
    tls: TlsConfig = Field(default_factory=TlsConfig, description="encryption of the connections")
    max_frame_size: Annotated[int, Size("64KiB", "1GiB")] = setting(
        "16MiB", "a size, 64KiB to 1GiB: a larger frame closes its connection"
    )


class ClusterConfig(Section):
    """A cluster of brokers with its name servers."""

    nameserver: Annotated[tuple[str, ...], NameServerList()] = Field(
        default=(), validate_default=False, description='name servers: host:port, "host:port;host:port", or a list'
    )
    nameserver_url: Annotated[str, _HTTP_URL] = setting(
        "", "instead of nameserver: an address server, polled every 2 minutes"
    )
    client: ClientConfig = Field(
        default_factory=ClientConfig, description="the connections, shared by all groups of the cluster"
    )

    @property
    def is_named(self) -> bool:
        """Whether name servers are configured."""
        return bool(self.nameserver or self.nameserver_url)

    def client_options(self, state_dir: str = "") -> ClientOptions:
        """Return the client's options for the cluster. `state_dir` is the folder for cluster ids."""
        client = self.client
        return ClientOptions(
            nameservers=self.nameserver,
            nameserver_url=self.nameserver_url,
            instance_name=client.instance_name,
            namespace=client.namespace,
            namespace_v2=client.namespace_v2,
            unit_name=client.unit_name,
            unit_mode=client.unit_mode,
            vip_channel_enabled=client.vip_channel_enabled,
            poll_name_server_interval_seconds=client.poll_name_server_interval,
            heartbeat_broker_interval_seconds=client.heartbeat_broker_interval,
            access_key=client.access_key,
            secret_key=client.secret_key,
            security_token=client.security_token,
            tls=client.tls.options(),
            max_frame_size_bytes=client.max_frame_size,
            state_dir=state_dir,
        )
