"""Operations: offsets are reset, groups are paused, and options change."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from rmqd.broker.peer_channel import Channel, Refusal, RemotingServer, Reply
from rmqd.broker.processors.group_processor import GroupProcessor
from rmqd.consumer.consumer_options import Subscription
from rmqd.consumer.pull.assigned_queue import RESET_VALID_SECONDS
from rmqd.wire.bodies.group_bodies import ResetOffsetBody
from rmqd.wire.command import RemotingCommand
from rmqd.wire.headers.group_headers import ResetOffsetRequestHeader
from tests.simulation.happenings.registry import happening
from tests.simulation.judging.passed import ALL_TAGS, Filter, Reset
from tests.simulation.names import GROUP, TOPIC

if TYPE_CHECKING:
    from rmqd.consumer.consumer_options import ConsumerOptions
    from tests.simulation.cluster import Broker
    from tests.simulation.history import History

ALONE_SECONDS: Final = (0.0, 1.0, 30.0)
HELD_SECONDS: Final = (0.0, 1.0, 20.0)
GONE_SECONDS: Final = 60.0
FILTERS: Final = (ALL_TAGS, "a || b", "b || c")
HELD_POP_SECONDS: Final = 20.0
"""How long a pop held by a broker may use the filter that it was sent with: docs/pop.md."""
FORWARD_BY_TIME: Final = -1


@happening(is_trouble=False, weight=0.5, suits_broadcasting=False)
async def reset(history: History, chance: random.Random) -> None:
    """The group's offset in one queue is set back or forward; the next pull response reports it."""
    reset_one(history, chance)


@happening(is_trouble=False, weight=0.3, suits_broadcasting=False)
async def reset_alone(history: History, chance: random.Random) -> None:
    """All members leave, the group's offset is reset, and a member joins."""
    leaving = list(history.members)
    for _ in leaving:
        member = history.take_out(chance)
        history.timeline.note(member.name, "leaves")
        member.leave()
    if leaving:
        await asyncio.wait([member.task for member in leaving], timeout=GONE_SECONDS)
    reset_one(history, chance)
    await asyncio.sleep(chance.choice(ALONE_SECONDS))
    history.join()


# Members that pop ignore pushed resets.
@happening(is_trouble=False, weight=0.3, ways=("concurrently", "orderly"), suits_broadcasting=False)
async def reset_by_push(history: History, chance: random.Random) -> None:
    """All offsets of a broker are reset, and the broker notifies the members (useServerSideResetOffset off)."""
    broker = chance.choice(history.brokers)
    times = [row.store_timestamp for row in broker.disk.records() if row.topic == TOPIC]
    if times:
        await push_reset(history, broker, chance.choice((FORWARD_BY_TIME, times[0], *chance.choices(times, k=2))))


@happening(is_trouble=False, weight=0.5)
async def hold(history: History, chance: random.Random) -> None:
    """The group is paused and resumed in one member."""
    member = history.any_member(chance)
    if member is not None:
        seconds = chance.uniform(0, chance.choice(HELD_SECONDS))
        history.timeline.note(member.name, f"is held for {seconds:g} s")
        member.call(member.consumer.pause)
        await asyncio.sleep(seconds)
        history.timeline.note(member.name, "is let go on")
        member.call(member.consumer.resume)


@happening(is_trouble=False, weight=0.5)
async def change(history: History, chance: random.Random) -> None:
    """All running members apply changed options."""
    options = replace(
        history.options,
        pull_batch_size=chance.choice((1, 4, 32)),
        pull_interval_seconds=chance.choice((0.0, 0.1, 1.0)),
        pull_threshold_for_queue=chance.choice((1, 10, 1000)),
        consume_concurrently_max_span=chance.choice((1, 10, 2000)),
        persist_consumer_offset_interval_seconds=chance.choice((1.0, 5.0)),
        pull_rate_limit=chance.choice((0, 0, 50)),
    )
    history.timeline.note("operator", "changes options")
    await change_options(history, options)


@happening(is_trouble=False, weight=0.5, suits_java=False)
async def filter_otherwise(history: History, chance: random.Random) -> None:
    """All running members apply another tag subscription."""
    await subscribe(history, chance.choice(FILTERS))


async def subscribe(history: History, expression: str) -> None:
    """Apply a tag subscription to all members."""
    before = list(history.passed.filters)
    history.timeline.note("operator", f"subscribes {expression}")
    history.passed.filters.append(Filter(history.timeline.now(), expression))
    await change_options(history, replace(history.options, subscriptions={TOPIC: Subscription(expression, "TAG")}))
    held_seconds = HELD_POP_SECONDS if history.plan.way == "pop" else 0.0
    for one in before:
        one.until = min(one.until, history.timeline.now() + held_seconds)


