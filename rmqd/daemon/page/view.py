"""The data of the templates, prepared from the documents of the API, so that the templates contain no logic."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from rmqd.daemon.page.words import bound

MOST_OPEN_QUEUES: Final = 24  # with more queues, groups are collapsed unless they are requested
CALM_STATES: Final = frozenset({"waiting", "pulling", "handling"})
# The style and the sign of each state. Colour alone is not accessible.
_LOOKS: Final = {
    "running": ("good", "●"),
    "starting": ("busy", "◌"),
    "draining": ("busy", "◌"),
    "stopped": ("calm", "■"),
    "paused": ("held", "‖"),
    "circuit open": ("bad", "▲"),
    "failing": ("bad", "▲"),
    "failed": ("bad", "✕"),
}
QUEUE_LOOKS: Final = {
    "stuck": ("bad", "▲"),
    "paused": ("held", "‖"),
    "locked_out": ("held", "◌"),
    "flow_controlled": ("busy", "◐"),
    "retrying": ("busy", "↻"),
    "handling": ("good", "●"),
    "pulling": ("good", "●"),
    "waiting": ("calm", "○"),
}


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
        """Unique for each table of a group."""
        return f"{self.topic}{'-retry' if self.is_retry else ''}"

    @property
    def lag(self) -> int | None:
        """The sum over all queues whose lag is known."""
        lags = [queue["lag"] for queue in self.queues if queue["lag"] is not None]
        return sum(lags) if lags else None

    @property
    def lag_seconds(self) -> float | None:
        """The age of the oldest waiting message."""
        return max((queue["lag_seconds"] for queue in self.queues if queue["lag_seconds"] is not None), default=None)

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
        return _LOOKS.get(self.state, ("calm", "○"))

    @property
    def active(self) -> list[dict[str, Any]]:
        """The active findings."""
        return [finding for finding in self.findings if finding["state"] == "active"]


def group_views(
    status: Mapping[str, Any], config: Mapping[str, Any], given: Mapping[str, Any], opened: Collection[str] | None
) -> list[GroupView]:
    """Return the groups of a status. `opened` names the expanded groups; None decides by their number of queues."""
    if opened is None:
        is_small = sum(len(group["queues"]) for group in status["groups"]) <= MOST_OPEN_QUEUES
        opened = [group["name"] for group in status["groups"]] if is_small else []
    return [_group(group, config, given, group["name"] in opened) for group in status["groups"]]


def _group(group: dict[str, Any], config: Mapping[str, Any], given: Mapping[str, Any], body: bool) -> GroupView:
    name = group["name"]
    settings = config["groups"].get(name, {})
    set_keys = {key for key, _ in flat(given["groups"].get(name, {}))}
    return GroupView(
        data=group,
        state=_state(group),
        body=body,
        topics=_topics(group["queues"]) if body else [],
        bars=_bars(group["latency"]) if body else [],
        findings=group["findings"],
        settings=[(key, value, key in set_keys) for key, value in flat(settings)] if body else [],
    )


def _state(group: dict[str, Any]) -> str:
    if group["state"] == "running" and (group.get("circuit") or {"state": "closed"})["state"] != "closed":
        return "circuit open"
    if group["failing"] and group["state"] == "running":
        return "failing"
    return "paused" if group["paused"] and group["state"] == "running" else str(group["state"])


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
            f"≤ {bound(bounds[i])}" if i < len(bounds) else f"> {bound(bounds[-1])}",
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
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "null"
    if isinstance(value, list):
        return f"[{', '.join(written(one) for one in value)}]"
    if isinstance(value, Mapping):
        return "{}"
    return '""' if value == "" else str(value)


@dataclass(frozen=True, slots=True)
class Sums:
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


def sums(groups: list[GroupView]) -> Sums:
    lags = [group.data["lag"] for group in groups if group.data["lag"] is not None]
    ages = [group.data["lag_seconds"] for group in groups if group.data["lag_seconds"] is not None]
    counts = {state: sum(group.state == state for group in groups) for state in reversed(_LOOKS)}
    found = [(group.data["name"], finding) for group in groups for finding in group.active]
    return Sums(
        states=[(state, count) for state, count in counts.items() if count],
        lag=sum(lags) if lags else None,
        lag_seconds=max(ages, default=None),
        received=sum(group.data["rates"]["received"] for group in groups),
        handled=sum(group.data["rates"]["handled"] for group in groups),
        failed=sum(group.data["rates"]["failed"] for group in groups),
        dead_lettered=sum(group.data["totals"]["dead_lettered"] for group in groups),
        findings=sorted(found, key=lambda one: -one[1]["since"]),
    )
