"""The status as one page for a person with a browser: no scripts, nothing loaded from elsewhere."""

from __future__ import annotations

from html import escape
from typing import Any

from rmqd.daemon.http.status_text import cell, last_error_line, problem_line, rates_line, stall_lines

REFRESH_SECONDS = 5
_COLUMNS = tuple("topic broker queue state committed max lag lag_seconds cached worker client_id".split())
_STYLE = (
    "body{font:14px system-ui,sans-serif;margin:2em;color-scheme:light dark}table{border-collapse:collapse}"
    "td,th{padding:.2em .8em;text-align:left;border-bottom:1px solid #8884}.failed,.failing,.stuck,.error{color:#c00}"
)


def status_page(status: dict[str, Any]) -> str:
    """The page for the document of /api/v1/status."""
    groups = "".join(_group(group) for group in status["groups"]) or "<p>No groups are configured.</p>"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>rmqd</title>'
        f'<meta http-equiv="refresh" content="{REFRESH_SECONDS}"><style>{_STYLE}</style></head><body>'
        f"<h1>rmqd {escape(status['version'])}</h1>{groups}"
        f'<p><a href="/api/v1/status">status</a> <a href="/metrics">metrics</a> <a href="/readyz">ready?</a></p>'
        f"</body></html>"
    )


def _group(group: dict[str, Any]) -> str:
    state = "failing" if group["failing"] else "paused" if group["paused"] else group["state"]
    reason = group["failure"] or group["not_ready_reason"]
    model = " broadcasting" if group["message_model"] == "broadcasting" else ""
    model += " on Spark" if group["engine"] == "spark" else ""
    head = f"<h2>{escape(group['name'])} <small class='{escape(state)}'>{escape(state)}{model}</small></h2>"
    why = f"<p class='{escape(state)}'>{escape(reason)}</p>" if reason else ""
    told = [*map(problem_line, group["problems"]), *stall_lines(group["queues"])]
    why += "".join(f"<p class='stuck'>{escape(line)}</p>" for line in told)
    why = _results(group) + why
    titles = "".join(f"<th>{escape(column)}</th>" for column in _COLUMNS)
    rows = "".join(_row(queue) for queue in group["queues"])
    return f"{head}{why}<table><tr>{titles}</tr>{rows}</table>"


def _results(group: dict[str, Any]) -> str:
    error = last_error_line(group)
    return f"<p>{escape(rates_line(group))}</p>" + (f"<p class='error'>{escape(error)}</p>" if error else "")


def _row(queue: dict[str, Any]) -> str:
    cells = "".join(f"<td>{escape(cell(queue, column))}</td>" for column in _COLUMNS)
    return f"<tr class='{escape(queue['state'])}'>{cells}</tr>"
