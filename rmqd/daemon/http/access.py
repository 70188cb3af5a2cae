"""Who may use which part of the HTTP endpoint.

It guards against two attacks: a web page in an operator's browser that talks to the daemon, by a foreign Origin or by
a name that it made point here (DNS rebinding); and a stranger on the network who changes something.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import SplitResult, urlsplit

_LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_DEFAULT_PORTS = {"http": 80, "https": 443}
# Headers by which a forwarded request is recognised: proxies add them.
_FORWARDED = frozenset({"forwarded", "via", "x-real-ip", "x-client-ip", "true-client-ip"})
_FORWARDED_PREFIXES = ("x-forwarded", "x-envoy-")


@dataclass(frozen=True, slots=True)
class HttpRefusal:
    """The reason why a request is refused."""

    status: int
    reason: str


@dataclass(frozen=True, slots=True)
class AccessPolicy:
    """The access rules of one configuration. A reload replaces them."""

    token: str
    allowed_hosts: frozenset[str]

    def check_names(
        self, host: str | None, origin: str | None, own_address: str, fetch_site: str | None = None
    ) -> HttpRefusal | None:
        """Check a request for the page or the API: Host, and Origin if there is one, must name this daemon.

        A browser says by `Sec-Fetch-Site` (`fetch_site`) whether another site made the request, also where it sends no
        Origin, as for an image or a script.
        """
        own = _LOCAL_NAMES | self.allowed_hosts | {own_address.lower()}
        if host is None or _host_name(f"//{host}") not in own:
            what = f"Host {host}" if host else "a request without Host"
            return HttpRefusal(403, f"{what} is not for this daemon; http.allowed_hosts adds names")
        if origin is not None and _host_name(origin) not in own:
            return HttpRefusal(403, f"Origin {origin} is not this daemon's own; http.allowed_hosts adds names")
        if fetch_site is not None and fetch_site.strip().lower() == "cross-site":
            return HttpRefusal(403, "a page of another site sent it (Sec-Fetch-Site: cross-site)")
        return None

    def check_page(self, origin: str | None, host: str | None, own_port: int | None) -> HttpRefusal | None:
        """Check a request that changes something: a web page that sent it must be this daemon's own.

        The page's host name is not enough, since other ports of localhost belong to other programs. Its port must be
        the one that the request came in by, or the one that the browser asked for, if a port was forwarded.
        """
        if origin is None:
            return None
        page, asked = _split(origin), _split(f"//{host}")
        if page is not None and page.scheme in _DEFAULT_PORTS:
            default = _DEFAULT_PORTS[page.scheme]
            ports = {own_port, None if asked is None else _port(asked) or default}
            # Accept the default port too for a name that the configuration allows: a proxy may terminate TLS there.
            ports |= {default} if page.hostname in self.allowed_hosts else set()
            if (_port(page) or default) in ports:
                return None
        return HttpRefusal(403, f"Origin {origin} is another port than this daemon's")

    def check_change(
        self, authorization: str | None, client_address: str, header_names: Iterable[str] = ()
    ) -> HttpRefusal | None:
        """Check a request that changes something: it needs the token, or, if none is configured, must be local.

        A proxy on this machine connects from this machine, whoever sent the request. It is recognised by the headers
        that it adds, or by an address of 127.0.0.0/8 other than the default one. A proxy without either cannot be told
        from a local user.
        """
        if self.token:
            return self._check_token(authorization)
        proxied = (name for name in header_names if name in _FORWARDED or name.startswith(_FORWARDED_PREFIXES))
        if (header := next(proxied, None)) is not None:
            return HttpRefusal(403, f"it came through a proxy (header {header}); set http.token to allow that")
        if _is_own_loopback(client_address):
            return None
        return HttpRefusal(403, "only a client on this machine may change something; set http.token to allow others")

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
    """The parts of a URL; None for text that is not one, or has a user name, which such a header never has."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return None
    return None if "@" in parts.netloc else parts


def _port(parts: SplitResult) -> int | None:
    """The port in a URL; 0, which no page has, for one that is invalid."""
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
