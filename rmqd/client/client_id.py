"""Client ids, which identify the members of a group at brokers."""

from __future__ import annotations

import ipaddress
import os
import secrets
import socket
import time
from collections.abc import Iterable

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
