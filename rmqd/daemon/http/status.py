"""The JSON of /api/v1/status: the state of each group and each of its queues. Times are Unix seconds."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rmqd import __version__
from rmqd.consumer.health.recent_results import last_error
from rmqd.consumer.pauses import PauseScope
from rmqd.consumer.stats.snapshot import GroupSnapshot, QueueSnapshot
from rmqd.daemon.groups.host import HostView
from rmqd.daemon.metrics.totals import ProcessSnapshot, merge_processes
from rmqd.wire.message_queue import MessageQueue


def status_document(view: HostView) -> dict[str, Any]:
    """The whole status. With workers, `client_id` of the daemon and of groups is null, and each queue has one."""
    whole = merge_processes(view.processes, view.past) if view.processes else None
    only = view.processes[0] if len(view.processes) == 1 and view.workers is None else None
    document: dict[str, Any] = {
        "version": __version__,
        "client_id": only.client.client_id if only else None,
        "groups": [_group(group, view) for group in (whole.groups if whole else ())],
    }
    if view.workers is not None:
        document["workers"] = [_worker(process) for process in view.processes]
        document["problems"] = list(view.missing)
    return document


def pause_document(view: HostView, group: str, scope: PauseScope) -> dict[str, Any]:
    """The outcome of a pause or resume: how many of the daemon's queues are in its scope, and what is paused now."""
    members = [member for process in view.processes for member in process.groups if member.name == group]
    meant = sum(_is_meant(queue, scope) for member in members for queue in member.queues)
    pauses = dict.fromkeys(paused for member in members for paused in member.pauses)
    return {"queues": meant, "pauses": [asdict(paused) for paused in pauses]}


def _is_meant(queue: QueueSnapshot, scope: PauseScope) -> bool:
    # a retry topic's queue is shown under the topic whose messages it has, but is not paused with that topic
    return not (queue.is_retry and scope.topic) and scope.names(MessageQueue(queue.topic, queue.broker, queue.queue))


def _worker(process: ProcessSnapshot) -> dict[str, Any]:
    return {"worker": process.worker, "pid": process.pid, "client_id": process.client.client_id}


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
        "client_id": group.client_id if view.workers is None else None,
        "failure": group.failure,
        "failing": any(problem.cause == "failing_handler" for problem in group.problems),
        "ready": group.ready,
        "not_ready_reason": group.not_ready_reason,
        "problems": [asdict(problem) for problem in group.problems],
        "per_second": {name: round(rate, 3) for name, rate in asdict(group.rates).items()},
        "last_error": None if error is None else asdict(error),
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
