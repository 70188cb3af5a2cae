"""The address that a broker announces. Clients can connect to it, whatever address the broker listens on."""

from __future__ import annotations

import ipaddress
import socket


def numeric_host(host: str) -> str:
    """Return a host's IP address, IPv4 if it has one. Raises OSError if the name is unknown."""
    if host in ("", "*"):
        return "0.0.0.0"
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    addresses = [(family != socket.AF_INET, str(address[0])) for family, _, _, _, address in found]
    return min(addresses, key=lambda one: one[0])[1]


def announced_host(listened: str, broker_ip1: str) -> str:
    """Return the host to announce: `broker_ip1` if set, the machine's own address for 0.0.0.0, else `listened`."""
    if broker_ip1:
        return broker_ip1
    address = ipaddress.ip_address(listened)
    return _own_host(address.version) if address.is_unspecified else listened


def joined(host: str, port: int) -> str:
    """Return host:port, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _own_host(version: int) -> str:
    """Return this machine's address on the default route; loopback if it is offline.

    No packet is sent, because connecting a datagram socket only asks the kernel for a route. The peers are addresses
    that are reserved for documentation.
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
