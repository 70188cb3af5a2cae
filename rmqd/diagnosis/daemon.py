"""Converts a daemon's status of its group in /api/v1/status to findings of `rmqd diagnose`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from rmqd.diagnosis.causes import CAUSES, Problem, found
from rmqd.diagnosis.finding import Finding
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.topics import wrap_namespace

KEPT: Final = "is kept from consuming: "
"""Part of the reason why a group is not ready: access is refused, or brokers' settings forbid it to consume."""
_RIGHTS: Final = "use the command, or change the key, that the reason names; docs/security.md"
_FAILED: Final = "fix the problem that the reason names; the daemon retries automatically. `rmqd status {group}`"


def findings_of_daemon(group: Mapping[str, Any], name: str, namespace: str = "") -> Iterator[Finding]:
    """Yield why the group has failed or waits, its problems, and the stalls of its queues, under the causes of `rmqd
    diagnose`.

    `group` is the object of the group `name` in the document; empty if no daemon runs. Missing fields are skipped,
    because the daemon may have another version. Queues get their names at the brokers, with the `namespace`.
    """
    failure, waits = group.get("failure"), group.get("not_ready_reason")
    if failure:
        evidence = f"the daemon's member does not run, because its group has failed: {failure}"
        yield Finding(("no_members", "daemon"), found("no_members", evidence, group=name, step=_FAILED))
    elif waits and KEPT in waits:
        # otherwise it is reported below
        if not any(str(one.get("evidence")) in waits for one in group.get("problems", ())):
            evidence = f"the daemon reports: {waits}"
            yield Finding(("no_permission", "daemon"), found("no_permission", evidence, group=name, step=_RIGHTS))
    elif waits:
        yield Finding(("no_members", "daemon"), found("no_members", f"the daemon's member waits: {waits}", group=name))
    told: list[tuple[Any, MessageQueue | None]] = [(one, None) for one in group.get("problems", ())]
    told += [(queue.get("stall"), _place(queue, namespace)) for queue in group.get("queues", ())]
    steps: dict[tuple[str, str], str] = {}
    queues: dict[tuple[str, str], set[MessageQueue]] = {}
    for one, queue in told:
        if one and one.get("cause") in CAUSES:
            key = one["cause"], str(one.get("evidence"))
            steps.setdefault(key, str(one.get("next")))
            queues.setdefault(key, set()).update(filter(None, [queue]))
    for (cause, evidence), step in steps.items():
        problem = Problem(cause, f"the daemon reports: {evidence}", step)
        yield Finding((cause, "daemon", evidence), problem, queues=frozenset(queues[cause, evidence]))


def _place(queue: Mapping[str, Any], namespace: str) -> MessageQueue:
    topic = wrap_namespace(str(queue.get("topic")), namespace)
    return MessageQueue(topic, str(queue.get("broker")), int(queue.get("queue", -1)))
