"""The status page: renders templates from the API's documents, and serves the page's files.

The data of the templates is prepared here, so that they contain no logic. Unknown values are a dash. The text is made
in slices, with turns of the event loop between them, because thousands of queues take a while.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from rmqd.consumer.health import group_problems
from rmqd.daemon.http.status_view import (
    GROUP_LOOKS,
    QUEUE_LOOKS,
    age,
    canary_line,
    cell,
    number,
    rate,
    state_word,
    took,
)
from rmqd.runtime.event_loop import slices
from rmqd.runtime.figures import largest_known, sum_of_known
from rmqd.runtime.own_threads import in_own_thread

FOLDER: Final = Path(__file__).parent / "static"
TYPES: Final = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
# One script, one style sheet and one picture, all from this server; the page sends no requests elsewhere.
PAGE_HEADERS: Final = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}


@cache
def asset(name: str) -> tuple[bytes, str] | None:
    """Return the content and the type of a file; None if there is no such file."""
    known = {path.name: path for path in FOLDER.iterdir() if path.suffix in TYPES}
    return (known[name].read_bytes(), TYPES[known[name].suffix]) if name in known else None


@cache
def address_of(name: str) -> str:
    """Return the URL of a file. It changes with the content, so that browsers may cache it."""
    found = asset(name)
    assert found is not None
    return f"/static/{name}?{hashlib.sha256(found[0]).hexdigest()[:12]}"


PIECES: Final = 500  # pieces of text in a slice; a queue has about fifty


def whole(value: float | None) -> str:
    """Return a count with separated thousands."""
    return "-" if value is None else f"{value:,.0f}"


def moment(at: float) -> str:
    """Return a date and time, to the second."""
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S} UTC"


def clock_time(at: float) -> str:
    """Return the time of day, to the second."""
    return f"{datetime.fromtimestamp(at, UTC):%H:%M:%S}"


def iso(at: float) -> str:
    """Return a time in ISO 8601, for the attribute `datetime` of an HTML `time` element."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")


MAX_OPEN_QUEUES: Final = 24  # groups with more queues are collapsed unless they are requested
CALM_STATES: Final = frozenset({"waiting", "pulling", "handling"})


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of a histogram; `share` is its height relative to the highest bar."""

    label: str
    count: int
    share: float


@dataclass(slots=True)
class TopicQueues:
    """The queues of one topic, or its queues of the retry topic."""

    topic: str
    is_retry: bool
    queues: list[dict[str, Any]] = field(default_factory=list)

    @property
    def key(self) -> str:
        """The unique name of this table within its group."""
        return f"{self.topic}{'-retry' if self.is_retry else ''}"

    @property
    def lag(self) -> int | None:
        """The sum over all queues whose lag is known."""
        return sum_of_known(queue["lag"] for queue in self.queues)

    @property
    def lag_seconds(self) -> float | None:
        """The age of the oldest waiting message."""
        return largest_known(queue["lag_seconds"] for queue in self.queues)

    @property
    def states(self) -> list[tuple[str, int]]:
        """The number of queues in each state, most urgent first."""
        counts = {state: sum(queue["state"] == state for queue in self.queues) for state in QUEUE_LOOKS}
        return [(state, count) for state, count in counts.items() if count]

    @property
    def has_trouble(self) -> bool:
        """Whether a queue is in a state that needs attention."""
        return any(queue["stall"] or queue["state"] not in CALM_STATES for queue in self.queues)


@dataclass(frozen=True, slots=True)
class GroupView:
    """One group on the page; `body` is whether it is expanded."""

    data: dict[str, Any]
    state: str
    body: bool
    topics: list[TopicQueues]
    bars: list[Bar]
    findings: list[dict[str, Any]]
    settings: list[tuple[str, str, bool]]

    @property
    def look(self) -> tuple[str, str]:
        """The style of its state, and its sign."""
        return GROUP_LOOKS.get(self.state, ("calm", "○"))

    @property
    def active(self) -> list[dict[str, Any]]:
        """The active findings."""
        return [finding for finding in self.findings if finding["state"] == "active"]


def group_views(
    status: Mapping[str, Any], config: Mapping[str, Any], given: Mapping[str, Any], opened: Collection[str] | None
) -> list[GroupView]:
    """Return the groups of a status. `opened` names the expanded groups; None decides by their number of queues."""
    if opened is None:
        is_small = sum(len(group["queues"]) for group in status["groups"]) <= MAX_OPEN_QUEUES
        opened = [group["name"] for group in status["groups"]] if is_small else []
    return [_group(group, config, given, group["name"] in opened) for group in status["groups"]]


def _group(group: dict[str, Any], config: Mapping[str, Any], given: Mapping[str, Any], body: bool) -> GroupView:
    name = group["name"]
    settings = config["groups"].get(name, {})
    set_keys = {key for key, _ in flat(given["groups"].get(name, {}))}
    return GroupView(
        data=group,
        state=state_word(group),
        body=body,
        topics=_topics(group["queues"]) if body else [],
        bars=_bars(group["latency"]) if body else [],
        findings=group["findings"],
        settings=[(key, value, key in set_keys) for key, value in flat(settings)] if body else [],
    )


def _topics(queues: list[dict[str, Any]]) -> list[TopicQueues]:
    topics: dict[tuple[str, bool], TopicQueues] = {}
    for queue in queues:
        key = (queue["topic"], queue["is_retry"])
        topics.setdefault(key, TopicQueues(*key)).queues.append(queue)
    return [topics[key] for key in sorted(topics, key=lambda key: (key[1], key[0]))]


def _bars(latency: Mapping[str, Any]) -> list[Bar]:
    """Return the histogram from the first to the last range with calls."""
    counts, bounds = latency["counts"], latency["bounds"]
    filled = [i for i, count in enumerate(counts) if count]
    if not filled:
        return []
    highest = max(counts)
    return [
        Bar(
            f"≤ {took(bounds[i])}" if i < len(bounds) else f"> {took(bounds[-1])}",
            counts[i],
            counts[i] / highest,
        )
        for i in range(filled[0], filled[-1] + 1)
    ]


def flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield keys with dots, and values as text: `handler.options.path`. Empty values are shown in YAML."""
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{name}.")
        else:
            yield name, written(value)


