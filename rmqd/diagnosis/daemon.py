"""What a daemon says of its own group in /api/v1/status, as findings of `rmqd diagnose`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from rmqd.diagnosis.causes import CAUSES, Problem, found
from rmqd.diagnosis.finding import Finding

_FAILED: Final = "the reason names what to mend; the daemon tries it again by itself. `rmqd status {group}`"


def findings_of_daemon(group: Mapping[str, Any], name: str) -> Iterator[Finding]:
    """Why the group has failed or waits, its problems, and the stalls of its queues, as `rmqd diagnose` names them.

    `group` is the object of the group `name` in the document; empty where there is no daemon. What it does not have is
    left out: it may be of another version.
    """
    failure, waits = group.get("failure"), group.get("not_ready_reason")
    if failure:
        evidence = f"the daemon's member is not there, as its group has failed: {failure}"
        yield Finding(("no_members", "daemon"), found("no_members", evidence, group=name, step=_FAILED))
    elif waits:
        yield Finding(("no_members", "daemon"), found("no_members", f"the daemon's member waits: {waits}", group=name))
    problems = [*group.get("problems", ()), *(queue.get("stall") for queue in group.get("queues", ()))]
    seen: dict[tuple[str, str], int] = {}
    for one in filter(None, problems):
        key = str(one.get("cause")), str(one.get("evidence"))
        seen[key] = seen.get(key, 0) + 1
        if seen[key] == 1 and key[0] in CAUSES:
            problem = Problem(key[0], f"the daemon says: {key[1]}", str(one.get("next")))
            yield Finding((key[0], "daemon", key[1]), problem)
