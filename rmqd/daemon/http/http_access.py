"""The access rules of the HTTP endpoint.

They prevent two attacks. A web page in an operator's browser may send requests to the daemon, with a foreign Origin or
by DNS rebinding. And a stranger on the network may send requests that change something.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import SplitResult, urlsplit

_LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_DEFAULT_PORTS = {"http": 80, "https": 443}
# Headers (in lower case) that proxies add to a forwarded request.
_FORWARDED = frozenset({"forwarded", "via", "x-real-ip", "x-client-ip", "true-client-ip"})
_FORWARDED_PREFIXES = ("x-forwarded", "x-envoy-")


@dataclass(frozen=True, slots=True)
class HttpRefusal:
    """The HTTP status and the reason of a refused request."""

    status: int
    reason: str


@dataclass(frozen=True, slots=True)
class AccessPolicy:
    """The access rules of one configuration. A reload replaces them. Methods return None for an accepted request."""

    token: str
    allowed_hosts: frozenset[str]

    def check_names(
        self, host: str | None, origin: str | None, own_address: str, fetch_site: str | None = None
    ) -> HttpRefusal | None:
        """Check a request for the page or the API: Host, and Origin if it is given, must name this daemon.

        A browser's `Sec-Fetch-Site` (`fetch_site`) shows that another site made the request, even if it has no Origin,
        for example for an image or a script.
        """
        own = _LOCAL_NAMES | self.allowed_hosts | {own_address.lower()}
        if host is None or _host_name(f"//{host}") not in own:
            why = f"Host {host} is not a name of this daemon; add it to http.allowed_hosts"
            return HttpRefusal(403, why if host else "the request has no header Host; send one")
        if origin is not None and _host_name(origin) not in own:
            return HttpRefusal(403, f"Origin {origin} is not this daemon; add it to http.allowed_hosts")
        if fetch_site is not None and fetch_site.strip().lower() == "cross-site":
            return HttpRefusal(403, "a page of another site sent this request (Sec-Fetch-Site: cross-site)")
        return None

    def check_origin_port(self, origin: str | None, host: str | None, own_port: int | None) -> HttpRefusal | None:
        """Check the Origin of a request that changes something: if a web page sent it, the page must be this daemon's.

        The page's host name is not enough, because other ports of localhost belong to other programs. The page's port
        must be `own_port`, the port of this connection, or the port in `host`. These differ after port forwarding.
        """
        if origin is None:
            return None
        page, asked = _split(origin), _split(f"//{host}")
        if page is not None and page.scheme in _DEFAULT_PORTS:
            default = _DEFAULT_PORTS[page.scheme]
            ports = {own_port, None if asked is None else _port(asked) or default}
            # configured names are also accepted with the default port, because a proxy may terminate TLS there
            ports |= {default} if page.hostname in self.allowed_hosts else set()
            if (_port(page) or default) in ports:
                return None
        return HttpRefusal(403, f"Origin {origin} has another port or scheme than this daemon")

    def check_change(
        self, authorization: str | None, client_address: str, header_names: Iterable[str] = ()
    ) -> HttpRefusal | None:
        """Check the sender of a change: it needs the token or, if none is configured, must be on this machine.

        A proxy on this machine has a local address, but forwards requests of any sender. A proxy is recognized by the
        headers that it adds, or by an address in 127.0.0.0/8 other than 127.0.0.1. Other proxies look like local users.
        """
        if self.token:
            return self._check_token(authorization)
        proxied = (name for name in header_names if name in _FORWARDED or name.startswith(_FORWARDED_PREFIXES))
        if (header := next(proxied, None)) is not None:
            return HttpRefusal(403, f"the request came through a proxy (header {header}); set http.token to allow this")
        if _is_own_loopback(client_address):
            return None
        return HttpRefusal(403, "only a client on this machine may make changes; set http.token to allow others")

    def _check_token(self, authorization: str | None) -> HttpRefusal | None:
        scheme, _, given = (authorization or "").partition(" ")
        if scheme.lower() != "bearer":
            return HttpRefusal(401, "the token is missing: send Authorization: Bearer TOKEN")
        if not hmac.compare_digest(given.strip().encode(), self.token.encode()):
            return HttpRefusal(401, "the token is not the configured one")
        return None


def _host_name(url: str) -> str | None:
    parts = _split(url)
    return None if parts is None else parts.hostname


def _split(url: str) -> SplitResult | None:
    """Return the parts of a URL; None if the text is not a URL, or has a user name, which these headers never have."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return None
    return None if "@" in parts.netloc else parts


def _port(parts: SplitResult) -> int | None:
    """Return the port of a URL; if it is invalid, return 0, which no page has."""
    try:
        return parts.port
    except ValueError:
        return 0


def _is_own_loopback(address: str) -> bool:
    try:
        ip = ip_address(address)
    except ValueError:
        return False
    mapped = getattr(ip, "ipv4_mapped", None)
    return str(mapped or ip) in _LOCAL_NAMES
