"""The JSON of /api/v1/status: the daemon, its groups and their queues (docs/http-api.md). Times are Unix seconds.

Lines of the status for both the command and the page.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from rmqd.consumer.health.group_status import last_error
from rmqd.consumer.pauses import PauseScope
from rmqd.consumer.stats.stats_snapshot import GroupSnapshot, LastError, QueueSnapshot, TopicSnapshot
from rmqd.daemon.group_history import GroupTotals, HistoryRecorder, longest_lag_seconds, total_lag, totals_of
from rmqd.daemon.groups.group_engine import HostView
from rmqd.daemon.metrics.metric_totals import ProcessSnapshot, merge_processes
from rmqd.runtime.histogram import HistogramSnapshot
from rmqd.version import __version__
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.topics import is_retry_topic

MOST_ERRORS = 10
MOST_REASONS = 20


@dataclass(frozen=True, slots=True)
class DaemonAbout:
    """The daemon itself."""

    host: str
    pid: int
    started_at: float
    now: float
    config_hash: str
    reloaded_at: float
    """When the current configuration was read."""
    reload_successful: bool
    token_required: bool
    """Whether a change needs the token. Otherwise it needs a client on the same machine."""


def status_document(view: HostView, recorder: HistoryRecorder, about: DaemonAbout) -> dict[str, Any]:
    """Return the whole status. With workers, `client_id` of the daemon and of groups is null, and each queue has its
    own.
    """
    whole = merge_processes(view.processes, view.past) if view.processes else None
    only = view.processes[0] if len(view.processes) == 1 and view.workers is None else None
    document: dict[str, Any] = {
        "version": __version__,
        "client_id": only.client.client_id if only else None,
        **asdict(about),
        "uptime_seconds": round(about.now - about.started_at, 3),
        "groups": [_group(group, view) | _figures(group, view, recorder) for group in (whole.groups if whole else ())],
    }
    if view.workers is not None:
        document["workers"] = [_worker(process) for process in view.processes]
        document["problems"] = list(view.missing)
    return document


def pause_document(view: HostView, group: str, scope: PauseScope) -> dict[str, Any]:
    """Return the result of a pause or resume: the number of this daemon's queues in its scope, and all current
    pauses.
    """
    members = [member for process in view.processes for member in process.groups if member.name == group]
    meant = sum(_is_meant(queue, scope) for member in members for queue in member.queues)
    pauses = dict.fromkeys(paused for member in members for paused in member.pauses)
    return {"queues": meant, "pauses": [asdict(paused) for paused in pauses]}


def _is_meant(queue: QueueSnapshot, scope: PauseScope) -> bool:
    # a retry queue is shown under the original topic, but is not paused with that topic
    return not (queue.is_retry and scope.topic) and scope.names(MessageQueue(queue.topic, queue.broker, queue.queue))


def _worker(process: ProcessSnapshot) -> dict[str, Any]:
    return {"worker": process.worker, "pid": process.pid, "client_id": process.client.client_id}


def _figures(group: GroupSnapshot, view: HostView, recorder: HistoryRecorder) -> dict[str, Any]:
    """Return the activity of a group, since the daemon's start and recently."""
    totals = totals_of(group)
    recent = recorder.recent(group.name, totals)
    return {
        "members": _members(group, view),
        "member_count": max(group.member_count, sum(one.name == group.name for one in _all_members(view))),
        "lag": total_lag(group),
        "lag_seconds": longest_lag_seconds(group),
        "totals": _totals(totals),
        "rates": {
            "seconds": round(recent.seconds, 3),
            **{name: round(rate, 3) for name, rate in recent.rates.items()},
        },
        "latency": _latency(totals.duration),
        "recent_latency": {"seconds": round(recent.latency_seconds, 3), **_latency(recent.latency)},
        "errors": _errors(group.topics),
        "dead_letters": _dead_letters(group.topics),
        "findings": recorder.findings(group),
    }


def _all_members(view: HostView) -> Iterable[GroupSnapshot]:
    return (group for process in view.processes for group in process.groups)


def _members(group: GroupSnapshot, view: HostView) -> list[dict[str, Any]]:
    """Return this daemon's members of the group, then the other members that brokers list."""
    here: list[dict[str, Any]] = []
    for process in view.processes:
        for member in process.groups:
            if member.name == group.name:
                here.append(
                    {
                        "client_id": member.client_id,
                        "here": True,
                        "worker": process.worker,
                        "pid": process.pid,
                        "state": member.state,
                        "ready": member.ready,
                        "queues": len(member.queues),
                    }
                )
    own = {one["client_id"] for one in here}
    return here + [{"client_id": other, "here": False} for other in group.members if other not in own]


