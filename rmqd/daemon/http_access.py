"""Who may ask the HTTP endpoint for what.

Two dangers: a web page in an operator's browser that talks to the daemon (by a foreign Origin, or by a name that it
made point here), and a stranger on the network who changes something.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import urlsplit

_LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is not served."""

    status: int
    reason: str


@dataclass(frozen=True, slots=True)
class AccessPolicy:
    """The rules of one configuration; a reload replaces it."""

    token: str
    allowed_hosts: frozenset[str]

    def check_names(self, host: str | None, origin: str | None, own_address: str) -> Refusal | None:
        """For the page and the API: are Host, and Origin where there is one, names of this daemon?"""
        own = _LOCAL_NAMES | self.allowed_hosts | {own_address.lower()}
        if host is None or _host_name(f"//{host}") not in own:
            what = f"Host {host}" if host else "a request without Host"
            return Refusal(403, f"{what} is not for this daemon; http.allowed_hosts adds names")
        if origin is not None and _host_name(origin) not in own:
            return Refusal(403, f"Origin {origin} is not this daemon's own; http.allowed_hosts adds names")
        return None

    def check_change(self, authorization: str | None, client_address: str) -> Refusal | None:
        """For what changes something: the token, or, where none is configured, a client on this machine."""
        if not self.token:
            if _is_loopback(client_address):
                return None
            return Refusal(403, "only a client on this machine may change something; set http.token to allow others")
        scheme, _, given = (authorization or "").partition(" ")
        if scheme.lower() != "bearer":
            return Refusal(401, "the token is missing: send Authorization: Bearer TOKEN")
        if not hmac.compare_digest(given.strip().encode(), self.token.encode()):
            return Refusal(401, "the token is not the configured one")
        return None


def _host_name(url: str) -> str | None:
    try:
        parts = urlsplit(url)
    except ValueError:
        return None
    return None if "@" in parts.netloc else parts.hostname


def _is_loopback(address: str) -> bool:
    try:
        ip = ip_address(address)
    except ValueError:
        return False
    mapped = getattr(ip, "ipv4_mapped", None)
    return bool((mapped or ip).is_loopback)
