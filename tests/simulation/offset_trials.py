"""Trials of what becomes of the group's offsets: commits that fail or are late, resets, and members that are away.

Each is one of `trials`, whose checks come after it: all is begun and committed in time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from tests.simulation.happenings.operators import FILTERS, push_reset, set_offset, subscribe
from tests.simulation.judging.passed import ALL_TAGS, Reset
from tests.simulation.judging.wrong import Wrong
from tests.simulation.ledger import Stored
from tests.simulation.names import GROUP, TOPIC

if TYPE_CHECKING:
    from tests.simulation.cluster import Broker
    from tests.simulation.history import History
    from tests.simulation.members import Member
    from tests.simulation.trials import Sender

INTERVAL_SECONDS: Final = 5.0
"""Between two rounds of commits."""
ROUND_SECONDS: Final = INTERVAL_SECONDS + 1.0
HANDLED_SECONDS: Final = 1.0
"""In which handlers that are quick have done a few messages."""
UNANSWERED_SECONDS: Final = 12.0
"""By how much a commit is late that nobody waits for, nor for one that is sent after it: each wait takes 5 s."""
OVERSTAYED_SECONDS: Final = 13.0
"""The next owner waits for 5 s, and then commits within 5 s more."""
GONE_SECONDS: Final = 140.0
"""After which brokers take a member for dead: they look each 10 s whether they have heard of it for 120 s."""
BACK_SECONDS: Final = 20.0
"""In which a member that was away has its queues again."""
REWOUND: Final = 5
"""How many messages a reset goes back."""
TOLD_SECONDS: Final = 1.0
STORED_SECONDS: Final = 7.0
"""In which a reset that was told is stored, behind a commit before it, and no later round has replaced it."""
LEAVE_SECONDS: Final = 40.0
LOOK_SECONDS: Final = 0.02


async def refuse_commits(history: History, sender: Sender) -> None:
    """Brokers refuse commits for some seconds, and nothing comes after that."""
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
    """Commits are late, and those after them are not; nothing comes after that."""
    await sender.send(1)
    for broker in history.brokers:
        broker.commits.late, broker.commits.late_seconds = 1.0, (UNANSWERED_SECONDS, UNANSWERED_SECONDS)
    await _until(lambda: any(broker.commits.waiting for broker in history.brokers))
    for broker in history.brokers:
        history.trouble("late", broker.name, seconds=UNANSWERED_SECONDS)
        broker.commits.late = 0.0
    await sender.send(1)
    await asyncio.sleep(UNANSWERED_SECONDS)


async def lose_offsets(history: History, sender: Sender) -> None:
    """A broker is killed right after commits, which it has not written down; and nothing comes after that."""
    broker = history.brokers[0]
    await sender.send(1)
    await asyncio.sleep(HANDLED_SECONDS)
    await _until(lambda: _is_all_stored(history, broker))
    history.trouble("crashed", broker.name, seconds=1.0)
    broker.kill()
    await asyncio.sleep(1.0)
    history.timeline.note(broker.name, "starts again")
    await broker.start()


async def overstay(history: History, sender: Sender) -> None:
    """A member comes, and handlers of the others are at work for longer than it waits."""
    if "hang" in history.plan.troubles or history.is_orderly:
        return  # what takes longer than consume_timeout is sent back; and an orderly group waits for each other
    others = list(history.members)
    await sender.send(1)
    await asyncio.sleep(HANDLED_SECONDS)
    _stand_still(others)
    await sender.send(1)
    began = history.timeline.now()
    history.trouble("slow", *(member.name for member in others), seconds=OVERSTAYED_SECONDS)
    _join(history)
    await sender.send(1)
    await asyncio.sleep(OVERSTAYED_SECONDS)
    _go_on(others)
    await asyncio.sleep(ROUND_SECONDS)
    _note_falls(history, began)
    sender.sent.clear()  # some had to wait


async def suspend(history: History, sender: Sender) -> None:
    """A member is suspended with messages that are done, begun and not begun, and others have them meanwhile."""
    await _suspend(history, sender, leaves=False)


async def suspend_and_leave(history: History, sender: Sender) -> None:
    """The same, and it leaves as soon as it goes on."""
    await _suspend(history, sender, leaves=True)


async def _suspend(history: History, sender: Sender, *, leaves: bool) -> None:
    if "hang" in history.plan.troubles:
        return
    if len(history.members) < 2:
        _join(history)
        await asyncio.sleep(BACK_SECONDS)
    member = history.members[0]
    await sender.send(2)
    await asyncio.sleep(HANDLED_SECONDS)
    _stand_still([member])
    await sender.send(3)
    began = history.timeline.now()
    history.trouble("paused", member.name, seconds=GONE_SECONDS + 3 * ROUND_SECONDS)
    history.pause(member.host, GONE_SECONDS + 3 * ROUND_SECONDS)
    await asyncio.sleep(GONE_SECONDS)
    await sender.send(1)
    await asyncio.sleep(3 * ROUND_SECONDS)
    back = history.timeline.now()
    _go_on([member])
    if leaves:
        _leave(history, member)
    await asyncio.sleep(BACK_SECONDS)
    _note_falls(history, began)
    if history.is_orderly:
        history.trial_wrong += _begun_again(history, member, back)
    sender.sent.clear()


async def rewind(history: History, sender: Sender) -> None:
    """Offsets are set back while commits are under way, and handlers begin nothing until that is stored."""
    await _rewind(history, sender, _set_back)


async def rewind_by_push(history: History, sender: Sender) -> None:
    """The same, and brokers tell the members."""
    await _rewind(history, sender, _push_back)


async def rewind_the_last(history: History, sender: Sender) -> None:
    """The last member leaves, and brokers tell it of a reset while its handlers are at work; then another one comes."""
    *others, last = history.members
    for member in others:
        _leave(history, member)
    await asyncio.sleep(BACK_SECONDS)
    await sender.send(1)
    await asyncio.sleep(HANDLED_SECONDS)
    _stand_still([last])
    await sender.send(2)
    _leave(history, last)
    await asyncio.sleep(HANDLED_SECONDS)
    pushes = _push_back(history)
    await asyncio.gather(*pushes)
    _go_on([last])
    await asyncio.wait((last.task,), timeout=LEAVE_SECONDS)
    _join(history)


async def rewind_behind_a_filter(history: History, sender: Sender) -> None:
    """The members take over another filter, and offsets are set back: the broker tells pulls of before."""
    await sender.send(1)
    await asyncio.sleep(ROUND_SECONDS)
    await subscribe(history, FILTERS[1])
    _set_back(history)
    await sender.send(2)
    await asyncio.sleep(ROUND_SECONDS)
    await subscribe(history, ALL_TAGS)


async def believe_no_slave(history: History, sender: Sender) -> None:
    """A broker is away for some time, and its slave has less than the members have handled."""
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
            about = f"{key} came again, as a slave had not got so far"
            history.trial_wrong.append(Wrong("twice", about, frozenset((key,))))


async def _rewind(history: History, sender: Sender, reset: Callable[[History], list[asyncio.Task[None]]]) -> None:
    for broker in history.brokers:
        broker.commits.late, broker.commits.late_seconds = 1.0, (1.0, 1.0)
    members, began = list(history.members), history.timeline.now()
    await sender.send(1)
    await asyncio.sleep(HANDLED_SECONDS)
    _stand_still(members)
    await _until(lambda: any(broker.commits.waiting for broker in history.brokers))
    orders = reset(history)
    await sender.send(2)
    await asyncio.sleep(TOLD_SECONDS)
    told = [one for one in _resets(history, began) if not _is_pending(history, one) and one not in history.unheard]
    await asyncio.sleep(STORED_SECONDS)
    for one in told:
        stored = _stored(history, one.broker)[one.queue]
        if stored != one.offset:
            about = f"{one.broker} queue {one.queue} has {stored}, and was set to {one.offset}, with nothing done since"
            history.trial_wrong.append(Wrong("reset", about))
    await asyncio.gather(*orders)
    for broker in history.brokers:
        broker.commits.late = 0.0
    _go_on(members)


def _set_back(history: History) -> list[asyncio.Task[None]]:
    """Set the offset of each queue back by some messages, of which the next pull is told."""
    for broker in history.brokers:
        for queue, stored in _stored(history, broker.name).items():
            if stored:
                set_offset(history, broker, queue, max(0, stored - REWOUND))
    return []


def _push_back(history: History) -> list[asyncio.Task[None]]:
    """Have brokers tell of a reset to the time of a late message."""
    pushes = []
    for broker in history.brokers:
        times = [row.store_timestamp for row in broker.disk.records() if row.topic == TOPIC][-REWOUND:]
        pushes += [asyncio.create_task(push_reset(history, broker, time)) for time in times[:1]]
    return pushes


def _resets(history: History, began: float) -> Iterator[Reset]:
    """The latest reset of each queue since then."""
    for broker in history.brokers:
        for queue in _stored(history, broker.name):
            yield from (one for one in history.passed.resets(Stored(broker.name, queue, 0))[-1:] if one.at >= began)


def _stored(history: History, name: str) -> dict[int, int]:
    """What a broker has stored for each queue."""
    broker = next(one for one in history.brokers if one.name == name)
    assert broker.controller is not None
    return broker.controller.offsets.queues(GROUP, TOPIC)


def _is_all_stored(history: History, broker: Broker) -> bool:
    """Whether a broker has stored the end of each queue."""
    assert broker.controller is not None
    store = broker.controller.store
    queues = range(history.most_queues[history.brokers.index(broker)])
    return all(_stored(history, broker.name).get(queue, 0) == store.max_offset(TOPIC, queue) for queue in queues)


def _is_pending(history: History, reset: Reset) -> bool:
    """Whether no pull has been told of it."""
    broker = next(one for one in history.brokers if one.name == reset.broker)
    assert broker.controller is not None
    return broker.controller.offsets.pending_reset(GROUP, TOPIC, reset.queue) is not None


def _begun_again(history: History, member: Member, since: float) -> Iterator[Wrong]:
    """What a member has begun since then, though others had done it by then."""
    for key, calls in history.ledger.calls.items():
        places = {call.place for call in calls if call.is_good and call.until is not None and call.until < since}
        if any(call.member == member.name and call.began >= since and call.place in places for call in calls):
            yield Wrong("twice", f"{key} by {member.name}, which had been away", frozenset((key,)))


def _note_falls(history: History, since: float) -> None:
    """Note commits below what was stored: whoever comes late must look before."""
    for fall in history.offsets.falls:
        if fall.at >= since:
            about = f"{fall.broker} queue {fall.queue} from {fall.former} to {fall.offset} at {fall.at:.3f} s"
            history.trial_wrong.append(Wrong("fell", about))


def _stand_still(members: list[Member]) -> None:
    for member in members:
        member.handling.may_begin.clear()


def _go_on(members: list[Member]) -> None:
    for member in members:
        member.handling.may_begin.set()


def _join(history: History) -> None:
    history.join()
    history.members[-1].handling.be_quick()


def _leave(history: History, member: Member) -> None:
    history.members.remove(member)
    history.former.append(member)
    history.timeline.note(member.name, "leaves")
    member.leave()


async def _until(is_so: Callable[[], bool]) -> None:
    """Wait until something is so, for some rounds of commits at most."""
    for _ in range(round(3 * INTERVAL_SECONDS / LOOK_SECONDS)):
        if is_so():
            return
        await asyncio.sleep(LOOK_SECONDS)
