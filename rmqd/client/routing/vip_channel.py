"""A broker's second port, for requests that must not wait behind pulls."""

from __future__ import annotations


def vip_address(address: str) -> str:
    """Return the VIP channel of a broker's "host:port": two ports lower (`MixAll.brokerVIPChannel`)."""
    host, _, port = address.rpartition(":")
    return f"{host}:{int(port) - 2}"
