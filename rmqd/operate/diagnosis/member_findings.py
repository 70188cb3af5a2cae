"""Rules that find problems between the members of a group: client ids, subscriptions, modes and queue owners."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from rmqd.client.group_reader import MemberReport
from rmqd.consumer.health.causes import Problem, make_problem
from rmqd.consumer.health.group_problems import (
    PROCESS_CLIENT_ID,
    MemberDifference,
    list_names,
    model_difference,
    order_difference,
    subscription_differences,
)
from rmqd.operate.diagnosis.diagnosis_facts import DiagnosisSnapshot, Finding, queues_text, wait
from rmqd.runtime.plain_text import count_noun
from rmqd.wire.bodies.heartbeat_data import MessageModel
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.topics import is_retry_topic, topic_of_pop_retry

RETRY_AGE_SECONDS: Final = 60.0
"""The first retry creates the retry topic. Members own its queues after a route poll (30 s) and a rebalance (20 s)."""
_BY_CONFIG: Final = ("CONFIG", "ByConfig")


def conflicts(snapshot: DiagnosisSnapshot) -> Iterator[Finding]:
    """Yield a problem for each client id that has several connections to one broker.

    Client ids that contain the process id are skipped, because no other process can have them. A busy broker may keep a
    closed connection for two minutes.
    """
    for client_id, member in snapshot.members.items():
        if PROCESS_CLIENT_ID.search(client_id):
            continue
        for broker, connections in member.connections.items():
            if len(connections) > 1:
                problem = conflict_problem(client_id, broker, [one.client_addr for one in connections])
                yield Finding(problem, client_id, momentary=True)
                break


def conflict_problem(client_id: str, broker: str, addresses: list[str]) -> Problem:
    """Return the problem of a client id with several connections to one broker."""
    evidence = f"{client_id} is connected {len(addresses)} times to {broker}: from {list_names(addresses)}"
    return make_problem("client_id_conflict", evidence)


def different_members(snapshot: DiagnosisSnapshot) -> Iterator[Finding]:
    """Yield problems of members whose subscriptions, message models, consume modes, or pull or pop modes differ."""
    telling = [member for member in snapshot.members.values() if member.info is not None]
    groups: dict[MemberDifference, list[str]] = {}
    if telling:
        ours = _usual(telling)
        for member in telling:
            for difference in _differences(member, ours):
                groups.setdefault(difference, []).append(member.client_id)
    if len(telling) < len(snapshot.members):  # some members sent no report, so the last heartbeats are compared too
        reference = next(iter(snapshot.views.items()))
        for name, view in snapshot.views.items():
            if name != reference[0]:
                us = f"the last heartbeat at {reference[0]}"
                for difference in subscription_differences(
                    view.subscription_table, reference[1].subscription_table, us
                ):
                    groups.setdefault(difference, []).append(f"members by the last heartbeat at {name}")
    for difference, who in groups.items():
        problem = make_problem(difference.cause, f"{list_names(who)} {difference.text}", group=snapshot.group)
        yield Finding(problem, f"{difference.subject} {difference.text}", momentary=True)
    yield from _modes(snapshot)


def _usual(telling: list[MemberReport]) -> MemberReport:
    """Return the reference for comparisons: a member with the most common settings; if tied, the first that started."""
    kinds = Counter(_kind(member) for member in telling)
    return max(telling, key=lambda member: (kinds[_kind(member)], -(member.started_at or 0.0)))


def _kind(member: MemberReport) -> object:
    subscriptions = member.subscriptions or {}
    texts = frozenset((topic, one.expression_type, one.sub_string) for topic, one in subscriptions.items())
    return texts, member.orderly, _model(member)


def _model(member: MemberReport) -> str | None:
    return None if member.info is None else member.info.properties.get("messageModel")


def _differences(member: MemberReport, ours: MemberReport) -> Iterator[MemberDifference]:
    us = ours.client_id
    yield from subscription_differences(member.subscriptions or {}, ours.subscriptions or {}, us)
    if (model := _model(ours)) is not None:
        yield from model_difference(_model(member), model, us)
    if ours.orderly is not None:
        yield from order_difference(member.orderly, ours.orderly, us)


def pulling_problem(group: str, topic: str, brokers: str, who: str) -> Problem:
    """Return the problem of members that are configured to pop, while brokers make the group pull."""
    evidence = f"{brokers} makes the group pull {topic}, but {who} is configured to pop"
    step = "run `rmqd groups mode {group} {topic} pop`, or set consume_mode: concurrently"
    return make_problem("mode_mismatch", evidence, group=group, topic=topic, step=step)


def _modes(snapshot: DiagnosisSnapshot) -> Iterator[Finding]:
    """Yield problems of members that should pop but must pull, and of topics that some members pop and others pull."""
    infos = snapshot.infos
    wanting = [client_id for client_id, info in infos.items() if info.properties.get("consumeMode") == "pop"]
    for topic, facts in snapshot.topics.items():
        names = {queue.broker_name for queue in facts.queues} & snapshot.modes.keys()
        pulled = sorted(name for name in names if snapshot.modes[name].get(topic, "PULL") != "POP")
        if wanting and pulled:
            problem = pulling_problem(snapshot.group, topic, list_names(pulled), list_names(wanting))
            yield Finding(problem, f"pop {topic}")
        poppers = {one for one, info in infos.items() if any(at.topic == topic for at in info.mq_pop_table)}
        pullers = {one for one, info in infos.items() if any(at.topic == topic for at in info.mq_table)} - poppers
        if poppers and pullers:
            some, others = list_names(poppers), list_names(pullers)
            evidence = f"{some} pops {topic}, while {others} pulls it, so both get all messages"
            problem = make_problem("mode_mismatch", evidence, group=snapshot.group)
            yield Finding(problem, f"both {topic}", momentary=True)


def pauses(snapshot: DiagnosisSnapshot) -> Iterator[Finding]:
    """Yield a problem if an operator has paused members or some of their queues."""
    if paused := [
        f"{client_id} ({some})" for client_id, one in snapshot.members.items() if (some := one.paused_queues)
    ]:
        evidence = f"an operator has paused {list_names(paused)}"
        yield Finding(make_problem("paused", evidence, group=snapshot.group))


def owners(snapshot: DiagnosisSnapshot) -> Iterator[Finding]:
    """Yield problems of hung members, queues without an owner, owners without the lock, and members without a queue."""
    if snapshot.model != MessageModel.CLUSTERING or not snapshot.members:
        return
    silent = [member for member in snapshot.members.values() if member.silence_reason is not None]
    unreported = [
        member for member in snapshot.members.values() if not member.reports_queues and member.silence_reason is None
    ]
    unowned = [queue for queue in _subscribed(snapshot) if not snapshot.owners(queue)]
    if silent:
        yield _hung(snapshot, silent, unowned)
    if silent or unreported:  # these members may own the queues without a known owner
        return
    if snapshot.orderly:
        yield from _unlocked(snapshot)
    yield from ([_unowned(snapshot, unowned)] if unowned else _idle(snapshot))


def _subscribed(snapshot: DiagnosisSnapshot) -> list[MessageQueue]:
    """Return the queues that should have an owner. Queues of a retry topic count if messages have waited for 60 s."""
    wanted = [queue for facts in snapshot.topics.values() for queue in facts.queues]
    if any(info.mq_pop_table for info in snapshot.infos.values()):  # retries of popped messages use other topics
        return wanted
    for queue, ends in snapshot.queues.items():
        if is_retry_topic(queue.topic) and snapshot.waiting(queue) and ends.lag_seconds >= RETRY_AGE_SECONDS:
            wanted.append(queue)
    return wanted


def _hung(snapshot: DiagnosisSnapshot, silent: list[MemberReport], unowned: list[MessageQueue]) -> Finding:
    who = list_names(f"{member.client_id} ({member.address})" for member in silent)
    waiting = sum(snapshot.waiting(queue) for queue in unowned if queue in snapshot.queues)
    evidence = f"{who} is connected but does not respond: it hangs, or was stopped"
    if unowned:
        evidence += f"; no other member has {queues_text(unowned)}" + (f", where {wait(waiting)}" if waiting else "")
    step = "check that process (a stack dump), and restart it; the other members get its queues when it has ended"
    return Finding(make_problem("orphaned_queue", evidence, step=step), "silent")


def _unowned(snapshot: DiagnosisSnapshot, unowned: list[MessageQueue]) -> Finding:
    waiting = sum(snapshot.waiting(queue) for queue in unowned if queue in snapshot.queues)
    asked = count_noun(len(snapshot.members), "member")
    evidence = f"no member has {queues_text(unowned)}, where {wait(waiting)} (asked: {asked})"
    strategies = {info.properties.get("allocateMessageQueueStrategy", "") for info in snapshot.infos.values()}
    by_config = any(mark in strategy for strategy in strategies for mark in _BY_CONFIG)
    if snapshot.orderly and not by_config:
        evidence = f"{evidence}; in an orderly group its owner waits for a lock that another client holds"
        return Finding(make_problem("held_lock", evidence, group=snapshot.group), momentary=True)
    step = ""
    if twice := [
        f"{member.client_id} on {broker}"
        for member in snapshot.members.values()
        for broker, connections in member.connections.items()
        if len(connections) > 1
    ]:
        evidence += f"; the broker counts {list_names(twice)} more than once, because it still knows closed connections"
        step = "wait two minutes until the broker drops them; otherwise restart that member"
    elif by_config:
        step = "add them to a member's allocate_queues, or set another allocate_strategy"
    elif len({_plain(strategy) for strategy in strategies}) > 1:
        step = "give all members the same allocate_strategy"
        evidence += f"; their strategies are {list_names(map(_plain, strategies))}"
    return Finding(make_problem("orphaned_queue", evidence, group=snapshot.group, step=step), momentary=True)


def _plain(strategy: str) -> str:
    """Return the short name, such as `AVG`, of an allocate strategy. Java reports an object, rmqd the short name."""
    name = strategy.rpartition(".")[2].partition("@")[0].removeprefix("AllocateMessageQueue")
    return {"Averagely": "AVG", "AveragelyByCircle": "AVG_BY_CIRCLE", "ConsistentHash": "CONSISTENT_HASH"}.get(
        name, name
    )


def _unlocked(snapshot: DiagnosisSnapshot) -> Iterator[Finding]:
    without: dict[str, list[MessageQueue]] = {}
    for member in snapshot.members.values():
        for queue, one in member.info.mq_table.items() if member.info is not None and not member.on_spark else ():
            if not one.locked and not one.dropped:
                without.setdefault(member.client_id, []).append(queue)
    for client_id, queues in without.items():
        waiting = sum(snapshot.waiting(queue) for queue in queues if queue in snapshot.queues)
        if waiting:
            evidence = (
                f"{client_id} should consume {queues_text(queues)}, but another client holds the lock at the broker"
            )
            problem = make_problem("held_lock", f"{evidence}; {wait(waiting)}", group=snapshot.group)
            yield Finding(problem, client_id, momentary=True)


def _idle(snapshot: DiagnosisSnapshot) -> Iterator[Finding]:
    queues = sum(len(facts.queues) for facts in snapshot.topics.values())
    reporting = (member for member in snapshot.members.values() if member.info is not None)
    idle = [one.client_id for one in reporting if not any(_counts(snapshot, queue) for queue in one.queues)]
    if idle and queues:
        members = count_noun(len(snapshot.members), "member")
        evidence = f"{list_names(idle)} has no queue: {members} share {count_noun(queues, 'queue')}"
        yield Finding(make_problem("idle_member", evidence), ", ".join(sorted(idle)), momentary=True)


def _counts(snapshot: DiagnosisSnapshot, queue: MessageQueue) -> bool:
    return not is_retry_topic(queue.topic) and topic_of_pop_retry(snapshot.group, queue.topic) is None
