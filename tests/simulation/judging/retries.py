"""Retries and dead letters: too few or too many attempts, and attempts that are too early."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from rmqd.broker.broker_settings import BrokerSettings
from rmqd.consumer.handling.send_back import FIRST_DELAY_LEVEL
from rmqd.consumer.handling.settlement import LOCAL_RETRY_SECONDS
from tests.simulation.judging.java import SEEN_SECONDS
from tests.simulation.judging.trouble import SENT_BACK_SECONDS
from tests.simulation.judging.twice import counted_twice, settled_times
from tests.simulation.judging.wrong import Wrong
from tests.simulation.ledger import Call, Verdict

if TYPE_CHECKING:
    from tests.simulation.history import History

SECONDS: Final = {"s": 1, "m": 60, "h": 3600}
NOTICED_SECONDS: Final = 3.0
"""How long members need to notice a change of members: the network takes up to a second, and a rebalance follows at
most a second after the last."""
CONNECTED_SECONDS: Final = 1.0
"""How long after a cut a member has connected again."""
BROKERS_SECONDS: Final = 0.001
"""Brokers count in milliseconds."""
LEVELS: Final = [int(text[:-1]) * SECONDS[text[-1]] for text in BrokerSettings().messageDelayLevel.split()]


def dead_letters(history: History) -> Iterator[Wrong]:
    """Dead letters that no handler asked for, and that have attempts left."""
    for key in history.ledger.dead:
        calls = history.ledger.calls.get(key, [])
        if any(call.verdict is Verdict.DEAD for call in calls):
            continue
        failed = {call.attempt for call in calls if call.verdict is Verdict.FAILED}
        missing = [attempt for attempt in range(history.most_attempts + 1) if attempt not in failed]
        if missing:
            about = f"{key} is a dead letter, and attempt {missing[0] + 1} of {history.most_attempts + 1} is missing"
            yield Wrong("dead-lettered early", about, frozenset((key,)))


def too_many(history: History) -> Iterator[Wrong]:
    """Attempts beyond the last one, and attempts that were made twice without a cause."""
    stored = history.stored()
    for key, calls in history.ledger.calls.items():
        if any(history.passed.resets(place) for place in stored.get(key, ())):
            continue  # a reset repeats attempts
        tried: dict[int, list[Call]] = {}
        for call in calls:
            if call.verdict not in (Verdict.FAILED, Verdict.DEAD):
                continue
            same = tried.setdefault(call.attempt, [])
            same.append(call)
            # A message that was stored or delivered twice fails twice, because both copies are retried separately.
            is_more = len(same) > max(1, len(stored.get(key, ())), len(tried.get(call.attempt - 1, ())))
            if (is_more or call.attempt > history.most_attempts) and not _is_explained(history, same):
                about = f"{_told(call)}, of {history.most_attempts + 1}; before that at {same[0].began:.3f} s"
                yield Wrong("tried too often", about, frozenset((key,)))


def too_early(history: History) -> Iterator[Wrong]:
    """Retries that came before the delay of their level."""
    for key, calls in history.ledger.calls.items():
        for call in calls:
            if not call.is_retry:
                continue
            due = min((_due(history, former, call) for former in calls if _leads_to(former, call)), default=None)
            if due is None or call.began < due - BROKERS_SECONDS:
                about = f"{_told(call)}, due at {due} s"
                yield Wrong("retried too early", about, frozenset((key,)))


def delay_seconds(history: History, failed: Call) -> int:
    """Return the delay of a failed message's retry in a group that pulls."""
    level = history.plan.delay_level if failed.level is None else failed.level
    return LEVELS[(level or FIRST_DELAY_LEVEL + failed.attempt) - 1]


def _leads_to(former: Call, retry: Call) -> bool:
    """Whether a call can be the reason for a retry. If a dead letter cannot be sent, the member repeats the call."""
    is_unfinished = former.verdict in (Verdict.FAILED, Verdict.DEAD) and former.until is not None
    return is_unfinished and former.attempt == retry.attempt - 1


def _due(history: History, failed: Call, again: Call) -> float:
    """Return the earliest time when a failed message may be redelivered."""
    assert failed.until is not None
    if (seconds := history.java.again_seconds(failed, again)) is not None:
        return failed.until + seconds
    after: float = delay_seconds(history, failed)
    may_fail = _is_cut(history, failed) or any(one.explains_attempts([failed]) for one in history.causes)
    if again.member == failed.member and may_fail:
        after = min(after, LOCAL_RETRY_SECONDS)  # the send-back failed
    return failed.until + after


def _is_cut(history: History, failed: Call) -> bool:
    """Whether a trial cut the member's connections just before, or while the message was sent back."""
    assert failed.until is not None
    first, last = failed.until - CONNECTED_SECONDS, failed.until + SENT_BACK_SECONDS
    return any(first <= at <= last and name == failed.member for at, name in history.cuts)


def _is_explained(history: History, same: list[Call]) -> bool:
    """Whether an attempt may be repeated.

    After a trouble, messages may be delivered twice, and send-backs may fail. If failed messages stay in their queue,
    the owner counts their attempts, so the next owner starts at the first attempt. It may be the same member: when the
    topic's queues or the members change, a member may release a queue and acquire it again. After a hand-over that took
    too long both owners have the message, and count a duplicate.
    """
    if history.plan.java and history.java.explains(history.ledger.calls[same[0].key], settled_times(history)):
        return True
    if history.plan.repeats_in_place and len(same) > 1 and _are_apart(history, *same[-2:]):
        return True
    if len({call.member for call in same}) > 1:
        is_counted = history.plan.repeats_in_place or counted_twice(history)["handed_over"]
        if is_counted:
            return True
    return any(trouble.explains_attempts(same) for trouble in history.causes)


def _are_apart(history: History, before: Call, call: Call) -> bool:
    """Whether members may have rebalanced between two calls, because queues or members changed."""
    is_changed = any(before.began - SEEN_SECONDS < at < call.began for at in history.changes)
    return is_changed or any(before.began - NOTICED_SECONDS < at < call.began for at in history.comings)


def _told(call: Call) -> str:
    return f"attempt {call.attempt + 1} of {call.key} by {call.member} at {call.began:.3f} s"
