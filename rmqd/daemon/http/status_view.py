"""The texts and colours of the status, as `rmqd status`, `rmqd top`, the status page and the demo show them.

All functions use the JSON document of /api/v1/status.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from rmqd.runtime.plain_text import count_noun, format_age
from rmqd.wire.topics import is_retry_topic

Fields = Mapping[str, Any]
"""A group or a queue of the status document."""

# For each state its colour class, and a sign, because colour alone is not accessible.
GROUP_LOOKS: Final = {
    "running": ("good", "●"),
    "starting": ("busy", "◌"),
    "draining": ("busy", "◌"),
    "stopped": ("calm", "■"),
    "paused": ("held", "‖"),
    "circuit open": ("bad", "▲"),
    "circuit half open": ("bad", "▲"),
    "stuck": ("bad", "▲"),
    "failing": ("bad", "▲"),
    "problem": ("bad", "▲"),
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
# The terminal's own colours. White, black and yellow are left out, because they are unreadable on some backgrounds.
_STYLES: Final = {"good": "green", "busy": "magenta", "held": "magenta", "bad": "bold red"}


def style_of(state: str, calm: str = "") -> str:
    """Return the terminal style of a group's or queue's state; `calm` for states that need no colour."""
    look, _ = (GROUP_LOOKS | QUEUE_LOOKS).get(state, ("calm", ""))
    return _STYLES.get(look, calm)


def state_text(group: Fields) -> str:
    """Return a group's state with its restrictions: paused, failing handler, open circuit, all queues stuck, and the
    causes of other problems.
    """
    queues = group["queues"]
    is_stuck = bool(queues) and all(queue["state"] == "stuck" for queue in queues)
    circuit = group.get("circuit")
    more = (
        ("paused", group["paused"]),
        ("failing", group["failing"]),
        ("circuit open", circuit is not None and circuit["state"] == "open"),
        ("circuit half open", circuit is not None and circuit["state"] == "half_open"),
        ("every queue is stuck", is_stuck),
    )
    others = [one["cause"] for one in group["problems"] if one["cause"] not in ("failing_handler", "circuit_open")]
    return ", ".join([group["state"], *(text for text, applies in more if applies), *others])


def is_alarming(group: dict[str, Any]) -> bool:
    """Return whether an operator should check the group: it failed, has a problem, or all its queues are stuck."""
    return bool(group["failure"]) or state_text(group | {"paused": False}) != group["state"]


def rates_line(group: dict[str, Any]) -> str:
    """Return one line with the rates of the handler's results over the last minute."""
    return ", ".join(f"{name.replace('_', '-')} {rate:.1f}/s" for name, rate in group["per_second"].items())


def last_error_line(group: dict[str, Any]) -> str:
    """Return the handler's last error with its time; empty if there was none."""
    error = group["last_error"]
    if error is None:
        return ""
    at = datetime.fromtimestamp(error["at"], UTC)
    return f"last error: {at:%Y-%m-%d %H:%M:%S} UTC, {error['topic']}, message {error['msg_id']}: {error['error']}"


def skipped_line(group: dict[str, Any]) -> str:
    """Return the number of messages that a group has skipped since its start; empty if there are none."""
    left_out = group["left_out"] or {}
    counts = (
        (left_out.get("late_rows"), "late row"),
        (left_out.get("lost_messages"), "lost message"),
        (group.get("totals", {}).get("deduplicated"), "repeated message"),
    )
    texts = [count_noun(count, what) for count, what in counts if count]
    return f"skipped since the start: {', '.join(texts)}" if texts else ""


def canary_line(group: dict[str, Any]) -> str:
    """Return one line about the group's canary and its results; empty if the group has no canary."""
    one = group.get("canary")
    if one is None:
        return ""
    results = ", ".join(f"{count} {name.replace('_', '-')}" for name, count in one["results"].items() if count)
    differing = f", {one['differing']} decided differently" if "differing" in one else ""
    state = f"switched off: {one['failure']}" if one["failure"] else results or "no messages yet"
    share = f"{one['share'] * 100:g}% by {one['by']}"
    return f"{one['mode']} canary {one['plugin']}, {share}: {state}{differing}, p50 {call_time(one['latency']['p50'])}"


