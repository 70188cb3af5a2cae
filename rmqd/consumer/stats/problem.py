"""What keeps a queue or a group from working as it should: a cause of a closed list, the evidence, the next step."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Final

import structlog

log = structlog.get_logger(__name__)

# The causes for one queue.
STALL_CAUSES: Final = (
    "paused",
    "slow_handler",
    "retry_refused",
    "poison_message",
    "held_lock",
    "rate_limit",
    "offset_illegal",
    "corrupt_message",
    "no_route",
    "topic_missing",
    "no_permission",
    "consumption_disabled",
    "subscription_mismatch",
    "broker_unreachable",
    "pull_failed",
    "stalled_queue",
)
# The causes for which a queue's state is shown as stuck; the others show by another state, such as paused.
STUCK_CAUSES: Final = frozenset(STALL_CAUSES) - {
    "paused",
    "slow_handler",
    "retry_refused",
    "poison_message",
    "held_lock",
    "rate_limit",
}
# The causes for a group as a whole.
GROUP_CAUSES: Final = (
    "subscription_mismatch",
    "mode_mismatch",
    "client_id_conflict",
    "topic_missing",
    "no_route",
    "no_permission",
    "broker_unreachable",
    "allocate_failed",
    "failing_handler",
)


@dataclass(frozen=True, slots=True)
class Problem:
    """One cause, how it shows, and what to do about it."""

    cause: str  # of STALL_CAUSES or GROUP_CAUSES
    evidence: str
    next: str


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
