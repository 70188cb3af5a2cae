"""The problems that a group has now."""

from __future__ import annotations

from collections.abc import Hashable, Iterator

import structlog

from rmqd.diagnosis.causes import Problem

log = structlog.get_logger(__name__)


class GroupProblems:
    """The problems that a group has now, told once when they begin and once when they end."""

    def __init__(self) -> None:
        self._known: dict[Hashable, Problem] = {}

    def __iter__(self) -> Iterator[Problem]:
        return iter(self._known.values())

    def __contains__(self, key: Hashable) -> bool:
        return key in self._known

    def begin(self, key: Hashable, problem: Problem) -> None:
        """Note that the group has a problem, and log it if it is new; a known one takes the new evidence silently.

        `key` tells the problem from the group's others.
        """
        if key not in self._known:
            log.error("group.problem", cause=problem.cause, evidence=problem.evidence, next=problem.next)
        self._known[key] = problem

    def set(self, key: Hashable, problem: Problem | None) -> None:
        """Begin the problem of this key, or end it where `problem` is None."""
        if problem is None:
            self.end(key)
        else:
            self.begin(key, problem)

    def end(self, key: Hashable) -> None:
        """Note that the group does not have this problem any more, and log it."""
        problem = self._known.pop(key, None)
        if problem is not None:
            log.info("group.problem_ended", cause=problem.cause, was=problem.evidence)
