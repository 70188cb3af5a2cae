"""Trials of the group's offsets: commits that fail or are late, and members or brokers that are unavailable.

Each is one of `trials`. The checks after it expect that all messages are handled and committed in time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from tests.simulation.judging.wrong import Wrong
from tests.simulation.names import TOPIC
from tests.simulation.trial_steps import (
    BACK_SECONDS,
    HANDLED_SECONDS,
    ROUND_SECONDS,
    go_on,
    join,
    leave,
    stand_still,
    stored_offsets,
    until,
)

if TYPE_CHECKING:
    from tests.simulation.cluster import Broker
    from tests.simulation.history import History
    from tests.simulation.members import Member
    from tests.simulation.sender import Sender

UNANSWERED_SECONDS: Final = 12.0
"""A delay of a commit so long that neither its sender nor the sender of the next commit waits for it: each waits 5
s."""
HAND_OVERS: Final = 4
AT_WORK_SECONDS: Final = 0.2
OVERSTAYED_SECONDS: Final = 13.0
"""The next owner waits for 5 s, and then commits within 5 s more."""
GONE_SECONDS: Final = 140.0
"""After this time, brokers treat a member as dead: they check each 10 s for members that were silent for 120 s."""


async def refuse_commits(history: History, sender: Sender) -> None:
    """Brokers refuse commits for some seconds, and no messages follow."""
    history.harm()
    await sender.send(1)
    await asyncio.sleep(ROUND_SECONDS)
    history.timeline.note("judge", "brokers refuse commits")
    for broker in history.brokers:
        broker.commits.refuses = True
    await sender.send(1)
    await asyncio.sleep(ROUND_SECONDS)
    history.timeline.note("judge", "brokers take commits again")
    for broker in history.brokers:
        broker.commits.refuses = False


async def delay_commits(history: History, sender: Sender) -> None:
    """Commits are late, but later commits are not; no messages follow."""
    await sender.send(1)
    for broker in history.brokers:
        broker.commits.late, broker.commits.late_seconds = 1.0, (UNANSWERED_SECONDS, UNANSWERED_SECONDS)
    await until(lambda: any(broker.commits.waiting for broker in history.brokers))
    for broker in history.brokers:
        history.trouble("late", broker.name, seconds=UNANSWERED_SECONDS)
        broker.commits.late = 0.0
    await sender.send(1)
    await asyncio.sleep(UNANSWERED_SECONDS)


async def lose_offsets(history: History, sender: Sender) -> None:
    """A broker is killed right after commits, before it flushes them; no messages follow."""
    history.harm()
    broker = history.brokers[0]
    await sender.send(1)
    await asyncio.sleep(HANDLED_SECONDS)
    await until(lambda: _is_all_stored(history, broker))
    history.trouble("crashed", broker.name, seconds=1.0)
    broker.kill()
    await asyncio.sleep(1.0)
    history.timeline.note(broker.name, "starts again")
    await broker.start()


async def overstay(history: History, sender: Sender) -> None:
    """A member joins, and handlers of the others run for longer than it waits."""
    if "hang" in history.plan.troubles or history.is_orderly:
        return  # expired messages are sent back; orderly members wait for each other
    others = list(history.members)
    await sender.send(1)
    await asyncio.sleep(HANDLED_SECONDS)
    stand_still(others)
    await sender.send(1)
    began = history.timeline.now()
    history.trouble("slow", *(member.name for member in others), seconds=OVERSTAYED_SECONDS)
    join(history)
    await sender.send(1)
    await asyncio.sleep(OVERSTAYED_SECONDS)
    go_on(others)
    await asyncio.sleep(ROUND_SECONDS)
    _note_falls(history, began)
    sender.sent.clear()  # some messages had to wait


async def hand_over_late(history: History, sender: Sender) -> None:
    """Members leave and join while commits are late, so a queue's last commit may meet an earlier one in transit."""
    for broker in history.brokers:
        broker.commits.late, broker.commits.late_seconds = 0.5, (0.5, 1.0)
    for _ in range(HAND_OVERS):
        if len(history.members) > 1:
            leave(history, await _at_work(history, sender))
        else:
            await _at_work(history, sender)
            join(history)
        await asyncio.sleep(AT_WORK_SECONDS)
        go_on([*history.members, *history.former])
        await asyncio.sleep(ROUND_SECONDS)
    for broker in history.brokers:
        broker.commits.late = 0.0
    sender.sent.clear()


