"""The HTTP endpoints: metrics, health, status, the status page, and the changes that operators may make."""

from __future__ import annotations

import gzip
import importlib
import re
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from functools import partial
from typing import Any, Final, Protocol

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from rmqd.client.api.remoting_request import SharedCalls
from rmqd.config.load import explicit_settings, settings_without_secrets
from rmqd.config.model.root_model import RootConfig
from rmqd.consumer.pauses import WHOLE_GROUP, PauseScope
from rmqd.daemon.group_history import HistoryRecorder
from rmqd.daemon.groups.group_engine import (
    GroupHost,
    UnknownGroupError,
    WholeGroupOnlyError,
    refuse_pause_of_queue,
)
from rmqd.daemon.groups.group_reload import ReloadReport, with_canary_share, with_concurrency, with_promoted_canary
from rmqd.daemon.groups.supervisor import HealthCheck, LoopMonitor, readiness
from rmqd.daemon.http.daemon_status import DaemonInfo, pause_document, status_document, status_json
from rmqd.daemon.http.http_access import AccessPolicy, HttpRefusal
from rmqd.daemon.page.page_view import PAGE_HEADERS, StatusPage, asset
from rmqd.runtime.own_threads import call_in_thread

Endpoint = Callable[[Request], Awaitable[Response]]
# Matches an Accept-Encoding header that allows gzip. The weight `q=0` forbids gzip.
_GZIP: Final = re.compile(r"\bgzip\b(?!\s*;\s*q=0(?:\.0*)?\s*(?:,|$))", re.IGNORECASE)


class DaemonControl(Protocol):
    """The part of the daemon that the HTTP endpoints use. A reload replaces `access` and `config`."""

    host: GroupHost
    monitor: LoopMonitor
    recorder: HistoryRecorder
    access: AccessPolicy
    config: RootConfig
    held: dict[str, str]
    """Groups that are paused only because their new code cannot be loaded, with the reason."""

    def about(self) -> DaemonInfo:
        """Return the status of the daemon itself, without its groups."""

    async def reload(self) -> ReloadReport:
        """Read the configuration again and apply it, or report the problems."""

    async def change(self, edit: Callable[[RootConfig], RootConfig]) -> ReloadReport:
        """Apply the configuration that `edit` returns, until the next reload. Raises the errors of `edit`."""

    async def restart(self, group: str) -> ReloadReport:
        """Load a group's code again. Raises UnknownGroupError."""


