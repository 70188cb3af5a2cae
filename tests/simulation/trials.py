"""Trials: once all is well, one thing happens at a time, and all must go on in time after it.

What happens in a history overlaps: how late a message may be then nobody can say. So when the group has come to rest,
some histories end with trials. In each of them something happens once, messages are sent to all queues for some
seconds, and each must be at a handler soon; the offsets must be stored soon after; a member must leave soon.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from rmqd.client.instance import ClientInstance
from rmqd.client.options import ClientOptions
from rmqd.client.sending.outgoing_message import OutgoingMessage
from rmqd.codes import RequestCode
from rmqd.errors import RmqdError
from tests.simulation import hand_overs, offset_trials, reset_trials
from tests.simulation.habits import Habits
from tests.simulation.happenings.operators import reset_one
from tests.simulation.judging.wrong import Wrong
from tests.simulation.loop import Host, LoopClock
from tests.simulation.names import GROUP, TOPIC
from tests.simulation.shares import changes, let_go, restless, undivided
from tests.simulation.trials_of_lines import lose, mute, part
from tests.simulation.trials_of_members import crowd, glances, visit

if TYPE_CHECKING:
    from tests.simulation.history import History

CALM_SECONDS: Final = 75.0
"""After which nothing is left of what broke: locks end after 60 s."""
ROUNDS: Final = 8
ROUND_SECONDS: Final = 0.5
COMMIT_SECONDS: Final = 7.0
"""In which what is finished is committed: each 5 s, and a moment more."""
MASTER_SECONDS: Final = 7.0
"""In which a master that is back is read instead of its slave: routes are asked for each 5 s, looked at each 2 s."""
LEAVE_SECONDS: Final = 2.0
LOCK_SECONDS: Final = 62.0
REFUSING_SECONDS: Final = 1.0
FLOOD_ROUNDS: Final = 70
FLOOD_SECONDS: Final = 5.0
SLOW_SECONDS: Final = 0.4
"""How long a broker that starts takes for a heartbeat."""
WATCH_SECONDS: Final = 25.0
"""In which each member divides the queues once more, and nothing changes."""
SHARE_SECONDS: Final = 1.5
"""In which a member that comes has its share: another one may have divided the queues a second before."""


class Trial(NamedTuple):
    """One thing that happens, and how late messages may be then."""

    happen: Callable[[History, Sender], Awaitable[None]]
    late_seconds: float
    late_orderly_seconds: float
    rounds: int = ROUNDS
    """How many messages are sent to each queue after it."""


class Sender:
    """Sends the messages of trials, by a client of its own."""

    def __init__(self, history: History) -> None:
        self.sent: dict[str, float] = {}
        """When each message of the present trial was stored, by its key."""
        self._history = history
        self._count = 0
        self._host = Host(history.loop, "trials")
        options = ClientOptions(nameservers=history.nameservers, instance_name="t")
        self._client = self._host.context.run(ClientInstance, options, clock=LoopClock())
        self._running = self._host.spawn(self._client.run())

    async def send(self, rounds: int) -> None:
        """Send as many messages to each queue, or nearly."""
        await self._host.spawn(self._send(rounds * sum(self._history.most_queues)))

    async def _send(self, count: int) -> None:
        for _ in range(count):
            self._count += 1
            key = f"t{self._count}"
            with contextlib.suppress(RmqdError):
                await self._client.producer.send(OutgoingMessage(TOPIC, b"x", tags="a", keys=key))
                self._history.sent.add(key)
                self.sent[key] = self._history.timeline.now()

    def late(self, name: str, late_seconds: float) -> Iterator[Wrong]:
        """Messages of a trial that came to a handler too late, by now."""
        for key, at in self.sent.items():
            began = min((call.began for call in self._history.ledger.calls.get(key, ())), default=None)
            if began is None or began > at + late_seconds:
                when = "not begun" if began is None else f"begun at {began:.3f} s"
                yield Wrong("late", f"{key}, sent at {at:.3f} s, was {when} ({name})", frozenset((key,)))

    async def end(self) -> None:
        """Stop the client."""
        self._host.context.run(self._client.stop)
        await asyncio.wait((self._running,))


async def nothing(history: History, sender: Sender) -> None:
    """All goes on."""


async def join(history: History, sender: Sender) -> None:
    """A member comes, and soon has its share."""
    history.join()
    _be_quick(history)
    await asyncio.sleep(SHARE_SECONDS)
    history.trial_wrong += undivided(history, "join")


async def leave(history: History, sender: Sender) -> None:
    """A member ends in order, and others are left."""
    await _be_several(history, 2)
    member = history.members.pop()
    history.former.append(member)
    history.timeline.note(member.name, "leaves, and its process stays")
    member.process_stays = True
    member.leave()
    began = history.timeline.now()
    await asyncio.wait((member.task,), timeout=LEAVE_SECONDS)
    if not member.task.done():
        about = f"{member.name} was told to leave at {began:.3f} s, and is there {LEAVE_SECONDS:g} s later"
        history.trial_wrong.append(Wrong("slow to leave", about))


async def kill(history: History, sender: Sender) -> None:
    """A member ends at once, and others are left: one alone knows sooner that nobody has its queues."""
    await _be_several(history, 2 + history.plan.seed % 2)
    member = history.members.pop()
    history.former.append(member)
    history.trouble("killed", member.name)
    member.kill()


async def crash(history: History, sender: Sender) -> None:
    """A broker is killed, and started again. Its queues stay with those who have them."""
    await _be_several(history, 2)
    broker = history.brokers[0]
    kept = asyncio.create_task(let_go(history, broker))
    history.trouble("crashed", broker.name, seconds=1.0)
    broker.kill()
    await asyncio.sleep(1.0)
    history.timeline.note(broker.name, "starts again")
    broker.heartbeat_seconds = SLOW_SECONDS
    await broker.start()
    history.trial_wrong += await kept
    broker.heartbeat_seconds = 0.0


async def cut(history: History, sender: Sender) -> None:
    """All connections of a member are reset."""
    member = history.members[0]
    history.trouble("cut", member.name, *(broker.name for broker in history.brokers))
    for connection in list(history.network.connections):
        if connection.near.host is member.host:
            connection.cut()


async def flood(history: History, sender: Sender) -> None:
    """More messages come than members may hold, while handlers stand still."""
    for member in history.members:
        member.handling.may_begin.clear()
    await sender.send(FLOOD_ROUNDS)
    await asyncio.sleep(FLOOD_SECONDS)
    most = history.plan.most_cached + history.options.pull_batch_size
    for member in history.members:
        snapshot = member.snapshot()
        for queue in snapshot.queues if snapshot is not None else ():
            if queue.cached > most:
                whose = f"queue {queue.queue} of {queue.topic} at {queue.broker}"
                about = f"{member.name} holds {queue.cached} messages of {whose}, and {most} are allowed"
                history.trial_wrong.append(Wrong("full", about))
        member.handling.may_begin.set()
    now = history.timeline.now()
    sender.sent.update(dict.fromkeys(sender.sent, now))


async def reset(history: History, sender: Sender) -> None:
    """All members go, one comes, and offsets are reset: the broker may tell so to a connection that is gone."""
    for member in history.members[:]:
        history.members.remove(member)
        history.former.append(member)
        member.leave()
    history.join()
    _be_quick(history)
    await asyncio.sleep(1.0)
    chance = random.Random(history.plan.seed)
    for _ in range(3):
        reset_one(history, chance)


async def refuse(history: History, sender: Sender) -> None:
    """Handlers fail, and for a moment no broker takes anything back."""
    history.trouble("busy", *(broker.name for broker in history.brokers), seconds=REFUSING_SECONDS)
    for broker in history.brokers:
        broker.refused |= {RequestCode.CONSUMER_SEND_MSG_BACK}
    for member in history.members:
        member.handling.habits = Habits(fails=1.0)
    await sender.send(1)
    for broker in history.brokers:
        broker.refused |= {RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2}
    await asyncio.sleep(REFUSING_SECONDS)
    for broker in history.brokers:
        broker.refused.clear()
    _be_quick(history)
    sender.sent.clear()


TRIALS: Final = {
    "nothing": Trial(nothing, 1.0, 1.0),
    "join": Trial(join, 1.5, 2.0),
    "leave": Trial(leave, 1.5, 2.0),
    "kill": Trial(kill, 3.0, LOCK_SECONDS),
    "crash": Trial(crash, 4.0, 7.0),
    "cut": Trial(cut, 3.0, 4.0),
    "reset": Trial(reset, 20.0, 20.0),
    "flood": Trial(flood, 10.0, 10.0),
    "refuse_commits": Trial(offset_trials.refuse_commits, 2.0, 2.0, rounds=0),
    "delay_commits": Trial(offset_trials.delay_commits, 2.0, 2.0, rounds=0),
    "lose_offsets": Trial(offset_trials.lose_offsets, 12.0, 15.0, rounds=0),
    "overstay": Trial(offset_trials.overstay, 10.0, LOCK_SECONDS),
    "hand_over_late": Trial(offset_trials.hand_over_late, 2.0, 2.0),
    "suspend": Trial(offset_trials.suspend, 10.0, LOCK_SECONDS),
    "suspend_and_leave": Trial(offset_trials.suspend_and_leave, 10.0, LOCK_SECONDS),
    "rewind": Trial(reset_trials.rewind, 20.0, 20.0),
    "rewind_by_push": Trial(reset_trials.rewind_by_push, 20.0, 20.0),
    "rewind_the_last": Trial(reset_trials.rewind_the_last, 20.0, 20.0),
    "rewind_behind_a_filter": Trial(reset_trials.rewind_behind_a_filter, 20.0, 20.0),
    "believe_no_slave": Trial(offset_trials.believe_no_slave, 10.0, 15.0),
    "crowd": Trial(crowd, 1.5, 2.0),
    "visit": Trial(visit, 2.0, 3.0),
    "glances": Trial(glances, 1.5, 2.0),
    "mute": Trial(mute, 17.0, 20.0),
    "part": Trial(part, 8.0, 10.0),
    "lose": Trial(lose, 33.0, 35.0),
    "refuse": Trial(refuse, 20.0, 20.0),
    "move": Trial(hand_overs.move, 6.0, 8.0),
    "busy": Trial(hand_overs.busy, 6.0, 6.0),
    "blink": Trial(hand_overs.blink, 10.0, 10.0),
    "win_back": Trial(hand_overs.win_back, 4.0, 4.0),
    "lose_locks": Trial(hand_overs.lose_locks, 20.0, 20.0),
    "restart": Trial(hand_overs.restart, 20.0, 20.0),
    "restart_and_join": Trial(hand_overs.restart_and_join, 20.0, 20.0),
}
"""Members of an orderly group wait for a broker's locks, and give others time to ask a restarted broker for theirs."""


