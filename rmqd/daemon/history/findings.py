"""What was found wrong with a group: by the watchdog and the group's own checks, since when, and what has ended.

A process tells what is wrong now. The daemon compares that with what it knew, so that it can say since when, and what
was wrong a while ago.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from rmqd.consumer.stats.snapshot import GroupSnapshot
from rmqd.diagnosis.causes import Problem

MOST_ENDED: Final = 10
MOST_QUEUES: Final = 20

# The cause, the topic of the queues that stand still, and what tells it from others of its cause.
_Key = tuple[str, str, str]
# A group has several problems of such a cause, one for each topic, say; of another cause each process may tell its own.
_MANIFOLD: Final = frozenset({"topic_missing", "no_route", "no_permission", "broker_unreachable"})
_DIGITS: Final = re.compile(r"\d+")


@dataclass(slots=True)
class Finding:
    """One cause, and the queues that stand still for it; none where it concerns the group. Times are Unix seconds."""

    problem: Problem
    since: float
    queues: tuple[str, ...] = ()
    until: float | None = None

    def as_document(self) -> dict[str, Any]:
        """The finding as JSON; of many queues only some are named."""
        return {
            "cause": self.problem.cause,
            "evidence": self.problem.evidence,
            "next": self.problem.next,
            "state": "active" if self.until is None else "ended",
            "since": round(self.since, 3),
            "until": None if self.until is None else round(self.until, 3),
            "queues": list(self.queues[:MOST_QUEUES]),
            "queue_count": len(self.queues),
        }


@dataclass(slots=True)
class FindingLog:
    """The findings of one group: those of now, and the last ones that have ended."""

    _active: dict[_Key, Finding] = field(default_factory=dict)
    _ended: deque[Finding] = field(default_factory=lambda: deque(maxlen=MOST_ENDED))

    def observe(self, group: GroupSnapshot, now: float) -> None:
        """Take in what is wrong with the group at this Unix time."""
        seen = dict(_found(group))
        for key, (problem, queues) in seen.items():
            finding = self._active.setdefault(key, Finding(problem, now))
            finding.problem, finding.queues = problem, queues
        for key in self._active.keys() - seen.keys():
            finding = self._active.pop(key)
            finding.until = now
            self._ended.append(finding)

    def as_documents(self) -> list[dict[str, Any]]:
        """All as JSON: what stands first, then what has ended, the latest first."""
        standing = sorted(self._active.values(), key=lambda finding: finding.since)
        return [finding.as_document() for finding in (*standing, *reversed(self._ended))]


def _found(group: GroupSnapshot) -> Iterator[tuple[_Key, tuple[Problem, tuple[str, ...]]]]:
    for problem in group.problems:
        told_by = _DIGITS.sub("", problem.evidence) if problem.cause in _MANIFOLD else ""
        yield (problem.cause, "", told_by), (problem, ())
    stalled: dict[tuple[str, str], tuple[Problem, list[str]]] = {}
    for queue in group.queues:
        if queue.stall is not None:
            topic = f"{queue.topic} (retry)" if queue.is_retry else queue.topic
            _, names = stalled.setdefault((queue.stall.cause, topic), (queue.stall, []))
            names.append(f"{topic}@{queue.broker}:{queue.number}")
    for (cause, topic), (problem, names) in stalled.items():
        yield (cause, topic, ""), (problem, tuple(names))