def problem_line(problem: dict[str, Any]) -> str:
    """Return a problem's cause, evidence and next step."""
    return f"{problem['cause']}: {problem['evidence']}. Next: {problem['next']}"


def stall_lines(queues: Iterable[Fields]) -> list[str]:
    """Return the stalled queues with their problems. Queues with the same problem share a line."""
    together = _names_by(queues, lambda queue: queue["stall"] and problem_line(queue["stall"]))
    return [f"{names} stalled: {problem}" for problem, names in together.items()]


def slave_lines(queues: Iterable[Fields]) -> list[str]:
    """Return the queues that are pulled from a slave, one line for each slave."""
    slaves = _names_by(queues, lambda queue: queue["at_slave"] and queue["pulled_from"])
    return [f"{names} read from the slave {address}" for address, names in slaves.items()]


def _names_by(queues: Iterable[Fields], text_of: Callable[[Fields], str | None]) -> dict[str, str]:
    """Return the queues' names by the text that `text_of` returns. Queues without a text are omitted."""
    names: dict[str, list[str]] = {}
    for queue in queues:
        if text := text_of(queue):
            names.setdefault(text, []).append(f"{cell(queue, 'topic')}@{queue['broker']}:{queue['queue']}")
    return {text: ", ".join(found) for text, found in names.items()}


def cell(queue: Fields, column: str) -> str:
    """Return the text of one cell in the table of queues; a dash if the value is unknown."""
    value = queue[column]
    if value is None:
        return "-"
    if column == "queue" and value < 0:
        return "any"  # the broker chooses queues if the group pops
    if column == "topic" and queue["is_retry"] and not is_retry_topic(value):
        return f"{value} (retry)"  # the retry topic's queue, shown under the topic of its messages
    return f"{value:.1f}" if isinstance(value, float) else str(value)


def outcome_text(report: dict[str, Any]) -> str:
    """Return the outcome of a pause or a resume as text. The text warns if no queue matches the paused scope, which
    may be a typing error.
    """
    scope, result = written_scope(report["scope"]), report["result"]
    line = f"{report['group']}: {scope} is {result}" if scope else f"{report['group']} is {result}"
    if result == "paused" and scope:
        few = f"{line} ({report['queues']} of the daemon's queues)"
        return few if report["queues"] else f"{line}; the daemon has no such queue now, and will not consume one"
    still = "; ".join(written_scope(pause) or "the whole group" for pause in report["pauses"])
    return f"{line}; still paused: {still}" if still and result == "resumed" else line


def written_scope(scope: dict[str, Any]) -> str:
    """Return a pause's scope as text, such as `topic orders, queue 3`; empty for the whole group."""
    return ", ".join(f"{name} {value}" for name, value in scope.items() if value is not None)


def first_problem_text(group: Fields) -> str:
    """Return the first problem of a group; empty if there is none."""
    if group["failure"] or group["not_ready_reason"]:
        return str(group["failure"] or group["not_ready_reason"])
    active = [finding for finding in group["findings"] if finding["state"] == "active"]
    if active:
        return problem_line(active[0])
    return f"last error: {group['last_error']['error']}" if group["last_error"] and group["rates"]["failed"] else ""


def state_word(group: Fields) -> str:
    """Return a group's state in a few words. A pause by an operator is shown before any problem."""
    told = state_text(group)
    for word in ("paused", "circuit open", "circuit half open", "failing", "stuck"):
        if group["state"] == "running" and word in told:
            return word
    return "problem" if group["state"] == "running" and group["problems"] else str(group["state"])


def number(value: int | None) -> str:
    """Return a count in at most six characters: `12,345`, `123k`, `1.2M`."""
    if value is None:
        return "-"
    for size, unit in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if value >= max(size, 10**5):
            return f"{value / size:.1f}{unit}" if value < 10 * size else f"{value // size:,}{unit}"
    return f"{value:,}"


