"""The current problems of a group."""

from __future__ import annotations

from collections.abc import Hashable, Iterator

import structlog

from rmqd.diagnosis.causes import Problem

log = structlog.get_logger(__name__)


class GroupProblems:
    """The group's current problems. Each is logged once when it starts and once when it ends."""

    def __init__(self) -> None:
        self._known: dict[Hashable, Problem] = {}

    def __iter__(self) -> Iterator[Problem]:
        return iter(self._known.values())

    def __contains__(self, key: Hashable) -> bool:
        return key in self._known

    def begin(self, key: Hashable, problem: Problem) -> None:
        """Add or update a problem. Only a new one is logged; a known one gets the new evidence.

        `key` distinguishes the group's problems.
        """
        if key not in self._known:
            log.error("group.problem", cause=problem.cause, evidence=problem.evidence, next=problem.next)
        self._known[key] = problem

    def set(self, key: Hashable, problem: Problem | None) -> None:
        """Begin the problem with this key, or end it if `problem` is None."""
        if problem is None:
            self.end(key)
        else:
            self.begin(key, problem)

    def end(self, key: Hashable) -> None:
        """Remove the problem with this key, if there is one, and log its end."""
        problem = self._known.pop(key, None)
        if problem is not None:
            log.info("group.problem_ended", cause=problem.cause, was=problem.evidence)
