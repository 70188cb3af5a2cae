"""The JSON of /api/v1/status: the daemon, its groups and their queues (docs/http-api.md). Times are Unix seconds."""

from __future__ import annotations

import json
import platform
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import reduce
from operator import attrgetter, itemgetter
from typing import Any, Final

from rmqd.consumer.pauses import PauseScope
from rmqd.consumer.stats.counters import totals_of
from rmqd.consumer.stats.stats_snapshot import GroupSnapshot, LastError, QueueSnapshot, TopicSnapshot
from rmqd.daemon.group_history import GroupTotals, HistoryRecorder, longest_lag_seconds, total_lag
from rmqd.daemon.groups.group_engine import HostSnapshot, ProcessSnapshot, merge_processes
from rmqd.runtime.event_loop import in_slices
from rmqd.runtime.figures import add_each, gauge
from rmqd.runtime.histogram import HistogramSnapshot
from rmqd.version import __version__
from rmqd.wire.core import core_name
from rmqd.wire.message_queue import MessageQueue

MAX_ERRORS: Final = 10
MAX_REASONS: Final = 20
# The fields of a queue in the status. The excluded fields are shown only as metrics.
_QUEUE_KEYS: Final = [one.name for one in fields(QueueSnapshot) if one.name not in ("handling", "span", "popped")]
# The function is generated from the names of the fields. Its dict literal takes half the time of dict(zip(...)).
_ROW: Final = (
    f"lambda queue: {{{', '.join(f'{key!r}: queue.{key}' for key in _QUEUE_KEYS)}, 'worker': 0, 'client_id': 0}}"
)
_queue_row: Final[Callable[[QueueSnapshot], dict[str, Any]]] = eval(_ROW)
_GROUP_KEYS: Final = (
    "name", "cluster", "engine", "message_model", "state", "paused", "concurrency", "failure", "ready",
    "not_ready_reason",
)  # fmt: skip
_queue_place: Final = attrgetter("topic", "is_retry", "broker", "queue")


@dataclass(frozen=True, slots=True)
class DaemonInfo:
    """The status of the daemon itself, without its groups."""

    host: str
    pid: int
    started_at: float
    now: float
    config_hash: str = gauge(
        "rmqd_config_info",
        "Always 1; the label is a hash of the current configuration without its secrets.",
        by="hash",
        read=lambda about: {about.config_hash: 1},
    )
    reloaded_at: float = gauge(
        "rmqd_config_last_reload_success_timestamp_seconds", "When a configuration was last applied (Unix time)."
    )
    reload_successful: bool = gauge(
        "rmqd_config_last_reload_successful", "1 if the last load or reload of the configuration succeeded, else 0."
    )
    token_required: bool = False
    """Whether requests that change something need the token. If not, their client must be on this machine."""
    problems: tuple[str, ...] = ()
    """Problems of the daemon itself, such as a group that is paused because its changed code cannot be loaded."""
    version: str = gauge(
        "rmqd_build_info",
        "Always 1; the labels say which rmqd, Python and decoding core run.",
        by="version python core",
        read=lambda about: {(about.version, platform.python_version(), core_name()): 1},
        default=__version__,
    )


async def status_document(view: HostSnapshot, recorder: HistoryRecorder, about: DaemonInfo) -> dict[str, Any]:
    """Return the whole status. With `--workers`, the `client_id` of the daemon and of each group is null, because each
    worker has its own. Queues are converted in slices, so that thousands of them do not block the event loop.
    """
    whole = merge_processes(view.processes, view.past) if view.processes else None
    only = view.processes[0] if len(view.processes) == 1 and view.workers is None else None
    document: dict[str, Any] = {
        "client_id": only.client.client_id if only else None,
        **asdict(about),
        "uptime_seconds": round(about.now - about.started_at, 3),
        "groups": [await _group(group, view, recorder) for group in (whole.groups if whole else ())],
        "problems": [*about.problems, *view.missing, *(whole.client.problems if whole else ())],
    }
    if view.workers is not None:
        document["workers"] = [
            {"worker": process.worker, "pid": process.pid, "client_id": process.client.client_id}
            for process in view.processes
        ]
    return document


async def status_json(document: Mapping[str, Any]) -> bytes:
    """Return the status as JSON text. Queues are written in slices, so that they do not block the event loop."""
    groups = []
    for group in document["groups"]:
        queues = [_text(found)[1:-1] async for found in in_slices(group["queues"])]
        groups.append(_text_with(group, "queues", queues))
    return _text_with(document, "groups", groups).encode()


def _text_with(fields: Mapping[str, Any], last: str, texts: list[str]) -> str:
    """Return `fields` as a JSON object. The value of the key `last` is an array of `texts`, which are already JSON."""
    others = {key: value for key, value in fields.items() if key != last}
    return f'{_text(others)[:-1]},"{last}":[{",".join(texts)}]}}'


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def pause_document(view: HostSnapshot, group: str, scope: PauseScope) -> dict[str, Any]:
    """Return the result of a pause or resume: the number of this daemon's queues in `scope`, and all pauses."""
    members = [member for _, member in _members_of(group, view)]
    meant = sum(_is_meant(queue, scope) for member in members for queue in member.queues)
    pauses = dict.fromkeys(paused for member in members for paused in member.pauses)
    return {"queues": meant, "pauses": [asdict(paused) for paused in pauses]}


def _members_of(group: str, view: HostSnapshot) -> list[tuple[ProcessSnapshot, GroupSnapshot]]:
    """Return this daemon's members of a group, each with its process."""
    return [(process, member) for process in view.processes for member in process.groups if member.name == group]


