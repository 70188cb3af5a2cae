"""Rules of the diagnosis that explain why a group's messages wait."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from rmqd.client.group_reader import MemberReport
from rmqd.consumer.health.causes import CAUSES, make_problem
from rmqd.consumer.health.group_problems import list_names
from rmqd.operate.diagnosis.diagnosis_facts import FAILING, DiagnosisSnapshot, Finding, queues_text, wait
from rmqd.operate.queries.message_queries import FoundMessage
from rmqd.runtime.plain_text import count_noun, duration
from rmqd.wire.bodies.group_bodies import ProcessQueueInfo
from rmqd.wire.bodies.heartbeat_data import MessageModel
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.properties import ORIGIN_MESSAGE_ID, UNIQ_KEY

OLD_SECONDS: Final = 10.0
"""It is normal that messages wait for a shorter time, because members commit every 5 s."""
BEGUN_SECONDS: Final = 60.0
"""Every member reports its start offset within this time after its start."""
CATCHING_UP_SECONDS: Final = 300.0
"""If a queue would have no waiting messages within this time, it is catching up, and is not reported."""
POISONED_TIMES: Final = 3
"""If a message was sent back this many times, its failure is not a coincidence."""
MAX_POISONED: Final = 3
"""If more messages than this were retried recently, single messages are not the cause."""
RECENT_SECONDS: Final = 600.0
BUSY_SHARE: Final = 0.5
MAX_RATE_LIMITED_SECONDS: Final = 60.0
"""If a queue's last pull is older than this, `pull_rate_limit` cannot be the only reason."""
# Java's defaults for threads, cached messages, cached MiB and span of offsets, if a member does not report its values
_THREADS, _COUNT, _MIB, _SPAN = 20, 1000, 100, 2000


def illegal_offsets(snapshot: DiagnosisSnapshot) -> Iterator[Finding]:
    """Yield a problem for queues in which the group's offset is outside the queue's ends."""
    illegal: dict[tuple[str, str], dict[MessageQueue, int]] = {}  # (topic, side) -> queue -> distance from its ends
    for queue, ends in snapshot.queues.items():
        if (place := snapshot.group_offset(queue)) is not None and not ends.min <= place <= ends.max:
            side = "below its first message" if place < ends.min else "above its end"
            illegal.setdefault((queue.topic, side), {})[queue] = max(ends.min - place, place - ends.max)
    for (topic, side), queues in illegal.items():
        first = min(queues)
        ends = snapshot.queues[first]
        evidence = f"the group would continue in {queues_text(queues)} at an offset {side}"
        evidence += f" (queue {first.queue_id}: at {snapshot.group_offset(first)}, outside {ends.min} to {ends.max})"
        if side == "below its first message":
            evidence += f": {count_noun(sum(queues.values()), 'message')} deleted before being handled"
        problem = make_problem("offset_illegal", evidence, group=snapshot.group, topic=topic)
        yield Finding(problem, queues_text(queues), momentary=bool(snapshot.members), queues=frozenset(queues))


def failures(snapshot: DiagnosisSnapshot) -> Iterator[Finding]:
    """Yield a problem if the same few messages fail repeatedly, a circuit is open, or many attempts fail."""
    ok, failed = snapshot.rates
    tried = [seen for seen in snapshot.retried if snapshot.at - seen.stored_at_ms / 1000 < RECENT_SECONDS]
    poisoned = {_first_id(seen): seen for seen in tried if seen.reconsume_times >= POISONED_TIMES}
    if failed > 0 and poisoned and len(set(map(_first_id, tried))) <= MAX_POISONED:
        failing = list_names(
            f"{one}{_keys(seen.keys)} (sent back {seen.reconsume_times} times)" for one, seen in poisoned.items()
        )
        evidence = f"the handler fails repeatedly at {failing}, and handles other messages at {_rate(ok)}"
        one = min(poisoned)
        step = f"`rmqd try {{group}} --id {one}` runs the handler with it and commits nothing; `rmqd message get {one}`"
        yield Finding(make_problem("poison_message", evidence, group=snapshot.group, step=step))
    elif waiting := [client_id for client_id, member in snapshot.members.items() if member.waits_for_circuit]:
        evidence = f"the circuit breaker of {list_names(waiting)} stopped the calls of the handler, because they fail"
        yield Finding(make_problem("circuit_open", evidence, group=snapshot.group))
    elif not snapshot.orderly and any(
        failed * 60 >= least and failed >= share * (ok + failed) for least, share in FAILING
    ):
        yield _failing(snapshot)


def _first_id(retry: FoundMessage) -> str:
    """Return the id of the original message of a retry. Without the producer's id, each copy has its own id."""
    return retry.properties.get(UNIQ_KEY) or retry.properties.get(ORIGIN_MESSAGE_ID) or retry.msg_id


