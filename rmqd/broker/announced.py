"""The address that a broker announces: one that clients can connect to, wherever it listens."""

from __future__ import annotations

import ipaddress
import socket


def numeric_host(host: str) -> str:
    """A host's IP address, IPv4 if it has one. Raises OSError for an unknown name."""
    if host in ("", "*"):
        return "0.0.0.0"
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    addresses = [(family != socket.AF_INET, str(address[0])) for family, _, _, _, address in found]
    return min(addresses, key=lambda one: one[0])[1]


def announced_host(listened: str, broker_ip1: str) -> str:
    """The host to announce: `broker_ip1` if it is set; else the listening host, or the machine's own for 0.0.0.0."""
    if broker_ip1:
        return broker_ip1
    address = ipaddress.ip_address(listened)
    return _own_host(address.version) if address.is_unspecified else listened


def joined(host: str, port: int) -> str:
    """host:port, with the brackets that a version 6 address needs."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _own_host(version: int) -> str:
    """This machine's address on the default route; loopback if it is offline.

    No packet is sent: connecting a datagram socket only asks the kernel for a route. The peers are addresses that are
    reserved for documentation.
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