class HttpApi:
    def __init__(self, daemon: DaemonControl) -> None:
        self._daemon = daemon
        self._page = StatusPage()
        self._shown: tuple[RootConfig, dict[str, Any]] | None = None
        self._scrape = SharedCalls(self._render_metrics)

    def app(self) -> Starlette:
        """Return the ASGI app with all endpoints."""
        named, changing = self._named, self._changing
        return Starlette(
            routes=[
                Route("/livez", self.livez),
                Route("/readyz", self.readyz),
                Route("/metrics", self.metrics),
                Route("/", named(self.page)),
                Route("/live", named(self.live)),
                Route("/static/{name}", named(self.static)),
                Route("/api/v1/status", named(self.status)),
                Route("/api/v1/history", named(self.history)),
                Route("/api/v1/config", named(self.config)),
                Route("/api/v1/groups/{group}/pause", changing(self.pause), methods=["POST"]),
                Route("/api/v1/groups/{group}/resume", changing(self.resume), methods=["POST"]),
                Route("/api/v1/groups/{group}/concurrency", changing(self.concurrency), methods=["POST"]),
                Route("/api/v1/groups/{group}/canary", changing(self.canary), methods=["POST"]),
                Route("/api/v1/groups/{group}/restart", changing(self.restart), methods=["POST"]),
                Route("/api/v1/reload", changing(self.reload), methods=["POST"]),
            ],
            exception_handlers={HTTPException: _http_error},
        )

    async def livez(self, _request: Request) -> Response:
        """Respond 200 as long as the event loop runs, regardless of the cluster."""
        return _checks_response((self._daemon.monitor.liveness(),))

    async def readyz(self, _request: Request) -> Response:
        """Respond 200 if each group has a route and its first assignment, else 503 with the reasons."""
        host = self._daemon.host
        return _checks_response(readiness(await host.view(with_queues=False), host.stopping))

    async def metrics(self, request: Request) -> Response:
        """Return the metrics. All requests that arrive while metrics are rendered share the next rendering."""
        if (rendered := await self._scrape(request.headers.get("accept", ""))) is None:
            return PlainTextResponse("no worker responds; see /readyz\n", 503)
        body, content_type = rendered
        headers = {"content-type": content_type, "vary": "accept-encoding"}
        if not _GZIP.search(request.headers.get("accept-encoding", "")):
            return Response(body, headers=headers)
        # zlib takes milliseconds for a megabyte, and releases the GIL meanwhile
        compressed = await call_in_thread(lambda: gzip.compress(body, 1, mtime=0))
        return Response(compressed, headers=headers | {"content-encoding": "gzip"})

    async def _render_metrics(self, accept: str) -> Any:
        """Return the metrics in the format of the Accept header, and their content type; None if no worker responds.

        The first scrape imports the Prometheus library in a thread. Importing it at the start would delay messages.
        """
        exposition = await call_in_thread(lambda: importlib.import_module("rmqd.daemon.metrics.exposition"))
        view = await self._daemon.host.view()
        about, config = self._daemon.about(), self._daemon.config.metrics
        return await exposition.render(view, about, accept, config) if view.processes else None

    async def status(self, _request: Request) -> Response:
        """Return the status of every group and queue."""
        return Response(await status_json(await self._status()), media_type="application/json")

    async def history(self, request: Request) -> Response:
        """Return the lag and throughput of the groups in `group` after the Unix time `since`, for at most an hour."""
        groups = frozenset(request.query_params.getlist("group"))
        try:
            since = float(request.query_params.get("since", "0"))
        except ValueError:
            return JSONResponse({"error": "since is not a Unix time; expected seconds, such as 1764075600"}, 400)
        document = self._daemon.recorder.points_document(groups, since)
        # An hour of many groups is a hundred thousand numbers, so a thread writes the JSON.
        return await call_in_thread(lambda: JSONResponse(document))

    async def config(self, _request: Request) -> Response:
        """Return the current configuration without secrets."""
        return JSONResponse(self._config())

    async def page(self, request: Request) -> Response:
        """Return the status as an HTML page. `open` names the groups that are expanded."""
        return await self._rendered("page.html", request.query_params.getlist("open") or None)

    async def live(self, request: Request) -> Response:
        """Return the page's main part, for the script that updates the page. Only groups in `open` are expanded."""
        return await self._rendered("live.html", request.query_params.getlist("open"))

    async def static(self, request: Request) -> Response:
        """Return a file of the page. Its URL contains a hash of its content, so browsers may cache it."""
        found = asset(request.path_params["name"])
        if found is None:
            return PlainTextResponse("file not found\n", 404)
        content, content_type = found
        headers = {"cache-control": "max-age=31536000, immutable", "x-content-type-options": "nosniff"}
        return Response(content, headers=headers | {"content-type": content_type})

    async def pause(self, request: Request) -> Response:
        """Pause one group, or its queues that match `topic`, `broker` and `queue`. Paused queues stay assigned."""
        refuse_pause_of_queue(self._daemon.config, request.path_params["group"], _scope(request))
        return await self._switch(request, self._daemon.host.pause, "paused")

    async def resume(self, request: Request) -> Response:
        """Resume one group, or its queues that match `topic`, `broker` and `queue`."""
        return await self._switch(request, self._daemon.host.resume, "resumed")

    async def reload(self, _request: Request) -> Response:
        """Reload the configuration. If it has problems, respond 500 with the reasons and change nothing."""
        return _report_response(await self._daemon.reload())

    async def concurrency(self, request: Request) -> Response:
        """Set the number of concurrent handler calls of one group to `calls`, until the next reload."""
        group, calls = request.path_params["group"], request.query_params.get("calls", "")
        edit = partial(with_concurrency, group=group, concurrency=calls)
        return _report_response(await self._daemon.change(edit), group=group, concurrency=calls)

    async def canary(self, request: Request) -> Response:
        """Set the share of a group's canary to `share`. Without `share`, make the canary the group's only handler.

        The change lasts until the next reload.
        """
        group, share = request.path_params["group"], request.query_params.get("share")
        edit = partial(with_promoted_canary, group=group)
        if share is not None:
            edit = partial(with_canary_share, group=group, share=share)
        return _report_response(await self._daemon.change(edit), group=group, share=share)

    async def restart(self, request: Request) -> Response:
        """Load the code of one group again. If it cannot be loaded, respond 500 with the reasons and change nothing."""
        group = request.path_params["group"]
        return _report_response(await self._daemon.restart(group), group=group)

    async def _switch(
        self, request: Request, action: Callable[[str, PauseScope], Awaitable[None]], result: str
    ) -> Response:
        group, scope = request.path_params["group"], _scope(request)
        await action(group, scope)
        if scope == WHOLE_GROUP:
            self._daemon.held.pop(group, None)
        view = await self._daemon.host.view()
        document = {"group": group, "result": result, "scope": asdict(scope)}
        return JSONResponse(document | pause_document(view, group, scope))

    async def _rendered(self, template: str, opened: list[str] | None) -> Response:
        html = await self._page.render(template, await self._status(), self._config(), opened)
        return HTMLResponse(html, headers=PAGE_HEADERS)

    def _config(self) -> dict[str, Any]:
        config, about = self._daemon.config, self._daemon.about()
        if self._shown is None or self._shown[0] is not config:
            self._shown = config, {"config": settings_without_secrets(config), "given": explicit_settings(config)}
        return {"config_hash": about.config_hash, "reloaded_at": about.reloaded_at, **self._shown[1]}

    async def _status(self) -> dict[str, Any]:
        return await status_document(await self._daemon.host.view(), self._daemon.recorder, self._daemon.about())

    def _named(self, endpoint: Endpoint) -> Endpoint:
        async def checked(request: Request) -> Response:
            return _refusal(self._check_names(request)) or await endpoint(request)

        return checked

    def _changing(self, endpoint: Endpoint) -> Endpoint:
        async def checked(request: Request) -> Response:
            if (refused := _refusal(self._check_names(request) or self._check_change(request))) is not None:
                return refused
            try:
                return await endpoint(request)
            except UnknownGroupError as error:
                return JSONResponse({"error": str(error)}, 404)
            except (ValueError, WholeGroupOnlyError) as error:
                return JSONResponse({"error": str(error)}, 400)

        return checked

    def _check_names(self, request: Request) -> HttpRefusal | None:
        own_address = (request.scope.get("server") or ("", 0))[0]
        headers = request.headers
        site = None if _is_followed_link(request) else headers.get("sec-fetch-site")
        return self._daemon.access.check_names(headers.get("host"), headers.get("origin"), own_address, site)

    def _check_change(self, request: Request) -> HttpRefusal | None:
        access, headers = self._daemon.access, request.headers
        own_port = (request.scope.get("server") or ("", None))[1]
        client = request.client.host if request.client else ""
        return access.check_origin_port(headers.get("origin"), headers.get("host"), own_port) or access.check_change(
            headers.get("authorization"), client, headers.keys()
        )


