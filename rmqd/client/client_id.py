"""Client ids: the names by which brokers tell the members of a group apart."""

from __future__ import annotations

import ipaddress
import os
import secrets
import socket
import time
from collections.abc import Iterable

DEFAULT_INSTANCE = "DEFAULT"
SPARK_PREFIX = "spark-"  # of the instance, for drivers of engine: spark


def make_client_id(local_address: str, instance_name: str, unit_name: str = "") -> str:
    """`<ip>@<instance>[@<unit>]`, as Java's. The instance DEFAULT becomes one that no other process has.

    Java takes pid and time for that. In containers every process may have pid 1 and the same bridge address, and
    several may start at once, so random digits follow.
    """
    if instance_name == DEFAULT_INSTANCE:
        instance_name = unique_instance()
    parts = [local_address, instance_name]
    if unit_name:
        parts.append(unit_name)
    return "@".join(parts)


def unique_instance() -> str:
    """An instance name that no other process has."""
    return f"{os.getpid()}#{time.time_ns()}{secrets.token_hex(4)}"


def is_spark(client_id: str) -> bool:
    """Whether the client id is one of a driver with `engine: spark`."""
    return client_id.partition("@")[2].startswith(SPARK_PREFIX)


def host_of(client_id: str) -> str:
    """The host part of a client id: the machine's address, as its client saw it."""
    return client_id.partition("@")[0]


def local_address(peers: Iterable[str] = ()) -> str:
    """This machine's address as the first peer ("host:port") that is a number would see it; 127.0.0.1 if offline.

    Sends nothing: connecting a datagram socket only asks the kernel for the route. Peers given by host name are
    skipped, since resolving them could block.
    """
    candidates = [host for peer in peers if (host := _routable_host(peer))]
    # an address that is reserved for documentation: the kernel picks the default route for it
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
