"""Asks a running daemon over HTTP: where it listens and its token come from `--http`, or from its configuration."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rmqd.errors import ConfigError, RmqdError

TIMEOUT_SECONDS = 10.0
# A reload answers when the groups that it changes have drained.
RELOAD_TIMEOUT_SECONDS = 600.0


class DaemonUnreachableError(RmqdError):
    """No daemon answers at the address."""


class DaemonRefusedError(RmqdError):
    """The daemon answered that it will not; `status` is HTTP's."""

    def __init__(self, status: int, document: dict[str, Any]) -> None:
        super().__init__(str(document.get("error") or f"HTTP status {status}"))
        self.status = status
        self.problems: list[str] = [str(problem) for problem in document.get("problems", [])]


@dataclass(frozen=True, slots=True)
class DaemonClient:
    """One daemon's API. Raises DaemonUnreachableError and DaemonRefusedError."""

    url: str
    token: str = ""

    def status(self) -> dict[str, Any]:
        """The document of /api/v1/status."""
        return self._ask("GET", "/api/v1/status", TIMEOUT_SECONDS)

    def pause(
        self, group: str, topic: str | None = None, broker: str | None = None, queue: int | None = None
    ) -> dict[str, Any]:
        """Pause a group, or the queues that agree with all that is given."""
        return self._ask("POST", _switch(group, "pause", topic, broker, queue), TIMEOUT_SECONDS)

    def resume(
        self, group: str, topic: str | None = None, broker: str | None = None, queue: int | None = None
    ) -> dict[str, Any]:
        """Resume a group, or the queues that agree with all that is given."""
        return self._ask("POST", _switch(group, "resume", topic, broker, queue), TIMEOUT_SECONDS)

    def reload(self) -> dict[str, Any]:
        """Have the configuration read again; answers when it is taken over."""
        return self._ask("POST", "/api/v1/reload", RELOAD_TIMEOUT_SECONDS)

    def _ask(self, method: str, path: str, timeout_seconds: float) -> dict[str, Any]:
        headers = {"Accept": "application/json"}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        request = urllib.request.Request(self.url + path, method=method, headers=headers)
        # Not by a proxy from the environment: the daemon is ours, and mostly on this machine.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=timeout_seconds) as response:
                return _document(response.read())
        except urllib.error.HTTPError as error:
            raise DaemonRefusedError(error.code, _document(error.read())) from None
        except OSError as error:
            reason = getattr(error, "reason", None) or error
            raise DaemonUnreachableError(f"no rmqd answers at {self.url}: {reason}") from None


def find_daemon(http: str | None, config: Path | None, overrides: list[str] | None = None) -> DaemonClient:
    """The daemon at `--http`, else the one of the configuration. Raises ConfigError where that cannot be read."""
    if http is not None:
        url = http if "://" in http else f"http://{http}"
        return DaemonClient(url.rstrip("/"), _token_or_none(config, overrides))
    from rmqd.daemon.config_file import load_config

    settings = load_config(config, overrides or (), to_run=False).http
    try:
        token = settings.read_token()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError([f"http.token_file: cannot read {settings.token_file}: {error}"]) from error
    return DaemonClient(f"http://{_reachable(settings.listen)}", token)


def _token_or_none(config: Path | None, overrides: list[str] | None) -> str:
    """With `--http` a configuration is not needed, but where one is here, its token is used."""
    from rmqd.daemon.config_file import load_config

    try:
        return load_config(config, overrides or (), to_run=False).http.read_token()
    except (ConfigError, OSError, UnicodeDecodeError):
        if config is not None:
            raise
        return ""


def _reachable(listen: str) -> str:
    """Where to connect to for an address that is listened on: 0.0.0.0 is every address, so also this machine's."""
    host, _, port = listen.rpartition(":")
    if host in ("", "0.0.0.0", "*"):
        host = "127.0.0.1"
    elif host in ("[::]", "::"):
        host = "[::1]"
    return f"{host}:{port}"


def _switch(group: str, action: str, topic: str | None, broker: str | None, queue: int | None) -> str:
    from urllib.parse import urlencode

    named = {"topic": topic, "broker": broker, "queue": queue}
    query = urlencode({name: value for name, value in named.items() if value is not None})
    return f"/api/v1/groups/{_quoted(group)}/{action}" + (f"?{query}" if query else "")


def _quoted(group: str) -> str:
    from urllib.parse import quote

    return quote(group, safe="")


def _document(body: bytes) -> dict[str, Any]:
    try:
        document = json.loads(body)
    except ValueError:
        return {"error": body.decode(errors="replace").strip()}
    return document if isinstance(document, dict) else {}