async def _at_work(history: History, sender: Sender) -> Member:
    """Let all handlers have messages behind finished ones. Return the first member."""
    await sender.send(2)
    await asyncio.sleep(HANDLED_SECONDS)
    stand_still(history.members)
    await sender.send(2)
    await asyncio.sleep(AT_WORK_SECONDS)
    return history.members[0]


async def suspend(history: History, sender: Sender) -> None:
    """A member is suspended with finished, running and unstarted messages, and other members acquire them meanwhile."""
    await _suspend(history, sender, leaves=False)


async def suspend_and_leave(history: History, sender: Sender) -> None:
    """A suspended member leaves as soon as it resumes."""
    await _suspend(history, sender, leaves=True)


async def _suspend(history: History, sender: Sender, *, leaves: bool) -> None:
    if "hang" in history.plan.troubles:
        return
    if len(history.members) < 2:
        join(history)
        await asyncio.sleep(BACK_SECONDS)
    member = history.members[0]
    await sender.send(2)
    await asyncio.sleep(HANDLED_SECONDS)
    stand_still([member])
    await sender.send(3)
    began = history.timeline.now()
    history.trouble("paused", member.name, seconds=GONE_SECONDS + 3 * ROUND_SECONDS)
    history.pause(member.host, GONE_SECONDS + 3 * ROUND_SECONDS)
    await asyncio.sleep(GONE_SECONDS)
    await sender.send(1)
    await asyncio.sleep(3 * ROUND_SECONDS)
    back = history.timeline.now()
    go_on([member])
    if leaves:
        leave(history, member)
    await asyncio.sleep(BACK_SECONDS)
    _note_falls(history, began)
    if history.is_orderly:
        history.trial_wrong += _begun_again(history, member, back)
    sender.sent.clear()


async def believe_no_slave(history: History, sender: Sender) -> None:
    """A broker is down for some time, and its slave's offsets are older than the members' progress."""
    if not history.slaves:
        return
    broker, slave = history.brokers[0], history.slaves[0]
    slave.is_cut_off = True
    await sender.send(3)
    began = set(sender.sent)
    await asyncio.sleep(2 * ROUND_SECONDS)
    history.trouble("crashed", broker.name, seconds=BACK_SECONDS)
    broker.kill()
    await asyncio.sleep(BACK_SECONDS)
    history.timeline.note(broker.name, "starts again")
    await broker.start()
    slave.is_cut_off = False
    await asyncio.sleep(BACK_SECONDS)
    for key in sorted(began):
        if len(history.ledger.calls[key]) > 1:
            about = f"{key} was redelivered, because a slave was behind"
            history.trial_wrong.append(Wrong("twice", about, frozenset((key,))))


def _is_all_stored(history: History, broker: Broker) -> bool:
    """Whether the stored offset of each queue is its end."""
    assert broker.controller is not None
    store = broker.controller.store
    queues = range(history.most_queues[history.brokers.index(broker)])
    return all(stored_offsets(history, broker.name).get(queue, 0) == store.max_offset(TOPIC, queue) for queue in queues)


def _begun_again(history: History, member: Member, since: float) -> Iterator[Wrong]:
    """Report messages that a member started after a time, although others had finished them before."""
    for key, calls in history.ledger.calls.items():
        places = {call.place for call in calls if call.is_good and call.until is not None and call.until < since}
        if any(call.member == member.name and call.began >= since and call.place in places for call in calls):
            yield Wrong("twice", f"{key} by {member.name}, which had been suspended", frozenset((key,)))


def _note_falls(history: History, since: float) -> None:
    """Record commits below the stored offset as faults: a late member must read the stored offset first."""
    for fall in history.offsets.falls:
        if fall.at >= since:
            about = f"{fall.broker} queue {fall.queue} from {fall.former} to {fall.offset} at {fall.at:.3f} s"
            history.trial_wrong.append(Wrong("fell", about))