def written(value: object) -> str:
    """Return a value roughly as YAML."""
    return value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False, default=str)


@dataclass(frozen=True, slots=True)
class GroupSums:
    """The sums over all groups."""

    states: list[tuple[str, int]]
    lag: int | None
    lag_seconds: float | None
    received: float
    handled: float
    failed: float
    dead_lettered: int
    findings: list[tuple[str, dict[str, Any]]]
    """The group and its active finding, latest first."""

    @property
    def is_calm(self) -> bool:
        """Whether all findings are pauses by an operator."""
        return all(finding["cause"] == "paused" for _, finding in self.findings)


def sums(groups: list[GroupView]) -> GroupSums:
    counts = {state: sum(group.state == state for group in groups) for state in reversed(GROUP_LOOKS)}
    found = [(group.data["name"], finding) for group in groups for finding in group.active]
    return GroupSums(
        states=[(state, count) for state, count in counts.items() if count],
        lag=sum_of_known(group.data["lag"] for group in groups),
        lag_seconds=largest_known(group.data["lag_seconds"] for group in groups),
        received=sum(group.data["rates"]["received"] for group in groups),
        handled=sum(group.data["rates"]["handled"] for group in groups),
        failed=sum(group.data["rates"]["failed"] for group in groups),
        dead_lettered=sum(group.data["totals"]["dead_lettered"] for group in groups),
        findings=sorted(found, key=lambda one: -one[1]["since"]),
    )


class StatusPage:
    """The page, and the part that its script updates."""

    def __init__(self) -> None:
        self._templates = Environment(
            loader=PackageLoader("rmqd.daemon.page"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._compiled: dict[str, Template] = {}
        filters = (whole, number, rate, age, took, moment, clock_time, iso, canary_line)
        self._templates.filters |= {function.__name__: function for function in filters} | {
            "plural": group_problems.count
        }
        self._templates.globals |= {
            "cell": cell,
            "queue_looks": QUEUE_LOOKS,
            "calm_states": CALM_STATES,
            "address_of": address_of,
        }

    async def render(
        self, template: str, status: Mapping[str, Any], config: Mapping[str, Any], opened: Collection[str] | None
    ) -> bytes:
        """Return the page (`page.html`), or its main part (`live.html`).

        `opened` names the expanded groups; None decides by their number of queues.
        """
        if not self._compiled:  # takes a tenth of a second
            names = self._templates.list_templates(["html"])
            self._compiled = await in_own_thread(lambda: {one: self._templates.get_template(one) for one in names})
        pieces = self._compiled[template].generate(_values(status, config, opened))
        return b"".join(["".join(found).encode() async for found in slices(pieces, PIECES)])


def _values(status: Mapping[str, Any], config: Mapping[str, Any], opened: Collection[str] | None) -> dict[str, Any]:
    groups = group_views(status, config["config"], config["given"], opened)
    set_keys = {key for key, _ in flat(config["given"])}
    rest = {key: value for key, value in config["config"].items() if key != "groups"}
    return {
        "status": status,
        "groups": groups,
        "sums": sums(groups),
        "settings": [(key, value, key in set_keys) for key, value in flat(rest)],
        "now": status["now"],
    }
