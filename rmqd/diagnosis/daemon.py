"""What a daemon says of its own group in /api/v1/status, as findings of `rmqd diagnose`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from rmqd.diagnosis.causes import CAUSES, Problem, found
from rmqd.diagnosis.finding import Finding
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.topics import wrap_namespace

KEPT: Final = "is kept from consuming: "
"""In the reason why a group is not ready: access is refused, or brokers' settings forbid it to consume."""
_RIGHTS: Final = "the reason names the command, or the key of the configuration; docs/security.md"
_FAILED: Final = "the reason names what to mend; the daemon tries it again by itself. `rmqd status {group}`"


def findings_of_daemon(group: Mapping[str, Any], name: str, namespace: str = "") -> Iterator[Finding]:
    """Why the group has failed or waits, its problems, and the stalls of its queues, as `rmqd diagnose` names them.

    `group` is the object of the group `name` in the document; empty where there is no daemon. What it does not have is
    left out: it may be of another version. Queues get the names that brokers of the `namespace` know.
    """
    failure, waits = group.get("failure"), group.get("not_ready_reason")
    if failure:
        evidence = f"the daemon's member is not there, as its group has failed: {failure}"
        yield Finding(("no_members", "daemon"), found("no_members", evidence, group=name, step=_FAILED))
    elif waits and KEPT in waits:
        if not any(str(one.get("evidence")) in waits for one in group.get("problems", ())):  # else it is reported below
            evidence = f"the daemon says: {waits}"
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
        problem = Problem(cause, f"the daemon says: {evidence}", step)
        yield Finding((cause, "daemon", evidence), problem, queues=frozenset(queues[cause, evidence]))


def _place(queue: Mapping[str, Any], namespace: str) -> MessageQueue:
    topic = wrap_namespace(str(queue.get("topic")), namespace)
    return MessageQueue(topic, str(queue.get("broker")), int(queue.get("queue", -1)))
