"""Trials: after the last failure, one event happens at a time, and the group must continue in time.

The events of a history overlap, so its messages have no maximum delay. Therefore some histories end with trials once
the group has come to rest. In each trial one event happens, and messages are sent to all queues for some seconds. Each
must reach a handler soon, the offsets must be stored soon after, and a member that leaves must stop soon.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from tests.simulation import hand_overs, offset_trials, plain_trials, reset_trials, trials_of_lines, trials_of_members
from tests.simulation.ending import PATIENCE_SECONDS, delivered
from tests.simulation.judging.wrong import Wrong
from tests.simulation.names import GROUP, TOPIC
from tests.simulation.sender import Sender
from tests.simulation.shares import changes, restless, undivided
from tests.simulation.trial_steps import CALM_SECONDS, be_quick

if TYPE_CHECKING:
    from tests.simulation.history import History

ROUNDS: Final = 8
ROUND_SECONDS: Final = 0.5
COMMIT_SECONDS: Final = 7.0
"""How long a commit of finished messages may take: each 5 s, and some more."""
MASTER_SECONDS: Final = 7.0
"""How long until members read from a recovered master instead of its slave: routes are queried each 5 s, and checked
each 2 s."""
LOCK_SECONDS: Final = 62.0
JAVA_SECONDS: Final = 25.0
"""Java renews locks and rebalances each 20 s, and waits for 3 s after a failed pull."""
WITHOUT_A_WORD: Final = frozenset(("kill", "crash", "cut", "mute"))
"""Trials in which the response to a pop may get lost: its messages stay invisible until their time is over."""
REVIVE_SECONDS: Final = 5.0
"""How long a broker may take to revive such a message, and to complete a held pop with it."""
WATCH_SECONDS: Final = 25.0
"""How long until each member has rebalanced once more, and nothing changes."""


class Trial(NamedTuple):
    """An event, and the maximum delay of messages after it."""

    happen: Callable[[History, Sender], Awaitable[None]]
    late_seconds: float
    late_orderly_seconds: float
    rounds: int = ROUNDS
    """How many messages are sent to each queue after the event."""


TRIALS: Final = {
    "nothing": Trial(plain_trials.nothing, 1.0, 1.0),
    "join": Trial(plain_trials.join, 1.5, 2.0),
    "leave": Trial(plain_trials.leave, 1.5, 2.0),
    "kill": Trial(plain_trials.kill, 3.0, LOCK_SECONDS),
    "crash": Trial(plain_trials.crash, 4.0, 7.0),
    "cut": Trial(plain_trials.cut, 3.0, 4.0),
    "reset": Trial(plain_trials.reset, 20.0, 20.0),
    "flood": Trial(plain_trials.flood, 10.0, 10.0),
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
    "crowd": Trial(trials_of_members.crowd, 1.5, 2.0),
    "visit": Trial(trials_of_members.visit, 2.0, 3.0),
    "glances": Trial(trials_of_members.glances, 1.5, 2.0),
    "mute": Trial(trials_of_lines.mute, 17.0, 20.0),
    "part": Trial(trials_of_lines.part, 8.0, 10.0),
    "lose": Trial(trials_of_lines.lose, 33.0, 35.0),
    "unlisted": Trial(trials_of_lines.unlisted, 6.0, 8.0),
    "refuse": Trial(plain_trials.refuse, 20.0, 20.0),
    "move": Trial(hand_overs.move, 6.0, 8.0),
    "busy": Trial(hand_overs.busy, 6.0, 6.0),
    "blink": Trial(hand_overs.blink, 10.0, 10.0),
    "win_back": Trial(hand_overs.win_back, 4.0, 4.0),
    "lose_locks": Trial(hand_overs.lose_locks, 20.0, 20.0),
    "restart": Trial(hand_overs.restart, 20.0, 20.0),
    "restart_and_join": Trial(hand_overs.restart_and_join, 20.0, 20.0),
}
"""Members of an orderly group wait for a broker's locks, and give others time to recover theirs from a restarted
broker."""


async def undergo(history: History) -> None:
    """Run the trials of a plan, one after the other."""
    sender = Sender(history)
    for name in history.plan.trials:
        await asyncio.sleep(CALM_SECONDS - WATCH_SECONDS)
        await _stand_still(history)
        before = changes(history)
        await asyncio.sleep(WATCH_SECONDS)
        if not history.switched:  # members that pull again release pop retry topics once these have been empty for long
            history.trial_wrong += restless(history, before, f"before {name}")
        be_quick(history)
        history.timeline.note("judge", f"tries: {name}")
        trial = TRIALS[name]
        await trial.happen(history, sender)
        for _ in range(trial.rounds):
            await sender.send(1)
            await asyncio.sleep(ROUND_SECONDS)
        late_seconds = _late_seconds(history, name)
        await asyncio.sleep(late_seconds)
        history.trial_wrong += sender.late(name, late_seconds)
        history.trial_wrong += undivided(history, name)
        sender.sent.clear()
        await asyncio.sleep(COMMIT_SECONDS)
        history.trial_wrong += _uncommitted(history, name)
    await sender.end()


async def _stand_still(history: History) -> None:
    """Wait for the messages of a reset that may have had no effect: no check waits for them.

    They are ahead of a trial's messages, and may be some hundred, with slow handlers.
    """
    since = history.timeline.now()
    while history.passed.repeats_unawaited() and history.timeline.now() < since + PATIENCE_SECONDS:
        before = delivered(history)
        await asyncio.sleep(WATCH_SECONDS)
        if before == delivered(history):
            break


def _late_seconds(history: History, name: str) -> float:
    """Return how late a message may be after a trial."""
    trial = TRIALS[name]
    late_seconds = trial.late_orderly_seconds if history.is_orderly else trial.late_seconds
    if history.slaves and name == "crash":
        late_seconds += MASTER_SECONDS
    if history.plan.java and name != "nothing":
        late_seconds += JAVA_SECONDS
    if history.pops and name in WITHOUT_A_WORD:
        late_seconds += history.most_invisible_seconds + REVIVE_SECONDS
    return late_seconds


def _uncommitted(history: History, name: str) -> Iterator[Wrong]:
    """Report queues whose stored offset is below the end, although all messages were finished long ago."""
    if not history.plan.auto_commit or history.pops or history.plan.is_broadcasting:
        return  # pops have no offsets here, and a broadcasting group has them in files
    for broker, queues in zip(history.brokers, history.most_queues, strict=True):
        assert broker.controller is not None
        offsets, store = broker.controller.offsets, broker.controller.store
        for queue in range(queues):
            stored, end = offsets.get(GROUP, TOPIC, queue) or 0, store.max_offset(TOPIC, queue)
            if stored < end:
                about = f"{broker.name} queue {queue} is committed up to {stored} of {end} only, long after ({name})"
                yield Wrong("not committed", about)