def _failing(snapshot: DiagnosisSnapshot) -> Finding:
    ok, failed = snapshot.rates
    who = list_names(
        client_id
        for client_id, info in snapshot.infos.items()
        if any(status.consume_failed_tps for status in info.status_table.values())
    )
    share = failed / (ok + failed)
    evidence = (
        f"in the last minute {share:.0%} of the attempts failed: {_rate(failed)} failed, {_rate(ok)} did not ({who})"
    )
    return Finding(make_problem("failing_handler", evidence, group=snapshot.group))


def stalled_queues(before: DiagnosisSnapshot, now: DiagnosisSnapshot) -> list[MessageQueue]:
    """Return the queues whose messages have waited for 10 s or more, with no progress between the snapshots."""
    return [queue for queue in _old(before, now) if before.group_offset(queue) == now.group_offset(queue)]


def late_messages(before: DiagnosisSnapshot, now: DiagnosisSnapshot) -> int:
    """Return how many messages wait in queues that make progress fast enough to need no finding."""
    queues = [queue for queue in _old(before, now) if before.group_offset(queue) != now.group_offset(queue)]
    return sum(now.waiting(queue) for queue in queues if not _why_slow(before, now, queue))


def waiting_findings(before: DiagnosisSnapshot, now: DiagnosisSnapshot) -> Iterator[Finding]:
    """Yield the reasons why, in both snapshots, messages of owned queues have waited for 10 s or more."""
    if now.model != MessageModel.CLUSTERING:  # members of a broadcasting group store their offsets in their own files
        return
    by_finding: dict[str, list[MessageQueue]] = {}
    for queue in _old(before, now):
        if any(member.on_spark for member in now.owners(queue)):  # Spark drivers report their stalled queues themselves
            continue
        is_stuck = before.group_offset(queue) == now.group_offset(queue)
        cause = _why_stuck(now, queue) if is_stuck else _why_slow(before, now, queue)
        if cause:
            by_finding.setdefault(cause, []).append(queue)
    failing = by_finding.pop("failing", [])
    if len(failing) > 1 and not any(before.group_offset(queue) != now.group_offset(queue) for queue in now.queues):
        yield _failing(now)
    elif failing:
        by_finding["poison_message"] = failing
    for cause, queues in by_finding.items():
        owner = {name for queue in queues for name in (one.client_id for one in now.owners(queue))}
        evidence = f"{_TEXTS[cause](before, now, queues)}; the member is {list_names(owner)}"
        step = _STALLED_STEP if cause == "stalled_queue" else ""
        limits = [one.limit("consumeThreadMin", _THREADS) for queue in queues for one in now.owners(queue)]
        slots, needed = max(limits, default=_THREADS), _calls_needed(before, now, queues)
        problem = make_problem(
            cause, evidence, group=now.group, topic=queues[0].topic, step=step, slots=slots, needed=needed
        )
        yield Finding(problem, "waits", queues=frozenset(queues))
        if cause in CAUSES["skewed_queue"].explains.split():
            moving = [queue for queue in queues if before.group_offset(queue) != now.group_offset(queue)]
            yield from (_skewed(now, queue, share) for queue, share in now.skewed().items() if queue in moving)


def _skewed(snapshot: DiagnosisSnapshot, queue: MessageQueue, share: float) -> Finding:
    evidence = f"{queues_text([queue])} has {share:.0%} of the topic's waiting messages, {snapshot.waiting(queue):,}"
    if sample := snapshot.samples.get(queue):
        keys = ", ".join(f"{key} ({times / len(sample):.0%})" for key, times in Counter(sample).most_common(3))
        evidence += f"; the most frequent sharding keys, or keys, of its next {len(sample)} messages: {keys}"
    return Finding(make_problem("skewed_queue", evidence, group=snapshot.group, topic=queue.topic), str(queue))


def _why_stuck(snapshot: DiagnosisSnapshot, queue: MessageQueue) -> str:
    """Return the cause for a queue in which no message finished between snapshots; empty if another rule reports it."""
    owners, pulled = snapshot.owners(queue), snapshot.pulled(queue)
    if not owners or (snapshot.orderly and pulled is not None and not pulled.locked):
        return ""
    if any(member.paused_queues or member.waits_for_circuit for member in owners):
        return ""
    if pulled is None:
        return "slow_handler" if any(one.wait_ack_count for one in snapshot.popped(queue)) else "stalled_queue"
    if not pulled.cached_msg_count:
        pulls = snapshot.at - pulled.last_pull_timestamp / 1000 < MAX_RATE_LIMITED_SECONDS
        return "rate_limit" if pulls and _is_at_rate_limit(owners[0]) else "stalled_queue"
    if snapshot.orderly:
        return "failing" if _fails(owners[0], queue.topic) else "slow_handler"
    spread = pulled.cached_msg_max_offset - pulled.cached_msg_min_offset
    return "flow_control" if spread >= owners[0].limit("consumeConcurrentlyMaxSpan", _SPAN) else "slow_handler"