def _totals(totals: GroupTotals) -> dict[str, int]:
    return {
        "received": totals.received,
        "handled": totals.handled,
        "acked": totals.acked,
        "failed": totals.failed,
        "retried": totals.retried,
        "expired": totals.expired,
        "dead_lettered": totals.dead_lettered,
        "corrupt": totals.corrupt,
    }


def _latency(histogram: HistogramSnapshot | None) -> dict[str, Any]:
    """Return the durations of the handler's calls, in seconds. `counts` has one more entry than `bounds`, for longer
    calls.
    """
    shown = histogram or HistogramSnapshot((), (), 0.0)
    return {
        "count": shown.count,
        "sum": round(shown.sum, 6),
        "p50": shown.quantile(0.5),
        "p99": shown.quantile(0.99),
        "bounds": list(shown.bounds),
        "counts": list(shown.counts),
    }


def _errors(topics: Iterable[TopicSnapshot]) -> list[dict[str, Any]]:
    """Return the latest errors of all topics, newest first."""
    errors: list[LastError] = sorted((one for topic in topics for one in topic.errors), key=lambda one: -one.at)
    return [_error(error) | {"trace": list(error.trace)} for error in errors[:MOST_ERRORS]]


def _error(error: LastError) -> dict[str, Any]:
    return {"at": error.at, "error": error.error, "topic": error.topic, "msg_id": error.msg_id}


def _dead_letters(topics: Iterable[TopicSnapshot]) -> dict[str, Any]:
    causes: dict[str, int] = {}
    reasons: dict[str, int] = {}
    for topic in topics:
        for cause, count in topic.dead_letters.items():
            causes[cause] = causes.get(cause, 0) + count
        for reason, count in topic.dead_letter_reasons.items():
            reasons[reason] = reasons.get(reason, 0) + count
    frequent = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
    return {
        "total": sum(causes.values()),
        "causes": causes,
        "reasons": [{"reason": reason, "count": count} for reason, count in frequent[:MOST_REASONS]],
    }


def _group(group: GroupSnapshot, view: HostView) -> dict[str, Any]:
    queues = [
        _queue(queue, member, process.worker)
        for process in view.processes
        for member in process.groups
        if member.name == group.name
        for queue in member.queues
    ]
    queues.sort(key=lambda queue: (queue["topic"], queue["is_retry"], queue["broker"], queue["queue"]))
    error = last_error(group.topics)
    return {
        "name": group.name,
        "cluster": group.cluster,
        "engine": group.engine,
        "message_model": group.message_model,
        "state": group.state,
        "paused": group.paused,
        "pauses": [asdict(scope) for scope in group.pauses],
        "concurrency": group.concurrency,
        "circuit": None if group.circuit is None else asdict(group.circuit),
        "client_id": group.client_id if view.workers is None else None,
        "failure": group.failure,
        "failing": any(problem.cause == "failing_handler" for problem in group.problems),
        "ready": group.ready,
        "not_ready_reason": group.not_ready_reason,
        "problems": [asdict(problem) for problem in group.problems],
        "per_second": {name: round(rate, 3) for name, rate in asdict(group.rates).items()},
        "last_error": None if error is None else _error(error),
        "left_out": None
        if group.batches is None
        else {"late_rows": group.batches.late_rows, "lost_messages": group.batches.lost},
        "queues": queues,
    }


def _queue(queue: QueueSnapshot, member: GroupSnapshot, worker: int | None) -> dict[str, Any]:
    return {
        "topic": queue.topic,
        "is_retry": queue.is_retry,
        "broker": queue.broker,
        "queue": queue.queue,
        "state": queue.state,
        "since": queue.since,
        "committed": queue.committed,
        "position": queue.position,
        "max": queue.max,
        "lag": queue.lag,
        "lag_seconds": queue.lag_seconds,
        "cached": queue.cached,
        "cached_bytes": queue.cached_bytes,
        "last_commit": queue.last_commit,
        "stall": None if queue.stall is None else asdict(queue.stall),
        "pulled_from": queue.pulled_from,
        "at_slave": queue.at_slave,
        "worker": worker,
        "client_id": member.client_id,
    }


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
