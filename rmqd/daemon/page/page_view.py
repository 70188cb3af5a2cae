"""The status page: renders templates from the API's documents, and serves the page's files.

All values are prepared here, so that the templates contain no logic. An unknown value is shown as a dash. The HTML is
rendered in slices, and the event loop runs between two slices, because thousands of queues take a while.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from rmqd.daemon.http.status_view import (
    GROUP_LOOKS,
    QUEUE_LOOKS,
    call_time,
    canary_line,
    cell,
    number,
    rate,
    state_word,
)
from rmqd.runtime.event_loop import in_slices
from rmqd.runtime.figures import largest_known, sum_of_known
from rmqd.runtime.own_threads import call_in_thread
from rmqd.runtime.plain_text import count_noun, format_age

STATIC_FOLDER: Final = Path(__file__).parent / "static"
TYPES: Final = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}
# The browser may load scripts, style sheets and images only from this server, and send requests only to this server.
PAGE_HEADERS: Final = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}


@cache
def asset(name: str) -> tuple[bytes, str] | None:
    """Return the content and the content type of a file in STATIC_FOLDER; None if the file does not exist."""
    known = {path.name: path for path in STATIC_FOLDER.iterdir() if path.suffix in TYPES}
    return (known[name].read_bytes(), TYPES[known[name].suffix]) if name in known else None


@cache
def static_file_url(name: str) -> str:
    """Return the URL of a file in STATIC_FOLDER. The URL changes with the content, so that browsers may cache it."""
    found = asset(name)
    assert found is not None
    return f"/static/{name}?{hashlib.sha256(found[0]).hexdigest()[:12]}"


PIECES_PER_SLICE: Final = 500  # pieces of text that jinja2 yields; it yields about fifty for one queue


def with_thousands(value: float | None) -> str:
    """Return a count with thousands separators (`12,345`); a dash for None."""
    return "-" if value is None else f"{value:,.0f}"


def moment(at: float) -> str:
    """Return a Unix time as a UTC date and time, to the second."""
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S} UTC"


def clock_time(at: float) -> str:
    """Return the UTC time of day of a Unix time, to the second."""
    return f"{datetime.fromtimestamp(at, UTC):%H:%M:%S}"


def iso(at: float) -> str:
    """Return a Unix time in ISO 8601, for the attribute `datetime` of an HTML `time` element."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")


MAX_OPEN_QUEUES: Final = 24  # if all groups together have more queues, only requested groups are expanded
CALM_STATES: Final = frozenset({"waiting", "pulling", "handling"})


def _values(status: Mapping[str, Any], config: Mapping[str, Any], opened: Collection[str] | None) -> dict[str, Any]:
    """Return the page's values for the templates. `opened`: see `StatusPage.render`."""
    groups, own, given = status["groups"], config["config"], config["given"]
    if opened is None:
        is_small = sum(len(group["queues"]) for group in groups) <= MAX_OPEN_QUEUES
        opened = [group["name"] for group in groups] if is_small else []
    views = [_group(group, own["groups"], given["groups"], group["name"] in opened) for group in groups]
    return {
        "status": status,
        "groups": views,
        "sums": _sums(views),
        "settings": _settings({key: value for key, value in own.items() if key != "groups"}, given),
        "now": status["now"],
    }


def _group(group: dict[str, Any], own: Mapping[str, Any], given: Mapping[str, Any], body: bool) -> dict[str, Any]:
    """Return one group's values for the templates. `body` is True if the group is expanded."""
    name, state = group["name"], state_word(group)
    view = {"data": group, "state": state, "look": GROUP_LOOKS.get(state, ("calm", "○")), "body": body}
    if body:
        view["topics"] = _topics(group["queues"])
        view["bars"] = _bars(group["latency"])
        view["settings"] = _settings(own.get(name, {}), given.get(name, {}))
    return view