def rate(per_second: float) -> str:
    """Return a rate: `0`, `0.4`, `12.3`, `1,234`."""
    if per_second == 0:
        return "0"
    if per_second >= 9999.5:
        return f"{per_second / 1000:.1f}k" if per_second < 99_950 else number(round(per_second))
    return f"{per_second:.1f}" if per_second < 99.95 else f"{round(per_second):,}"


def call_time(seconds: float | None) -> str:
    """Return the duration of a call: `0.2ms`, `12ms`, `1.2s`, `35s`."""
    if seconds is None:
        return "-"
    if seconds < 0.01:
        return f"{seconds * 1000:.1f}ms"
    if seconds < 1:
        return f"{seconds * 1000:.0f}ms"
    return f"{seconds:.1f}s" if seconds < 10 else format_age(seconds)


def _whole(value: int | None) -> str:
    return "-" if value is None else str(value)


@dataclass(frozen=True, slots=True)
class StatusColumn:
    """One column in a list of groups or queues. `width`, in characters, includes the gap before the column. The first
    column takes the remaining width.
    """

    key: str
    """The field's name in the status document, and the column's title in `rmqd status`."""
    title: str
    """The title in `rmqd top`."""
    width: int
    text: Callable[[Any], str] = str
    value: Callable[[Fields], Any] | None = None
    """Returns the value to show and to sort by. None if the value is the field `key`."""
    from_width: int = 0
    """The column is shown if the terminal has at least this width, in characters."""
    is_text: bool = False
    """Texts are left-aligned and sorted from A to Z; numbers from the greatest."""

    def of(self, row: Fields) -> Any:
        """Return this column's value for a group or queue."""
        return row[self.key] if self.value is None else self.value(row)

    def cell(self, row: Fields) -> str:
        """Return this column's text for a group or queue."""
        return self.text(self.of(row))


GROUP_COLUMNS: Final = (
    StatusColumn("name", "GROUP", 0, is_text=True),
    StatusColumn("state", "STATE", 9, value=state_word, is_text=True),
    StatusColumn("received", "IN/S", 6, rate, lambda group: group["rates"]["received"]),
    StatusColumn("handled", "OUT/S", 6, rate, lambda group: group["rates"]["handled"]),
    StatusColumn("failed", "FAIL", 6, rate, lambda group: group["rates"]["failed"], from_width=100),
    StatusColumn("retried", "RETRY", 6, rate, lambda group: group["rates"]["retried"]),
    StatusColumn("lag", "LAG", 7, number),
    StatusColumn("lag_seconds", "AGE", 7, format_age),
    StatusColumn("p50", "P50", 6, call_time, lambda group: group["recent_latency"]["p50"]),
    StatusColumn("p99", "P99", 6, call_time, lambda group: group["recent_latency"]["p99"]),
    StatusColumn("dead_letters", "DEAD", 6, number, lambda group: group["dead_letters"]["total"]),
    StatusColumn("queues", "QUEUES", 7, number, lambda group: len(group["queues"]), from_width=100),
    StatusColumn("member_count", "MEMBERS", 8, number, from_width=110),
)
QUEUE_COLUMNS: Final = (
    StatusColumn("topic", "TOPIC", 0, value=lambda queue: cell(queue, "topic"), is_text=True),
    StatusColumn("broker", "BROKER", 12, is_text=True),
    StatusColumn("queue", "QUEUE", 7, lambda value: "any" if value < 0 else str(value)),
    StatusColumn("state", "STATE", 17, lambda value: value.replace("_", " "), is_text=True),
    StatusColumn("committed", "COMMITTED", 11, _whole),
    StatusColumn("max", "MAX", 11, _whole, from_width=100),
    StatusColumn("lag", "LAG", 7, number),
    StatusColumn("lag_seconds", "AGE", 7, format_age),
    StatusColumn("cached", "CACHED", 7, number, from_width=90),
    StatusColumn("worker", "WORKER", 7, _whole, from_width=100),
)
