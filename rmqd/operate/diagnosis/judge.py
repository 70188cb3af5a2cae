"""Evaluates all rules of the diagnosis: decides which findings count, and orders them for the report."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from rmqd.consumer.health.causes import CAUSES, DIAGNOSIS_CAUSES, Problem
from rmqd.operate.diagnosis import cluster_findings as cluster
from rmqd.operate.diagnosis import member_findings as members
from rmqd.operate.diagnosis import progress_findings as progress
from rmqd.operate.diagnosis.diagnosis_facts import DiagnosisSnapshot, Finding

PAGE: Final = "docs/diagnosing.md"
_RULES: Final = (
    cluster.brokers,
    cluster.topics,
    cluster.settings,
    cluster.members,
    members.conflicts,
    members.different_members,
    members.pauses,
    members.owners,
    progress.illegal_offsets,
    progress.failures,
)


def needs_second_snapshot(first: DiagnosisSnapshot) -> bool:
    """Return whether one snapshot is not enough: a finding may be momentary, or messages have waited for long."""
    if any(one.momentary for one in _seen(first).values()):
        return True
    return bool(first.members) and any(progress.has_old_messages(first, queue) for queue in first.queues)


def judge(
    first: DiagnosisSnapshot, second: DiagnosisSnapshot | None = None, of_daemon: Iterable[Finding] = ()
) -> list[Problem]:
    """Return the problems, the likeliest cause first, each followed by its `consequences`; empty if there are none.

    Without a second snapshot, momentary findings do not count. `of_daemon` are the findings of the group's daemon.
    """
    before, now = _seen(first), _seen(first if second is None else second)
    certain = [one for key, one in now.items() if not one.momentary or (second is not None and key in before)]
    waiting = [] if second is None else [*progress.waiting_findings(first, second)]
    told = list(of_daemon)
    if any(one.problem.cause == "canary_failed" for one in told):  # the messages failed because of the canary
        certain = [one for one in certain if one.problem.cause != "poison_message"]
    routes = [facts.route for facts in first.topics.values() if facts.route is not None]
    clusters = {broker.cluster for route in routes for broker in route.broker_datas if broker.cluster}
    name = shlex.quote(min(clusters)) if len(clusters) == 1 else "CLUSTER"  # the placeholder in the next steps
    ordered = _in_order(_merged(told, certain, waiting))
    return [replace(one, next=one.next.replace("-c CLUSTER ", f"-c {name} ")) for one in ordered]


def _seen(snapshot: DiagnosisSnapshot) -> dict[tuple[str, ...], Finding]:
    return {one.key: one for rule in _RULES for one in rule(snapshot)}


def _merged(of_daemon: list[Finding], certain: list[Finding], waits: list[Finding]) -> list[Finding]:
    """Return all findings. Each finding of the daemon is merged with the first other finding of the same cause.

    A merged finding has the daemon's next step, which is more precise. For a slow handler it has the other finding's
    next step, which says how many calls the handler needs.
    """
    joined = [*certain, *waits]
    for one in of_daemon:
        place = next((place for place, other in enumerate(joined) if _is_same(one, other)), len(joined))
        if same := joined[place:]:
            evidence = same[0].problem.evidence
            if one.problem.evidence not in evidence:
                evidence += f"; {one.problem.evidence}"
            step = (same[0] if same[0].problem.cause == one.problem.cause == "slow_handler" else one).problem.next
            one = replace(same[0], problem=replace(same[0].problem, evidence=evidence, next=step))
        joined[place : place + 1] = [one]
    return joined


def _is_same(one: Finding, other: Finding) -> bool:
    """Return whether two findings have the same cause and, if both are about queues, a queue in common."""
    causes = {CAUSES[it.problem.cause].diagnosed_as or it.problem.cause for it in (one, other)}
    return len(causes) == 1 and (bool(one.queues & other.queues) or not (one.queues and other.queues))


def consequences(problems: Sequence[Problem]) -> dict[Problem, Problem]:
    """Map each problem that is the consequence of another one to that problem. A consequence explains no problem."""
    explained: dict[Problem, Problem] = {}
    for cause in problems:
        if cause not in explained:
            names = CAUSES[cause.cause].explains.split()
            explained |= {one: cause for one in problems if one.cause in names and one not in explained}
    return explained


def _in_order(findings: Sequence[Finding]) -> list[Problem]:
    problems: dict[tuple[str, str], Problem] = {}
    for finding in findings:
        problem = finding.problem
        name = CAUSES[problem.cause].diagnosed_as or problem.cause
        complete = replace(problem, cause=name, next=f"{problem.next} ({PAGE}#{name})")
        problems.setdefault((name, problem.evidence), complete)
    ordered = sorted(problems.values(), key=lambda problem: DIAGNOSIS_CAUSES.index(problem.cause))
    explained = consequences(ordered)
    roots = [one for one in ordered if one not in explained]
    follow = {root: [replace(one, next=root.next) for one in ordered if explained.get(one) is root] for root in roots}
    return [one for root in roots for one in (root, *follow[root])]