def _topics(queues: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one entry with queues for each topic, and then one for each retry topic."""
    topics: dict[tuple[bool, str], list[dict[str, Any]]] = {}
    for queue in queues:
        topics.setdefault((queue["is_retry"], queue["topic"]), []).append(queue)
    return [
        {
            "topic": topic,
            "is_retry": is_retry,
            "key": f"{topic}{'-retry' if is_retry else ''}",
            "queues": found,
            **_backlog(found),
            "states": _counted(QUEUE_LOOKS, (queue["state"] for queue in found)),
            "has_trouble": any(queue["stall"] or queue["state"] not in CALM_STATES for queue in found),
        }
        for (is_retry, topic), found in sorted(topics.items())
    ]


def _backlog(each: Collection[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the total lag of these queues or groups, and the age of the oldest waiting message in seconds."""
    return {
        "lag": sum_of_known(one["lag"] for one in each),
        "lag_seconds": largest_known(one["lag_seconds"] for one in each),
    }


def _counted(order: Iterable[str], states: Iterable[str]) -> list[tuple[str, int]]:
    """Return how often each state occurs, sorted as in `order`. States that do not occur are omitted."""
    counts = Counter(states)
    return [(state, counts[state]) for state in order if counts[state]]


def _bars(latency: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the bars of a latency histogram, from the first to the last with calls. `share` 1 is the highest bar."""
    counts, bounds = latency["counts"], latency["bounds"]
    filled = [i for i, count in enumerate(counts) if count]
    return [
        {
            "label": f"≤ {call_time(bounds[i])}" if i < len(bounds) else f"> {call_time(bounds[-1])}",
            "count": counts[i],
            "share": counts[i] / max(counts),
        }
        for i in (range(filled[0], filled[-1] + 1) if filled else ())
    ]


def _settings(own: Mapping[str, Any], given: Mapping[str, Any]) -> list[tuple[str, str, bool]]:
    """Return each key with its value, and whether the configuration or `--set` sets the key."""
    set_keys = {key for key, _ in flat_items(given)}
    return [(key, value, key in set_keys) for key, value in flat_items(own)]


def flat_items(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield each nested key, joined with dots (`handler.options.path`), with its value as text."""
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from flat_items(value, f"{name}.")
        else:
            yield name, as_yaml(value)


def as_yaml(value: object) -> str:
    """Return a value as JSON, which YAML can read; a nonempty string without quotes."""
    return value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False, default=str)


def _sums(views: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the sums over all groups, and all active findings with their group's name, the latest finding first."""
    groups = [view["data"] for view in views]
    active = [(group["name"], one) for group in groups for one in group["findings"] if one["state"] == "active"]
    return {
        "states": _counted(reversed(GROUP_LOOKS), (view["state"] for view in views)),
        **_backlog(groups),
        **{name: sum(group["rates"][name] for group in groups) for name in ("received", "handled", "failed")},
        "dead_lettered": sum(group["totals"]["dead_lettered"] for group in groups),
        "findings": sorted(active, key=lambda one: -one[1]["since"]),
        "are_all_paused": all(finding["cause"] == "paused" for _, finding in active),
    }


class StatusPage:
    """Renders the whole status page, or only the part that the page's script updates."""

    def __init__(self) -> None:
        self._templates = Environment(
            loader=PackageLoader("rmqd.daemon.page"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._compiled: dict[str, Template] = {}
        filters = (with_thousands, number, rate, format_age, call_time, moment, clock_time, iso, canary_line)
        self._templates.filters |= {function.__name__: function for function in filters} | {"plural": count_noun}
        self._templates.globals |= {
            "cell": cell,
            "queue_looks": QUEUE_LOOKS,
            "calm_states": CALM_STATES,
            "static_file_url": static_file_url,
        }

    async def render(
        self, template: str, status: Mapping[str, Any], config: Mapping[str, Any], opened: Collection[str] | None
    ) -> bytes:
        """Return the page (`page.html`), or its main part (`live.html`), as UTF-8.

        `opened` names the expanded groups. None expands all groups if they have at most MAX_OPEN_QUEUES queues.
        """
        if not self._compiled:  # compiling all templates takes a tenth of a second
            names = self._templates.list_templates(["html"])
            self._compiled = await call_in_thread(lambda: {one: self._templates.get_template(one) for one in names})
        pieces = self._compiled[template].generate(_values(status, config, opened))
        return b"".join(["".join(found).encode() async for found in in_slices(pieces, PIECES_PER_SLICE)])
