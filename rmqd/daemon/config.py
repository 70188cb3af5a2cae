"""The configuration as a whole: what `rmqd.yaml` may hold, its defaults and its ranges.

Reading files, `${...}` and `--set`, and the errors with their lines, is `config_file`'s part.
"""

# No postponed annotations here: pydantic would have to read them all from text, on every start.

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from rmqd.client.options import ClientOptions, TlsOptions
from rmqd.daemon.config_section import Section, setting
from rmqd.daemon.config_types import Choice, Duration, Flag, Size, Text
from rmqd.daemon.config_values import NameServers, is_listen_address
from rmqd.daemon.group_config import GroupConfig, HandlerConfig

__all__ = ["ClientConfig", "GroupConfig", "HandlerConfig", "HttpConfig", "LogConfig", "RootConfig", "TlsConfig"]

_LISTEN = Text("host:port such as 127.0.0.1:9464, or port 0 for a free one", is_listen_address)
_HTTP_URL = Text("an http:// or https:// URL", lambda text: not text or text.startswith(("http://", "https://")))
_SECRET = Text(secret=True)


class TlsConfig(Section):
    """Encryption of the connections to name servers and brokers."""

    enabled: Annotated[bool, Flag()] = setting(False, "connect with TLS")
    ca_file: Annotated[str, Text()] = setting("", "PEM file of the authorities to trust; empty: the system's")
    cert_file: Annotated[str, Text()] = setting("", "PEM file of this client's certificate")
    key_file: Annotated[str, Text()] = setting("", "PEM file of this client's key")
    key_password: Annotated[str, _SECRET] = Field(
        default="", repr=False, description="what key_file is encrypted with, where it is"
    )
    verify: Annotated[bool, Flag()] = setting(True, "check the server's certificate and host name")
    server_name: Annotated[str, Text()] = setting(
        "", "the name that certificates must be for, where it is not the host in the address"
    )

    def options(self) -> TlsOptions:
        """What the client is told about it."""
        return TlsOptions(
            self.enabled, self.ca_file, self.cert_file, self.key_file, self.verify, self.key_password, self.server_name
        )


class ClientConfig(Section):
    """The one connection set that all groups share."""

    instance_name: Annotated[str, Text()] = setting(
        "DEFAULT", "part of the client id; DEFAULT becomes a name that is unique, in containers too"
    )
    namespace: Annotated[str, Text()] = setting("", "prefix of every topic and group, as in a shared cluster")
    unit_name: Annotated[str, Text()] = setting("", "appended to the client id and to the address server's URL")
    vip_channel_enabled: Annotated[bool, Flag()] = setting(False, "send to the broker's port - 2")
    poll_name_server_interval: Annotated[float, Duration("10ms")] = setting(
        "30s", "a duration: how often routes are refreshed"
    )
    heartbeat_broker_interval: Annotated[float, Duration("10ms", "110s")] = setting(
        "30s", "a duration, up to 110s (brokers forget a client after 120s): how often brokers hear of the groups"
    )
    access_key: Annotated[str, _SECRET] = Field(default="", repr=False, description="access key of ACL 1.0 or 2.0")
    secret_key: Annotated[str, _SECRET] = Field(default="", repr=False, description="secret key of ACL 1.0 or 2.0")
    security_token: Annotated[str, _SECRET] = Field(
        default="", repr=False, description="temporary token beside the keys"
    )
    tls: TlsConfig = Field(default_factory=TlsConfig, description="encryption of the connections")
    max_frame_size: Annotated[int, Size("64KiB", "1GiB")] = setting(
        "16MiB", "a size, 64KiB to 1GiB: a larger frame closes its connection"
    )


class HttpConfig(Section):
    """Metrics, health, and the API of the running daemon."""

    listen: Annotated[str, _LISTEN] = setting("127.0.0.1:9464", "host:port; port 0 takes a free one")
    token: Annotated[str, _SECRET] = Field(
        default="", repr=False, description="asked for by what changes something; without one only loopback may change"
    )
    token_file: Annotated[str, Text()] = setting("", "file that holds the token, in place of token")
    allowed_hosts: list[Annotated[str, Text()]] = Field(
        default_factory=list, description="names besides its own addresses under which the page and API answer"
    )

    def read_token(self) -> str:
        """The token, from its file where one is named; "" for none. Raises OSError and UnicodeDecodeError."""
        if self.token_file:
            return Path(self.token_file).read_text(encoding="utf-8").strip()
        return self.token


class LogConfig(Section):
    """What is logged, and how it looks."""

    level: Annotated[Literal["debug", "info", "warning", "error"], Choice(("debug", "info", "warning", "error"))] = (
        setting("info", "the least important events that are logged")
    )
    format: Annotated[Literal["auto", "console", "json"], Choice(("auto", "console", "json"))] = setting(
        "auto", "auto: console on a terminal, JSON otherwise"
    )


class RootConfig(Section):
    """The configuration of rmqd."""

    nameserver: Annotated[tuple[str, ...], NameServers()] = Field(
        default=(), validate_default=False, description='name servers: host:port, "host:port;host:port", or a list'
    )
    nameserver_url: Annotated[str, _HTTP_URL] = setting(
        "", "in place of nameserver: an address server, asked every 2 minutes"
    )
    client: ClientConfig = Field(default_factory=ClientConfig, description="the connections, shared by all groups")
    http: HttpConfig = Field(default_factory=HttpConfig, description="metrics, health and API")
    log: LogConfig = Field(default_factory=LogConfig, description="logging")
    state_dir: Annotated[str, Text("a folder", bool)] = setting(
        "/var/lib/rmqd", "folder of broadcasting offsets, backups and local state"
    )
    groups: dict[str, GroupConfig] = Field(default_factory=dict, description="consumer groups by name")

    def client_options(self) -> ClientOptions:
        """What the client is told about the cluster and its connections."""
        client = self.client
        return ClientOptions(
            nameservers=self.nameserver,
            nameserver_url=self.nameserver_url,
            instance_name=client.instance_name,
            namespace=client.namespace,
            unit_name=client.unit_name,
            vip_channel_enabled=client.vip_channel_enabled,
            poll_name_server_interval_seconds=client.poll_name_server_interval,
            heartbeat_broker_interval_seconds=client.heartbeat_broker_interval,
            access_key=client.access_key,
            secret_key=client.secret_key,
            security_token=client.security_token,
            tls=client.tls.options(),
            max_frame_size_bytes=client.max_frame_size,
        )