_RATE_LIMIT: Final = "pull_rate_limit"


def _why_slow(before: DiagnosisSnapshot, now: DiagnosisSnapshot, queue: MessageQueue) -> str:
    """Return the cause for a queue that makes progress, but too slowly; empty if it will catch up within 5 minutes."""
    seconds = max(now.at - before.at, 0.1)
    done = (now.group_offset(queue) or 0) - (before.group_offset(queue) or 0)
    gained = done - (now.queues[queue].max - before.queues[queue].max)
    if gained > 0 and now.waiting(queue) / (gained / seconds) <= CATCHING_UP_SECONDS:
        return ""
    owners, pulled = now.owners(queue), now.pulled(queue)
    if not owners or pulled is None:
        return "slow_handler" if owners else ""
    limit = _held_back(owners[0], pulled)
    if not limit or _is_busy(owners[0], now.orderly):
        return "slow_handler"
    if limit.startswith(_RATE_LIMIT):
        return "rate_limit"
    return "slow_handler" if now.orderly else "flow_control"  # an orderly group would not be faster with a larger cache


def _held_back(member: MemberReport, pulled: ProcessQueueInfo) -> str:
    """Return the setting, as name=value, that keeps a member from pulling more messages of a queue; "" if none does."""
    spread = pulled.cached_msg_max_offset - pulled.cached_msg_min_offset
    for cached, name, default in (
        (pulled.cached_msg_count, "pullThresholdForQueue", _COUNT),
        (pulled.cached_msg_size_in_mib, "pullThresholdSizeForQueue", _MIB),
        (spread, "consumeConcurrentlyMaxSpan", _SPAN),
    ):
        if cached >= (limit := member.limit(name, default)):
            return f"{name}={limit}"
    rate = member.limit("pullRateLimit", 0)
    is_empty = pulled.cached_msg_count <= member.limit("pullBatchSize", 32)
    return f"{_RATE_LIMIT}={rate} messages a second" if rate and is_empty else ""


def _is_at_rate_limit(member: MemberReport) -> bool:
    """Return whether a member pulled at least half of its `pull_rate_limit` in the last minute."""
    rate = member.limit("pullRateLimit", 0)
    pulled = sum(one.pull_tps for one in member.info.status_table.values()) if member.info else 0.0
    return rate > 0 and pulled >= BUSY_SHARE * rate


def _is_busy(member: MemberReport, orderly: bool) -> bool:
    """Return whether a member's handler calls occupied at least half of its threads in the last minute."""
    assert member.info is not None
    slots = member.limit("consumeThreadMin", _THREADS)
    if orderly:  # an orderly group handles one call at a time for each queue
        slots = min(slots, sum(bool(one.cached_msg_count) for one in member.info.mq_table.values()))
    calls = [
        one.consume_rt / 1000 * (one.consume_ok_tps + one.consume_failed_tps)
        for one in member.info.status_table.values()
    ]
    return sum(calls) >= BUSY_SHARE * slots


def _text_of_stuck(before: DiagnosisSnapshot, now: DiagnosisSnapshot, queues: list[MessageQueue]) -> str:
    """Return the evidence for slow or stalled queues: how many messages wait, for how long, and the first one's id."""
    oldest = max(now.queues[queue].lag_seconds for queue in queues)
    text = f"{wait(sum(map(now.waiting, queues)))} in {queues_text(queues)}, the oldest for {duration(oldest)}"
    moved = sum((now.group_offset(queue) or 0) - (before.group_offset(queue) or 0) for queue in queues)
    seconds = now.at - before.at
    text += f"; {moved or 'none'} of them finished in {duration(seconds)}"
    seen = next((now.heads[queue] for queue in queues if queue in now.heads), None)
    if seen is not None and not moved:
        text += f"; the first unfinished message is {seen.msg_id}{_keys(seen.keys)} at offset {seen.offset}"
    return text


def _text_of_slow(before: DiagnosisSnapshot, now: DiagnosisSnapshot, queues: list[MessageQueue]) -> str:
    text, seconds = _text_of_stuck(before, now, queues), _call_seconds(now, queues)
    if seconds < 1:
        return text
    text += f"; a call of the handler takes {duration(seconds)}"
    needed = _calls_needed(before, now, queues)
    return f"{text}, so about {needed} calls at once are needed for the messages that arrive" if needed > 1 else text


