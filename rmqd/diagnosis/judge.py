"""The diagnosis: applies all rules to one or two snapshots, and orders the findings by urgency."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from rmqd.diagnosis import cluster, members, progress
from rmqd.diagnosis.causes import CAUSES, DIAGNOSED, Problem
from rmqd.diagnosis.facts import Look
from rmqd.diagnosis.finding import Finding

PAGE: Final = "docs/diagnosing.md"
_RULES: Final = (
    cluster.brokers,
    cluster.topics,
    cluster.settings,
    cluster.members,
    members.conflicts,
    members.unlike,
    members.pauses,
    members.owners,
    progress.illegal_offsets,
    progress.failures,
)


def needs_second_look(first: Look) -> bool:
    """Return whether one snapshot could mislead, because a finding may be momentary, or messages wait for long."""
    return any(one.momentary for one in _seen(first).values()) or (bool(first.members) and progress.has_old(first))


def judge(first: Look, second: Look | None = None, of_daemon: Iterable[Finding] = ()) -> list[Problem]:
    """Return the problems, the likeliest cause first; empty if the group is healthy.

    Without a second snapshot, momentary findings do not count. `of_daemon` are a daemon's findings.
    """
    before, now = _seen(first), _seen(first if second is None else second)
    certain = [one for key, one in now.items() if not one.momentary or (second is not None and key in before)]
    waiting = [] if second is None else [*progress.waits(first, second)]
    return _in_order(_told_once([*of_daemon], certain, waiting))


def _seen(look: Look) -> dict[tuple[str, ...], Finding]:
    return {one.key: one for rule in _RULES for one in rule(look)}


def _told_once(of_daemon: list[Finding], certain: list[Finding], waits: list[Finding]) -> list[Finding]:
    """Return all findings. Findings of brokers and of the daemon about the same queues become one, with the daemon's
    next step.
    """
    joined = []
    for one in waits:
        problem = one.problem
        same = [it for it in of_daemon if it.problem.cause == problem.cause and it.queues & one.queues]
        if same:
            of_daemon = [it for it in of_daemon if it not in same]
            evidence = "; ".join([problem.evidence, *(it.problem.evidence for it in same)])
            problem = replace(problem, evidence=evidence, next=same[0].problem.next)
        joined.append(replace(one, problem=problem))
    return [*of_daemon, *certain, *joined]


def _in_order(findings: Sequence[Finding]) -> list[Problem]:
    problems: dict[tuple[str, str], Problem] = {}
    for finding in findings:
        problem = finding.problem
        name = CAUSES[problem.cause].diagnosed_as or problem.cause
        complete = replace(problem, cause=name, next=f"{problem.next} ({PAGE}#{name})")
        problems.setdefault((name, problem.evidence), complete)
    return sorted(problems.values(), key=lambda problem: DIAGNOSED.index(problem.cause))
