"""The address that a broker announces: one that clients can connect to, wherever it listens."""

from __future__ import annotations

import ipaddress
import socket


def numeric_host(host: str) -> str:
    """A host's IP address, of the fourth version where it has one. Raises OSError for a name that is unknown."""
    if host in ("", "*"):
        return "0.0.0.0"
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    addresses = [(family != socket.AF_INET, str(address[0])) for family, _, _, _, address in found]
    return min(addresses, key=lambda one: one[0])[1]


def announced_host(listened: str, broker_ip1: str) -> str:
    """`broker_ip1` where it is set, as for the real broker; where every address is listened at, the machine's own."""
    if broker_ip1:
        return broker_ip1
    address = ipaddress.ip_address(listened)
    return _own_host(address.version) if address.is_unspecified else listened


def joined(host: str, port: int) -> str:
    """host:port, with the brackets that a version 6 address needs."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _own_host(version: int) -> str:
    """By the default route, without a packet: connecting a datagram socket only asks the kernel. Loopback if offline.

    The peers are addresses reserved for documentation, which stand for "anywhere".
    """
    family, anywhere, loopback = (
        (socket.AF_INET6, "2001:db8::1", "::1") if version == 6 else (socket.AF_INET, "192.0.2.1", "127.0.0.1")
    )
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((anywhere, 9))
            return str(probe.getsockname()[0])
    except OSError:
        return loopback
