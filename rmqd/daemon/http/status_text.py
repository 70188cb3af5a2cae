"""Lines of the status for both the command and the page."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from rmqd.wire.topics import is_retry_topic


def state_text(group: dict[str, Any]) -> str:
    """Return a group's state with its restrictions: paused, failing handler, open circuit, or all queues stuck."""
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
    return ", ".join([group["state"], *(text for text, applies in more if applies)])


def is_alarming(group: dict[str, Any]) -> bool:
    """Return whether an operator should check the group: it failed, its handler fails, or all queues are stuck."""
    return bool(group["failure"]) or state_text(group | {"paused": False}) != group["state"]


def rates_line(group: dict[str, Any]) -> str:
    """Return the results of the handler's attempts over the last minute."""
    return ", ".join(f"{name.replace('_', '-')} {rate:.1f}/s" for name, rate in group["per_second"].items())


def last_error_line(group: dict[str, Any]) -> str:
    """Return the handler's last error with its time; empty if there was none."""
    error = group["last_error"]
    if error is None:
        return ""
    at = datetime.fromtimestamp(error["at"], UTC)
    return f"last error: {at:%Y-%m-%d %H:%M:%S} UTC, {error['topic']}, message {error['msg_id']}: {error['error']}"


def left_out_line(group: dict[str, Any]) -> str:
    """Return the number of messages that a group on Spark has skipped since its start; empty if there are none."""
    left_out = group["left_out"] or {}
    counts = ((left_out.get("late_rows"), "late rows"), (left_out.get("lost_messages"), "lost messages"))
    texts = [f"{count} {what}" for count, what in counts if count]
    return f"skipped since the start: {', '.join(texts)}" if texts else ""


def problem_line(problem: dict[str, Any]) -> str:
    """Return a problem's cause, evidence and next step."""
    return f"{problem['cause']}: {problem['evidence']}. Next: {problem['next']}"


def stall_lines(queues: list[dict[str, Any]]) -> list[str]:
    """Return the stalled queues with their problem. Queues with the same problem share a line."""
    together: dict[str, list[str]] = {}
    for queue in queues:
        if queue["stall"] is not None:
            name = f"{cell(queue, 'topic')}@{queue['broker']}:{queue['queue']}"
            together.setdefault(problem_line(queue["stall"]), []).append(name)
    return [f"{', '.join(names)} stalled: {problem}" for problem, names in together.items()]


def slave_lines(queues: list[dict[str, Any]]) -> list[str]:
    """Return the queues that are pulled from a slave, one line for each slave."""
    slaves: dict[str, list[str]] = {}
    for queue in queues:
        if queue["at_slave"]:
            name = f"{cell(queue, 'topic')}@{queue['broker']}:{queue['queue']}"
            slaves.setdefault(queue["pulled_from"], []).append(name)
    return [f"{', '.join(names)} read from the slave {address}" for address, names in slaves.items()]


def cell(queue: dict[str, Any], column: str) -> str:
    """Return the text of a queue in a column of the table of queues."""
    value = queue[column]
    if value is None:
        return "-"
    if column == "queue" and value < 0:
        return "any"  # the broker chooses queues if the group pops
    if column == "topic" and queue["is_retry"] and not is_retry_topic(value):
        return f"{value} (retry)"  # the retry topic's queue, shown under the topic of its messages
    return f"{value:.1f}" if isinstance(value, float) else str(value)
