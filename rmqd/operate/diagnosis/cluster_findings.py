"""Rules that find problems with name servers, brokers and topics, and problems that the group's daemon reports."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from rmqd.consumer.health.causes import CAUSES, Problem, make_problem
from rmqd.consumer.health.group_problems import (
    FORBIDDEN_PREFIX,
    group_settings_problem,
    list_names,
    missing_topic_problem,
    unknown_group_problem,
    unreadable_topic_problem,
)
from rmqd.operate.diagnosis.diagnosis_facts import BrokerFacts, DiagnosisSnapshot, Finding, TopicFacts, wait
from rmqd.runtime.plain_text import duration
from rmqd.wire.bodies.route_data import PERM_READ, PERM_WRITE
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.topics import wrap_namespace

CLOCK_SECONDS: Final = 5.0
"""A larger difference between two clocks means that they are not synchronised by NTP. Brokers report whole seconds."""


def brokers(snapshot: DiagnosisSnapshot) -> Iterator[Finding]:
    """Yield the problems of the brokers that serve the group."""
    if not snapshot.brokers:
        evidence = f"the name server at {snapshot.name_servers} knows no broker"
        yield Finding(make_problem("no_route", evidence))
    serving = _serving(snapshot)
    for name, broker in snapshot.brokers.items():
        if name in serving:
            yield from _broker(broker)


def _broker(broker: BrokerFacts) -> Iterator[Finding]:
    name, where = broker.name, f"{broker.name} ({broker.master})"
    if broker.silence is not None:
        yield Finding(make_problem("no_route", f"{where} does not respond: {broker.silence}"), name)
    elif broker.master is None:
        evidence = f"{name} has no master; its slave {list_names(broker.slaves)} is read-only"
        yield Finding(make_problem("broker_read_only", evidence, step=_MASTER), name)
    elif broker.permission is not None and not broker.permission & PERM_READ:
        evidence = f"{where} is not readable (brokerPermission={broker.permission})"
        yield Finding(make_problem("no_permission", evidence, step=_PERMISSION.replace("@", broker.master)), name)
    elif broker.permission is not None and not broker.permission & PERM_WRITE:
        evidence = f"{where} is read-only (brokerPermission={broker.permission})"
        step = _PERMISSION.replace("@", broker.master)
        yield Finding(make_problem("broker_read_only", evidence, step=step), name)
    elif broker.disk_used is not None and broker.disk_used >= broker.disk_limit:
        evidence = (
            f"the disk of {where} is {broker.disk_used:.0%} full; at {broker.disk_limit:.0%} it stops storing messages"
        )
        yield Finding(make_problem("broker_read_only", evidence, step=_DISK), name)
    ahead = broker.clock_ahead_seconds
    if ahead is not None and abs(ahead) >= CLOCK_SECONDS:
        evidence = (
            f"the clock of {where} is {duration(abs(ahead))} {'ahead of' if ahead > 0 else 'behind'} that of this host"
        )
        yield Finding(make_problem("clock_skew", evidence), name)


_MASTER: Final = (
    "start its master; until then, offsets and messages there cannot be committed, retried or dead-lettered"
)
_PERMISSION: Final = (
    "find out why it was changed, then run `mqadmin updateBrokerConfig -b @ -k brokerPermission -v 6`; until then, "
    "producers do not use it. Retries and dead letters of rmqd are stored nevertheless, unless their topic is an order "
    "topic"
)
_DISK: Final = "free space on that disk, or shorten fileReservedTime; until then, it stores no retries and dead letters"


def topics(snapshot: DiagnosisSnapshot) -> Iterator[Finding]:
    """Yield the problems of the topics that the group subscribes to."""
    for topic, facts in snapshot.topics.items():
        if facts.missing:
            yield Finding(missing_topic_problem(topic), topic)
        elif facts.route is None:
            yield Finding(make_problem("no_route", f"no route to topic {topic}: {facts.error}"), topic)
        else:
            yield from _closed(snapshot, facts)


def _closed(snapshot: DiagnosisSnapshot, facts: TopicFacts) -> Iterator[Finding]:
    assert facts.route is not None
    closed = [queues.broker_name for queues in facts.route.queue_datas if not queues.is_readable]
    shut = {
        name for name, one in snapshot.brokers.items() if one.permission is not None and not one.permission & PERM_READ
    }
    if of_topic := [name for name in closed if name not in shut]:
        yield Finding(unreadable_topic_problem(facts.topic, of_topic), facts.topic)
    gone = {queues.broker_name for queues in facts.route.queue_datas} - snapshot.brokers.keys()
    if gone and snapshot.brokers:
        evidence = f"topic {facts.topic} has queues on {list_names(gone)}, which no name server knows"
        yield Finding(make_problem("no_route", evidence), facts.topic)


def settings(snapshot: DiagnosisSnapshot) -> Iterator[Finding]:
    """Yield a problem for each broker whose settings do not let the group consume."""
    for name in sorted(_serving(snapshot) & snapshot.brokers.keys()):
        broker, known = snapshot.brokers[name], snapshot.settings.get(name)
        where = f"{name} ({broker.master})"
        if (
            known is not None
            and (problem := group_settings_problem(where, snapshot.group, known, snapshot.model)) is not None
        ):
            yield Finding(problem, name)
        elif known is None and not broker.makes_groups and broker.silence is None:
            yield Finding(unknown_group_problem(where, snapshot.group), name)


def members(snapshot: DiagnosisSnapshot) -> Iterator[Finding]:
    """Yield a problem if no broker that responds knows a member of the group."""
    answering = [broker for broker in snapshot.brokers.values() if broker.silence is None]
    if snapshot.views or not answering:
        return
    if not snapshot.settings and not any(broker.makes_groups for broker in answering):  # the rule `settings` reports it
        return
    waiting = sum(snapshot.waiting(queue) for queue in snapshot.queues)
    oldest = max(
        (snapshot.queues[queue].lag_seconds for queue in snapshot.queues if snapshot.waiting(queue)), default=0.0
    )
    waits = f"{wait(waiting)}" + (f", the oldest for {duration(oldest)}" if waiting else "")
    step = ""
    if not snapshot.settings and not snapshot.queues:
        waits = "no broker knows the group, so it has never consumed"
        step = "check the name (`rmqd groups list` lists all groups), or start a member: `rmqd run --group {group}`"
    evidence = f"no broker has a member of the group; {waits}"
    yield Finding(make_problem("no_members", evidence, group=snapshot.group, step=step))


def _serving(snapshot: DiagnosisSnapshot) -> frozenset[str]:
    """Return the brokers that have queues of the group's topics or know its members; if none do, all brokers."""
    routes = [facts.route for facts in snapshot.topics.values() if facts.route is not None]
    names = {queues.broker_name for route in routes for queues in route.queue_datas} | snapshot.views.keys()
    return frozenset(names or snapshot.brokers)