def _call_seconds(snapshot: DiagnosisSnapshot, queues: Iterable[MessageQueue]) -> float:
    """Return the seconds that a handler call takes for these queues' topics, at the slowest owner."""
    calls = [
        status.consume_rt
        for queue in queues
        for member in snapshot.owners(queue)
        if member.info and (status := member.info.status_table.get(queue.topic)) is not None
    ]
    return max(calls, default=0.0) / 1000


def _calls_needed(before: DiagnosisSnapshot, now: DiagnosisSnapshot, queues: list[MessageQueue]) -> int:
    """Return how many concurrent calls an owner of `queues` needs to handle messages as fast as they arrive.

    All queues of an owner share its calls. 0 for an orderly group, because it makes one call at a time for each queue.
    """
    needed: defaultdict[str, float] = defaultdict(float)
    late = {owner.client_id for queue in queues for owner in now.owners(queue)}
    for queue in () if now.orderly else (one for one in before.queues if one in now.queues):
        calls = (now.queues[queue].max - before.queues[queue].max) / max(now.at - before.at, 0.1)
        for owner in (one for one in now.owners(queue) if one.client_id in late):
            batch = max(1, owner.limit("consumeMessageBatchMaxSize", 1))
            needed[owner.client_id] += calls / batch * _call_seconds(now, [queue])
    return math.ceil(max(needed.values(), default=0))


def _text_of_stalled(before: DiagnosisSnapshot, now: DiagnosisSnapshot, queues: list[MessageQueue]) -> str:
    pulls = [one.last_pull_timestamp / 1000 for queue in queues if (one := now.pulled(queue)) is not None]
    last = f"; the last pull was {duration(max(0.0, now.at - min(pulls)))} ago" if pulls and min(pulls) > 0 else ""
    return f"{_text_of_stuck(before, now, queues)}, and the member has cached none of them{last}"


def _text_of_held_back(before: DiagnosisSnapshot, now: DiagnosisSnapshot, queues: list[MessageQueue]) -> str:
    pulled = [one for queue in queues if (one := now.pulled(queue)) is not None]
    most = max(pulled, key=lambda one: one.cached_msg_count)
    limits = {_held_back(member, one) for queue in queues for member in now.owners(queue) for one in pulled} - {""}
    cached = count_noun(most.cached_msg_count, "message")
    held = f"{list_names(limits)} keeps the member from pulling; it has cached {cached}"
    return f"{held}: {_text_of_stuck(before, now, queues)}"


_TEXTS: Final[dict[str, Callable[[DiagnosisSnapshot, DiagnosisSnapshot, list[MessageQueue]], str]]] = {
    "slow_handler": _text_of_slow,
    "poison_message": lambda before, now, queues: (
        f"the handler fails repeatedly at the first message: {_text_of_stuck(before, now, queues)}"
    ),
    "flow_control": _text_of_held_back,
    "rate_limit": _text_of_held_back,
    "stalled_queue": _text_of_stalled,
}
_STALLED_STEP: Final = "check whether the member is paused or suspended, see its log and a stack dump, then restart it"


def _old(before: DiagnosisSnapshot, now: DiagnosisSnapshot) -> list[MessageQueue]:
    return [
        queue
        for queue in before.queues.keys() & now.queues.keys()
        if has_old_messages(before, queue) and has_old_messages(now, queue)
    ]


def has_old_messages(snapshot: DiagnosisSnapshot, queue: MessageQueue) -> bool:
    """Return whether messages have waited for at least 10 s in a queue, and the group's offset is legal or unknown."""
    ends = snapshot.queues[queue]
    place = snapshot.group_offset(queue)
    if place is None and snapshot.pulled(queue) is not None:
        return _is_late(snapshot, queue)
    is_legal = place is None or ends.min <= place <= ends.max
    return is_legal and snapshot.waiting(queue) > 0 and ends.lag_seconds >= OLD_SECONDS


def _is_late(snapshot: DiagnosisSnapshot, queue: MessageQueue) -> bool:
    """Return whether a queue has messages, but its owners, started at least 60 s ago, report no offset for it."""
    since = [owner.started_at for owner in snapshot.owners(queue)]
    return all(at is not None and snapshot.at - at >= BEGUN_SECONDS for at in since) and snapshot.waiting(queue) > 0


def _fails(member: MemberReport, topic: str) -> bool:
    status = None if member.info is None else member.info.status_table.get(topic)
    return status is not None and status.consume_failed_tps > 0


def _keys(keys: str | None) -> str:
    return f" [{keys}]" if keys else ""


def _rate(per_second: float) -> str:
    return f"{per_second:.1f}/s" if per_second >= 0.1 or not per_second else f"{per_second * 60:.0f}/min"