def _is_meant(queue: QueueSnapshot, scope: PauseScope) -> bool:
    # a retry queue is shown under the topic of its messages, but a pause of that topic does not pause the retry queue
    return not (queue.is_retry and scope.topic) and scope.includes(MessageQueue(queue.topic, queue.broker, queue.queue))


async def _group(group: GroupSnapshot, view: HostSnapshot, recorder: HistoryRecorder) -> dict[str, Any]:
    """Return the JSON of a group: its state, its recent activity, its totals since the daemon's start, its queues."""
    members = _members_of(group.name, view)
    owners = defaultdict[tuple[object, ...], list[tuple[float, ProcessSnapshot, GroupSnapshot]]](list)
    for process, member in members:
        async for found in in_slices(member.queues):
            for queue in found:
                owners[_queue_place(queue)].append((queue.since, process, member))
    ordered = sorted(group.queues, key=_queue_place)
    queues = [_queue(queue, owners[_queue_place(queue)]) async for part in in_slices(ordered) for queue in part]
    errors = (error for topic in group.topics for error in topic.errors[-1:])
    last_error = max(errors, key=lambda error: error.at, default=None)
    totals = GroupTotals.of(group)
    recent = recorder.recent_activity(group.name, totals)
    return {key: getattr(group, key) for key in _GROUP_KEYS} | {
        "pauses": [asdict(scope) for scope in group.pauses],
        "circuit": None if group.circuit is None else asdict(group.circuit),
        "canary": _canary(group),
        "client_id": group.client_id if view.workers is None else None,
        "failing": any(problem.cause == "failing_handler" for problem in group.problems),
        "problems": [asdict(problem) for problem in group.problems],
        "per_second": _rounded(group.rates),
        "last_error": None if last_error is None else _error(last_error),
        "left_out": None
        if group.batches is None
        else {"late_rows": group.batches.late_rows, "lost_messages": group.batches.lost},
        "queues": queues,
        "members": _members(group, members),
        "member_count": max(group.member_count, len(members)),
        "lag": total_lag(group),
        "lag_seconds": longest_lag_seconds(group),
        "totals": dict(totals.counts),
        "rates": _rounded({"seconds": recent.seconds, **recent.rates}),
        "latency": _latency(totals.duration),
        "recent_latency": {"seconds": round(recent.latency_seconds, 3), **_latency(recent.latency)},
        "errors": _errors(group.topics),
        "dead_letters": _dead_letters(group.topics),
        "findings": recorder.findings(group),
    }


def _canary(group: GroupSnapshot) -> dict[str, Any] | None:
    """Return the group's canary with its results since the daemon's start; None if the group has no canary."""
    one = group.canary
    if one is None:
        return None
    topics = [topic for topic in group.topics if topic.variant]
    shadow = {"differing": one.differing, "results": one.shadowed} if one.mode == "shadow" else {}
    results = {name: totals_of(topics)[name] for name in ("acked", "retried", "expired", "dead_lettered")}
    durations = [one.duration] if one.mode == "shadow" else [topic.handler_duration for topic in topics]
    known = ("plugin", "share", "by", "mode", "failure")
    return {name: getattr(one, name) for name in known} | {
        "results": results,
        "latency": _latency(reduce(HistogramSnapshot.merge, durations) if durations else None),
        **shadow,
    }


def _queue(queue: QueueSnapshot, owners: Sequence[tuple[float, ProcessSnapshot, GroupSnapshot]]) -> dict[str, Any]:
    """Return the JSON of a queue with the worker that acquired it last; without a worker if several workers pop it."""
    _, process, member = max(owners, key=itemgetter(0))
    is_shared = queue.popped and len(owners) > 1
    shown = _queue_row(queue)
    shown["worker"], shown["client_id"] = (None, None) if is_shared else (process.worker, member.client_id)
    if queue.stall is not None:
        shown["stall"] = asdict(queue.stall)
    return shown


def _members(group: GroupSnapshot, here: list[tuple[ProcessSnapshot, GroupSnapshot]]) -> list[dict[str, Any]]:
    """Return this daemon's members of the group, followed by all other members that the brokers report."""
    own = [
        {
            "client_id": member.client_id,
            "here": True,
            "worker": process.worker,
            "pid": process.pid,
            "state": member.state,
            "ready": member.ready,
            "queues": len(member.queues),
        }
        for process, member in here
    ]
    ids = {member.client_id for _, member in here}
    return own + [{"client_id": other, "here": False} for other in group.members if other not in ids]


def _rounded(values: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 3) for name, value in values.items()}


def _latency(histogram: HistogramSnapshot | None) -> dict[str, Any]:
    """Return the durations of handler calls, in seconds. The last of `counts` has calls longer than all `bounds`."""
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
    return [_error(error) | {"trace": list(error.trace)} for error in errors[:MAX_ERRORS]]


def _error(error: LastError) -> dict[str, Any]:
    return {"at": error.at, "error": error.error, "topic": error.topic, "msg_id": error.msg_id}


def _dead_letters(topics: Iterable[TopicSnapshot]) -> dict[str, Any]:
    causes: dict[str, int] = reduce(add_each, (topic.dead_letters for topic in topics), {})
    reasons: dict[str, int] = reduce(add_each, (topic.dead_letter_reasons for topic in topics), {})
    frequent = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
    return {
        "total": sum(causes.values()),
        "causes": causes,
        "reasons": [{"reason": reason, "count": count} for reason, count in frequent[:MAX_REASONS]],
    }