_RIGHTS: Final = "run the command or change the key that the daemon's report names; see docs/security.md"
MAX_REPORTS: Final = 3  # reports that one finding quotes
_FAILED: Final = "fix this failure; the daemon then starts the group again: see `rmqd status {group}`"


def findings_of_daemon(group: Mapping[str, Any], name: str, namespace: str = "") -> Iterator[Finding]:
    """Yield the daemon's reports on a group as findings: why it failed or waits, its problems, and stalled queues.

    `group` is the object of the group `name` in the document of /api/v1/status; empty if no daemon runs. Missing fields
    are skipped, because the daemon may have another version. `namespace` is added to the topics of queues.
    """
    failure, waits = group.get("failure"), group.get("not_ready_reason")
    if failure:
        evidence = f"the daemon's member does not run, because its group has failed: {failure}"
        yield Finding(make_problem("no_members", evidence, group=name, step=_FAILED), "daemon")
    elif waits and FORBIDDEN_PREFIX in waits:
        # if the group's problems contain the same text, the loop below yields it
        if not any(str(one.get("evidence")) in waits for one in group.get("problems", ())):
            evidence = f"the daemon reports: {waits}"
            yield Finding(make_problem("no_permission", evidence, group=name, step=_RIGHTS), "daemon")
    elif waits:
        yield Finding(make_problem("no_members", f"the daemon's member waits: {waits}", group=name), "daemon")
    told: list[tuple[Any, MessageQueue | None]] = [(one, None) for one in group.get("problems", ())]
    told += [(queue.get("stall"), _place(queue, namespace)) for queue in group.get("queues", ())]
    reports: dict[tuple[str, str], dict[str, set[MessageQueue]]] = {}  # (cause, next step) -> evidence -> queues
    for one, queue in told:
        if one and one.get("cause") in CAUSES:
            of_step = reports.setdefault((one["cause"], str(one.get("next"))), {})
            of_step.setdefault(str(one.get("evidence")), set()).update(filter(None, [queue]))
    for (cause, step), of_step in reports.items():
        evidence = "; ".join([*of_step][:MAX_REPORTS])
        evidence += f"; and {len(of_step) - MAX_REPORTS} more" if len(of_step) > MAX_REPORTS else ""
        problem = Problem(cause, f"the daemon reports: {evidence}", step)
        yield Finding(problem, f"daemon {evidence}", queues=frozenset().union(*of_step.values()))


def _place(queue: Mapping[str, Any], namespace: str) -> MessageQueue:
    topic = wrap_namespace(str(queue.get("topic")), namespace)
    return MessageQueue(topic, str(queue.get("broker")), int(queue.get("queue", -1)))