@happening(is_trouble=False, weight=0.5)
async def restart(history: History, chance: random.Random) -> None:
    """A member restarts with another concurrency and batch size."""
    history.options = replace(
        history.options,
        concurrency=chance.choice((1, 4, 20)),
        consume_message_batch_max_size=chance.choice((1, 8)),
    )
    if history.members:
        member = history.take_out(chance)
        history.timeline.note(member.name, "leaves, to begin anew")
        member.leave()
        await asyncio.wait((member.task,), timeout=GONE_SECONDS)
        history.join()


async def change_options(history: History, options: ConsumerOptions) -> None:
    """Apply options to all members. Members that join later start with them."""
    history.options = options
    changes = [member.host.spawn(member.change(options)) for member in history.members]
    if changes:
        await asyncio.wait(changes, timeout=GONE_SECONDS)


def reset_one(history: History, chance: random.Random) -> None:
    """Set the group's offset in one queue back or forward; the next pull response reports it."""
    broker = chance.choice(history.brokers)
    if broker.controller is None or broker.host.is_paused:
        return
    store = broker.controller.store
    queue = chance.randrange(history.plan.queues[history.brokers.index(broker)])
    committed, end = broker.controller.offsets.get(GROUP, TOPIC, queue), store.max_offset(TOPIC, queue)
    if committed is not None:
        offset = chance.choice(
            (0, end, chance.randint(0, min(committed, end)), chance.randint(min(committed, end), end))
        )
        set_offset(history, broker, queue, offset)


def set_offset(history: History, broker: Broker, queue: int, offset: int) -> None:
    """Set the group's offset in one queue; the next pull response reports it. Raises Refusal."""
    assert broker.controller is not None
    stored = broker.controller.offsets.get(GROUP, TOPIC, queue)
    reset = _note_reset(history, broker, queue, offset)
    if offset == stored and len(history.members) + len(history.former) > 1:
        # If a previous owner's held pull reports the reset, the new owner finds only its own stored offset.
        history.unheard.add(reset)
    header = ResetOffsetRequestHeader(
        topic=TOPIC, group=GROUP, timestamp=0, is_force=True, queue_id=queue, offset=offset
    )
    _ask(broker, header)


async def push_reset(history: History, broker: Broker, time: int) -> None:
    """Reset all offsets of a broker to a time, and let it notify the members."""
    if broker.controller is None or broker.host.is_paused:
        return
    if any(
        broker.controller.offsets.pending_reset(GROUP, TOPIC, queue) is not None
        for queue in broker.controller.offsets.queues(GROUP, TOPIC)
    ):
        return  # a real broker uses one kind of reset, and does not change it in between
    header = ResetOffsetRequestHeader(topic=TOPIC, group=GROUP, timestamp=time, is_force=True)
    settings = broker.controller.settings
    broker.controller.change_settings(replace(settings, useServerSideResetOffset=False))
    try:
        reply = _ask(broker, header)
    except Refusal as refusal:
        history.timeline.note(broker.name, f"pushes no reset: {refusal}")
        return
    finally:
        broker.controller.change_settings(settings)
    targets = ResetOffsetBody.from_json(reply.body).offset_table.items()
    resets = [_note_reset(history, broker, queue.queue_id, offset, is_pushed=True) for queue, offset in targets]
    nobodys = [reset for reset in resets if not history.has_owner(reset)]
    await asyncio.sleep(RESET_VALID_SECONDS)
    history.unheard.update(reset for reset in nobodys if not history.has_owner(reset))


def _note_reset(history: History, broker: Broker, queue: int, offset: int, *, is_pushed: bool = False) -> Reset:
    assert broker.controller is not None
    end = broker.controller.store.max_offset(TOPIC, queue)
    how = "pushes a reset of" if is_pushed else "resets"
    history.timeline.note("operator", f"{how} {broker.name} queue {queue} to {offset} of {end}")
    reset = Reset(history.timeline.now(), broker.name, queue, offset, end, is_pushed)
    history.passed.reset(reset)
    return reset


def _ask(broker: Broker, header: ResetOffsetRequestHeader) -> Reply:
    """Send mqadmin's reset request to a broker, on a separate connection. Raises Refusal."""
    assert broker.controller is not None
    request = RemotingCommand(header.code, ext_fields=header.ext_fields())
    return GroupProcessor(broker.controller).reset(Channel(RemotingServer("operator")), request)