def _report_response(report: ReloadReport, **more: object) -> Response:
    return JSONResponse(report.as_document() | more, 200 if report.successful else 500)


def _scope(request: Request) -> PauseScope:
    """Return the scope of a request to pause or resume. Raises ValueError."""
    given = dict(request.query_params)
    if unknown := given.keys() - {"topic", "broker", "queue"}:
        raise ValueError(f"{', '.join(sorted(unknown))}: unknown parameter; expected topic, broker or queue")
    number = given.get("queue")
    if number is not None and not (number.isascii() and number.isdigit()):
        raise ValueError(f"queue: {number!r} is not a queue number")
    return PauseScope(given.get("topic"), given.get("broker"), None if number is None else int(number))


def _is_followed_link(request: Request) -> bool:
    """Return whether a person followed a link to the page, for example from a runbook. The linking site cannot read the
    response.
    """
    headers = request.headers
    is_top = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
    return is_top and request.method == "GET" and request.url.path == "/"


async def _http_error(_request: Request, error: Exception) -> Response:
    """Respond to an unknown path or a wrong method. Starlette would call a plain function in a thread."""
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code, headers=error.headers)


def _refusal(refusal: HttpRefusal | None) -> Response | None:
    if refusal is None:
        return None
    headers = {"www-authenticate": "Bearer"} if refusal.status == 401 else {}
    return JSONResponse({"error": refusal.reason}, refusal.status, headers=headers)


def _checks_response(checks: tuple[HealthCheck, ...]) -> Response:
    lines = [f"[{'+' if check.ok else '-'}] {check.name}: {check.reason or 'ok'}\n" for check in checks]
    return PlainTextResponse("".join(lines), 200 if all(check.ok for check in checks) else 503)