async def undergo(history: History) -> None:
    """Let the trials of a plan happen, one after the other."""
    sender = Sender(history)
    for name in history.plan.trials:
        await asyncio.sleep(CALM_SECONDS - WATCH_SECONDS)
        before = changes(history)
        await asyncio.sleep(WATCH_SECONDS)
        history.trial_wrong += restless(history, before, f"before {name}")
        _be_quick(history)
        history.timeline.note("judge", f"tries: {name}")
        trial = TRIALS[name]
        await trial.happen(history, sender)
        for _ in range(trial.rounds):
            await sender.send(1)
            await asyncio.sleep(ROUND_SECONDS)
        late_seconds = trial.late_orderly_seconds if history.is_orderly else trial.late_seconds
        if history.slaves and name == "crash":
            late_seconds += MASTER_SECONDS
        await asyncio.sleep(late_seconds)
        history.trial_wrong += sender.late(name, late_seconds)
        history.trial_wrong += undivided(history, name)
        sender.sent.clear()
        await asyncio.sleep(COMMIT_SECONDS)
        history.trial_wrong += _uncommitted(history, name)
    await sender.end()


def _uncommitted(history: History, name: str) -> Iterator[Wrong]:
    """Queues of which less is stored than all, though all is done for long enough."""
    if not history.plan.auto_commit:
        return
    for broker, queues in zip(history.brokers, history.most_queues, strict=True):
        assert broker.controller is not None
        offsets, store = broker.controller.offsets, broker.controller.store
        for queue in range(queues):
            stored, end = offsets.get(GROUP, TOPIC, queue) or 0, store.max_offset(TOPIC, queue)
            if stored < end:
                about = f"{broker.name} queue {queue} is committed up to {stored} of {end} only, long after ({name})"
                yield Wrong("not committed", about)


async def _be_several(history: History, count: int) -> None:
    if len(history.members) < count:
        while len(history.members) < count:
            history.join()
        _be_quick(history)
        await asyncio.sleep(CALM_SECONDS)


def _be_quick(history: History) -> None:
    for member in history.members:
        member.handling.be_quick()
