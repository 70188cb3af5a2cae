"""An HTTP client for a running daemon. The configuration or options give the daemon's address and token.

A configuration's token is sent only to the address in that configuration. Redirects are never followed.
"""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote, urlencode, urlsplit

from rmqd.errors import ConfigError, RmqdError
from rmqd.runtime.lazy_imports import import_lazily

with import_lazily():
    from rmqd.config import load
    from rmqd.config.model import forms, root_model
    from rmqd.wire.messages import message_id

TIMEOUT_SECONDS = 10.0
# The daemon responds to a reload only when the changed groups have drained, so this timeout is longer.
RELOAD_TIMEOUT_SECONDS = 600.0
MAX_ANSWER_BYTES = 256 * 1024 * 1024
# Keys that rmqd's responses have, by kind of request. A response without them is not from rmqd.
_STATUS_KEYS = frozenset({"version", "client_id", "groups"})
_SWITCH_KEYS = frozenset({"group", "result", "scope", "queues", "pauses"})
_RELOAD_KEYS = frozenset({"unchanged", "updated", "restarted", "started", "stopped"})
_THIS_MACHINE = frozenset({"127.0.0.1", "localhost", "::1"})
_EVERY_ADDRESS = frozenset({"0.0.0.0", "::"})


class DaemonUnreachableError(RmqdError):
    """No server responds at the daemon's address, or the server is not rmqd."""


class DaemonRefusedError(RmqdError):
    """The daemon refused a request. `problems` are the errors of its configuration, if these are the reason."""

    def __init__(self, status: int, document: dict[str, Any]) -> None:
        super().__init__(str(document.get("error") or f"HTTP status {status}"))
        self.problems: list[str] = [str(problem) for problem in document.get("problems", [])]


@dataclass(frozen=True, slots=True)
class DaemonClient:
    """The API of one daemon. Methods block, and raise DaemonUnreachableError and DaemonRefusedError."""

    url: str
    token: str = ""

    def status(self) -> dict[str, Any]:
        """Return the document of /api/v1/status."""
        return self._ask("GET", "/api/v1/status", _STATUS_KEYS, TIMEOUT_SECONDS)

    def pause_or_resume(
        self, action: Literal["pause", "resume"], group: str, topic: str | None, broker: str | None, queue: int | None
    ) -> dict[str, Any]:
        """Pause or resume a group, or only its queues with this topic, broker name and queue id. None matches all."""
        return self._ask(
            "POST", _path(group, action, topic=topic, broker=broker, queue=queue), _SWITCH_KEYS, TIMEOUT_SECONDS
        )

    def change(
        self, group: str, what: Literal["concurrency", "canary", "restart"], **given: str | None
    ) -> dict[str, Any]:
        """Change a group's concurrency or canary, or restart it. Returns when it is done, possibly after a drain."""
        return self._ask("POST", _path(group, what, **given), _RELOAD_KEYS, RELOAD_TIMEOUT_SECONDS)

    def reload(self) -> dict[str, Any]:
        """Reload the daemon's configuration. Returns when the daemon has applied it."""
        return self._ask("POST", "/api/v1/reload", _RELOAD_KEYS, RELOAD_TIMEOUT_SECONDS)

    def _ask(self, method: str, path: str, keys: frozenset[str], timeout_seconds: float) -> dict[str, Any]:
        headers = {"Accept": "application/json"}
        if self.token and method != "GET":  # the daemon requires the token only for changes
            headers["Authorization"] = f"Bearer {self.token}"
        request = urllib.request.Request(self.url + path, method=method, headers=headers)
        # Proxies from the environment are not used, because the daemon is usually on this machine.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect())
        try:
            with opener.open(request, timeout=timeout_seconds) as response:
                document = _document(response.read(MAX_ANSWER_BYTES))
        except urllib.error.HTTPError as error:
            raise self._refusal(error.code, _document(error.read(MAX_ANSWER_BYTES))) from None
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            raise DaemonUnreachableError(f"no rmqd answers at {self.url}: {reason}") from None
        if not keys <= document.keys():
            raise DaemonUnreachableError(f"the server at {self.url} is not rmqd")
        return document

    def _refusal(self, status: int, document: dict[str, Any]) -> RmqdError:
        if 300 <= status < 400:
            return DaemonUnreachableError(f"the server at {self.url} is not rmqd: it redirects (HTTP {status})")
        if status in (404, 501) and str(document.get("error", "")).startswith("<"):  # a page in HTML
            return DaemonUnreachableError(f"the server at {self.url} is not rmqd")
        if status == 401 and not self.token:
            document = {"error": "the daemon at this address requires its own token; give it with --token-file"}
        return DaemonRefusedError(status, document)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Makes urllib follow no redirects: a daemon sends none, and its token must not be sent to another address."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Return None, so that urllib raises HTTPError for the redirect."""


def find_daemon(address: str | None, config: Path | None, token_file: Path | None = None) -> DaemonClient:
    """Return a client for the daemon at `address`; None means the configured address. Raises ConfigError."""
    given = None if token_file is None else _token_in(token_file)
    if address is not None:
        url = (address if "://" in address else f"http://{address}").rstrip("/")
        _check_url(url)
        return DaemonClient(url, _own_token(url, config) if given is None else given)
    settings = load.load_http(config)
    return DaemonClient(f"http://{_reachable(settings.listen)}", settings.read_token() if given is None else given)


def _check_url(url: str) -> None:
    """Raise ConfigError if the URL is not an HTTP address."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise ConfigError([f"--http {url}: not an address; expected one such as 127.0.0.1:9464 or http://host:port"])


def _token_in(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError([f"--token-file {path}: cannot be read: {error}"]) from error


def _own_token(url: str, config: Path | None) -> str:
    """Return the configured token if `url`, from `--http`, is the configured daemon's address; else an empty text."""
    try:
        settings = load.load_http(config)
        return settings.read_token() if _is_own(url, settings, any_port=config is not None) else ""
    except ConfigError:
        if config is not None:
            raise
        return ""


def _is_own(url: str, settings: root_model.HttpConfig, any_port: bool) -> bool:
    """Return whether the URL is the address of a daemon with these settings.

    `any_port` ignores the port. It is set with `--config`, because that configuration's daemon may use any free port.
    """
    parts = urlsplit(url)
    host, port = forms.split_host_port(settings.listen)
    asked = parts.hostname or ""
    names = {host} | (_THIS_MACHINE if host in _THIS_MACHINE | _EVERY_ADDRESS else set())
    return asked in names and (any_port or parts.port == port)


def _reachable(listen: str) -> str:
    """Return the address to connect to for a listening address: loopback for 0.0.0.0 and ::, else the same address."""
    host, port = forms.split_host_port(listen)
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return message_id.host_port(host, port)


def _path(group: str, action: str, **named: str | int | None) -> str:
    query = urlencode({name: value for name, value in named.items() if value is not None})
    return f"/api/v1/groups/{quote(group, safe='')}/{action}" + (f"?{query}" if query else "")


def _document(body: bytes) -> dict[str, Any]:
    try:
        document = json.loads(body)
    except ValueError:
        return {"error": body.decode(errors="replace").strip()}
    return document if isinstance(document, dict) else {}
