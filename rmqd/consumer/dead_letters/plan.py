"""The plan of a command on a group's dead letters, and the receiving members: shown before the command acts."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field

from rmqd.client.looks.brokers import Brokers
from rmqd.client.looks.group import running_infos
from rmqd.client.looks.groups import connections, is_known
from rmqd.consumer.dead_letters.choice import Choice
from rmqd.consumer.dead_letters.marks import Marks
from rmqd.consumer.dead_letters.reading import LetterQueue, letter_queues, letters_left
from rmqd.errors import RmqdError, RouteNotFoundError
from rmqd.wire.bodies.running_info import PROP_CONSUME_ORDERLY
from rmqd.wire.topics import dlq_topic


@dataclass(frozen=True, slots=True)
class Receivers:
    """The members that would get the copies. `is_orderly` is whether any of them reports orderly consumption."""

    members: int
    is_orderly: bool


@dataclass(slots=True)
class Plan:
    """The chosen letters. `refused` counts letters that cannot be replayed, by reason."""

    queues: list[LetterQueue]
    left: int = 0
    chosen: int = 0
    first_stored_ms: int = 0
    reasons: Counter[str | None] = field(default_factory=Counter)
    topics: Counter[str | None] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)


async def expect_group(brokers: Brokers, group: str) -> None:
    """Raise RmqdError if no broker knows the group or has its letters."""
    try:
        await brokers.client.routes.lookup(dlq_topic(group))
    except RouteNotFoundError:
        if not await is_known(brokers, group):
            raise RmqdError(
                f"no broker knows group {group}; run `rmqd dlq list` to see the groups with dead letters"
            ) from None


async def make_plan(brokers: Brokers, group: str, marks: Marks, choice: Choice) -> tuple[Plan, dict[str, RmqdError]]:
    """Read all letters that are left, and count the chosen ones.

    Returns the errors of failed queries too. Raises RmqdError.
    """
    queues, errors = await letter_queues(brokers, group, marks)
    plan = Plan(queues)
    await asyncio.gather(*(_count(brokers, queue, choice, plan) for queue in queues))
    return plan, errors


async def receivers(brokers: Brokers, group: str) -> tuple[Receivers, dict[str, RmqdError]]:
    """Return the group's members, and the errors of failed queries."""
    known = await connections(brokers, group)
    near = {one.client_id: name for name, connection in known.by_broker.items() for one in connection.connection_set}
    infos = await running_infos(brokers, group, near)
    is_orderly = any(info.properties.get(PROP_CONSUME_ORDERLY) == "true" for info in infos.values())
    return Receivers(len(near), is_orderly), dict(known.errors)


async def _count(brokers: Brokers, queue: LetterQueue, choice: Choice, plan: Plan) -> None:
    async for letters in letters_left(brokers.client.remoting, queue):
        plan.left += len(letters)
        for letter in filter(choice.takes, letters):
            plan.chosen += 1
            plan.reasons[letter.kind] += 1
            plan.topics[letter.origin_topic] += 1
            if letter.refusal:
                plan.refused[letter.refusal] += 1
            came = letter.message.store_timestamp
            plan.first_stored_ms = min(plan.first_stored_ms or came, came)
