"""The problems of a group that the watchdog or its own checks found, with their start and end.

A process reports only its current problems. The daemon compares them with the previous ones, to know when each started
and ended.
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

# The cause, the topic of the stalled queues, and a text that distinguishes problems with the same cause.
_Key = tuple[str, str, str]
# A group may have several problems with these causes, for example one for each topic. For other causes each process may
# report the same problem.
_MANIFOLD: Final = frozenset({"topic_missing", "no_route", "no_permission", "broker_unreachable"})
_DIGITS: Final = re.compile(r"\d+")


@dataclass(slots=True)
class Finding:
    """One problem and its stalled queues; no queues if it concerns the group. Times are Unix seconds."""

    problem: Problem
    since: float
    queues: tuple[str, ...] = ()
    until: float | None = None

    def as_document(self) -> dict[str, Any]:
        """Return the finding as JSON. Only the first MOST_QUEUES queues are named."""
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
    """The findings of one group: the active ones, and the last ones that ended."""

    _active: dict[_Key, Finding] = field(default_factory=dict)
    _ended: deque[Finding] = field(default_factory=lambda: deque(maxlen=MOST_ENDED))

    def observe(self, group: GroupSnapshot, now: float) -> None:
        """Update the findings from a snapshot of this Unix time."""
        seen = dict(_found(group))
        for key, (problem, queues) in seen.items():
            finding = self._active.setdefault(key, Finding(problem, now))
            finding.problem, finding.queues = problem, queues
        for key in self._active.keys() - seen.keys():
            finding = self._active.pop(key)
            finding.until = now
            self._ended.append(finding)

    def as_documents(self) -> list[dict[str, Any]]:
        """Return all findings as JSON: active ones by start, then ended ones, the latest first."""
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
