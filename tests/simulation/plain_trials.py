"""Trials of everyday events: members join and leave, brokers restart, connections are cut, offsets are reset."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Final

from rmqd.codes import RequestCode
from tests.simulation.habits import Habits
from tests.simulation.happenings.operators import reset_one
from tests.simulation.judging.wrong import Wrong
from tests.simulation.shares import let_go, undivided
from tests.simulation.trial_steps import be_quick, be_several

if TYPE_CHECKING:
    from tests.simulation.history import History
    from tests.simulation.sender import Sender

LEAVE_SECONDS: Final = 2.0
REFUSING_SECONDS: Final = 1.0
FLOOD_ROUNDS: Final = 70
FLOOD_SECONDS: Final = 5.0
SLOW_SECONDS: Final = 0.4
"""How long a restarted broker takes to process a heartbeat."""
SHARE_SECONDS: Final = 1.5
"""How long a new member may need to get its share: another member may have rebalanced a second before."""


async def nothing(history: History, sender: Sender) -> None:
    """Nothing happens."""


async def join(history: History, sender: Sender) -> None:
    """A member joins, and soon has its share."""
    history.join()
    be_quick(history)
    await asyncio.sleep(SHARE_SECONDS)
    history.trial_wrong += undivided(history, "join")


async def leave(history: History, sender: Sender) -> None:
    """A member leaves, and others remain."""
    await be_several(history, 2)
    member = history.members.pop()
    history.former.append(member)
    history.timeline.note(member.name, "leaves, and its process stays")
    member.process_stays = True
    member.leave()
    began = history.timeline.now()
    await asyncio.wait((member.task,), timeout=LEAVE_SECONDS)
    if not member.task.done():
        about = f"{member.name} was asked to leave at {began:.3f} s, and still runs {LEAVE_SECONDS:g} s later"
        history.trial_wrong.append(Wrong("slow to leave", about))


async def kill(history: History, sender: Sender) -> None:
    """A member is killed, and others remain. A single one notices sooner that the queues have no owner."""
    await be_several(history, 2 + history.plan.seed % 2)
    member = history.members.pop()
    history.former.append(member)
    history.trouble("killed", member.name)
    member.kill()


async def crash(history: History, sender: Sender) -> None:
    """A broker is killed and started again. Its queues keep their owners."""
    await be_several(history, 2)
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
    """More messages arrive than members may cache, while handlers are blocked."""
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
    """All members leave, one joins, and offsets are reset. The broker may report a reset on a closed connection."""
    for member in history.members[:]:
        history.members.remove(member)
        history.former.append(member)
        member.leave()
    history.join()
    be_quick(history)
    await asyncio.sleep(1.0)
    chance = random.Random(history.plan.seed)
    for _ in range(3):
        reset_one(history, chance)


async def refuse(history: History, sender: Sender) -> None:
    """Handlers fail, and for a moment no broker accepts send-backs."""
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
    be_quick(history)
    sender.sent.clear()
