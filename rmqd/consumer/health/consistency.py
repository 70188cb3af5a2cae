"""Whether brokers let the group consume, and its members consume alike: subscriptions, mode and model, client ids.

Members that subscribe to different things overwrite each other's subscription at the brokers (the last heartbeat wins,
and of one topic the later `subVersion`; protocol.md §4.9), and miss messages silently. So a broker's own view shows
only one of two opinions, and the members themselves are asked too, through the broker (307).
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Collection, Iterator
from typing import Final

import structlog

from rmqd.broker_errors import ConsumerNotOnlineError, SubscriptionGroupNotExistError
from rmqd.client.api.group import consumer_connection, consumer_running_info, subscription_group, subscription_groups
from rmqd.clock import wait_within
from rmqd.consumer.context import GroupContext
from rmqd.consumer.stats.problem import GroupProblems
from rmqd.diagnosis.causes import Problem
from rmqd.diagnosis.cluster import settings_problem, unknown_problem
from rmqd.diagnosis.members import OF_ONE_PROCESS
from rmqd.diagnosis.subscriptions import Difference, differences, model_difference, order_difference
from rmqd.errors import RmqdError
from rmqd.wire.bodies.heartbeat import ConsumeType
from rmqd.wire.bodies.running_info import PROP_CONSUME_ORDERLY
from rmqd.wire.bodies.stats import ConsumerConnection

log = structlog.get_logger(__name__)

CHECK_SECONDS: Final = 60.0
NO_BROKER_SECONDS: Final = 1.0
SECOND_LOOK_SECONDS: Final = 7.0  # a difference must last: a reload reaches all members and brokers within less
MOST_ASKED: Final = 4  # members asked for themselves in a round; over the rounds all are
ROUNDS_TO_END: Final = 2  # without the difference: each broker shows one opinion at a time, not always the other one


class Consistency:
    """Looks every minute at every broker that serves the group's topics, and reports by the group's problems.

    When members come or go, it looks at their client ids at once, if another process can have this member's id: two
    members with one id handle messages twice.
    """

    def __init__(self, context: GroupContext, problems: GroupProblems) -> None:
        self._context = context
        self._problems = problems
        self._unseen: dict[Difference, int] = {}  # reported, and for how many rounds it did not show
        self._suspects: set[str] = set()  # members that differed
        self._settings_known: set[str] = set()  # addresses whose settings were read once
        self._told = asyncio.Event()

    def noticed(self) -> None:
        """Called when a broker reports that members came or went."""
        if not OF_ONE_PROCESS.search(self._context.client.client_id):
            self._told.set()

    async def run(self) -> None:
        """Look until cancelled; the first time as soon as there are brokers to ask."""
        clock = self._context.clock
        while True:
            if not (brokers := self._context.brokers()):
                await clock.sleep(NO_BROKER_SECONDS)
                continue
            await asyncio.gather(*(self._check_settings(*broker) for broker in brokers.items()))
            await self.check()
            until = clock.monotonic() + CHECK_SECONDS
            while await wait_within(clock, until - clock.monotonic(), self._told.wait()):
                self._told.clear()
                await self.check(of_ids_only=True)

    async def check(self, *, of_ids_only: bool = False) -> None:
        """Compare twice, `SECOND_LOOK_SECONDS` apart, and report what differs both times.

        A difference that is seen once may be a reload that has not reached everybody. What a broker shows depends on
        whose heartbeat came last, so a known difference ends only after several rounds that don't show it.
        """
        first = await self._look(of_ids_only)
        await self._context.clock.sleep(SECOND_LOOK_SECONDS / 2 if of_ids_only else SECOND_LOOK_SECONDS)
        second = await self._look(of_ids_only)
        if first is None or second is None:
            return
        lasting = first.keys() & second.keys()
        for difference in lasting:
            problem = self._problem(difference, second[difference])
            self._problems.begin(difference, problem)
            self._unseen[difference] = 0
        if of_ids_only:
            return
        for known in [known for known in self._unseen if known not in first and known not in second]:
            self._unseen[known] += 1
            if self._unseen[known] >= ROUNDS_TO_END:
                del self._unseen[known]
                self._problems.end(known)

    async def _check_settings(self, name: str, address: str) -> None:
        """Report a broker that does not know the group, forbids it to consume, or drops its retries."""
        context, is_first = self._context, address not in self._settings_known
        remoting, group, where = context.client.remoting, context.options.group, f"{name} ({address})"
        try:
            try:
                settings = await subscription_group(remoting, address, group)
            except SubscriptionGroupNotExistError:
                self._problems.begin(("unknown", name), unknown_problem(where, context.plain_group))
                return
            except RmqdError:  # older than the request, or this user may not ask: all groups are asked for, but once
                if not is_first or (found := (await subscription_groups(remoting, address)).get(group)) is None:
                    return
                settings = found
        except RmqdError as error:
            log.debug("settings.unknown", address=address, error=str(error))
            return
        self._settings_known.add(address)
        problem = settings_problem(where, context.plain_group, settings, context.options.announced_model)
        self._problems.end(("unknown", name))
        self._problems.set(("settings", name), problem)

    async def _look(self, of_ids_only: bool) -> dict[Difference, str] | None:
        """What differs now, with who told of each difference; None where no broker tells anything."""
        addresses = self._context.brokers()
        seen: dict[Difference, str] = {}
        asked: set[str] = set()
        views = await asyncio.gather(*(self._view(address) for address in addresses.values()))
        if all(view is None for view in views):
            return None
        for (name, address), view in zip(addresses.items(), views, strict=True):
            if view is None:
                continue
            others = {member.client_id for member in view.connection_set} - {self._context.client.client_id}
            for difference in self._conflict(view, address):
                seen.setdefault(difference, f"broker {name}")
            if of_ids_only or not others:  # the broker knows only what we told it, perhaps before a reload
                continue
            for difference in self._differences_of_view(view):
                seen.setdefault(difference, f"broker {name}, of {_some(others)}")
            for member, difference in await self._differences_of_members(address, others - asked):
                seen[difference] = f"member {member}"
            asked |= others
        if not of_ids_only:
            self._suspects &= asked
        return seen

    def _problem(self, difference: Difference, told_by: str) -> Problem:
        is_ours = difference.cause == "client_id_conflict"
        evidence = f"{difference.text}, says {told_by}" if is_ours else f"other members {difference.text} ({told_by})"
        return self._context.found(difference.cause, evidence)

    async def _view(self, address: str) -> ConsumerConnection | None:
        context = self._context
        try:
            return await consumer_connection(context.client.remoting, address, context.options.group)
        except ConsumerNotOnlineError:
            return ConsumerConnection((), {})
        except RmqdError as error:
            log.debug("consistency.unknown", address=address, error=str(error))
            return None

    def _differences_of_view(self, view: ConsumerConnection) -> Iterator[Difference]:
        context = self._context
        yield from differences(view.subscription_table, context.subscriptions, "this one")
        yield from model_difference(view.message_model, context.options.announced_model, "this one")
        if view.consume_type not in (None, ConsumeType.PASSIVELY):
            text = f"consume by {view.consume_type}, this one by {ConsumeType.PASSIVELY}"
            yield Difference("mode_mismatch", "consume type", text)

    async def _differences_of_members(self, address: str, members: Collection[str]) -> list[tuple[str, Difference]]:
        """What members say of themselves: those that differed before, and some others."""
        chosen = sorted(self._suspects & set(members))
        rest = sorted(set(members) - self._suspects)
        chosen = (chosen + random.sample(rest, len(rest)))[:MOST_ASKED]
        context, seen = self._context, []
        for member in chosen:  # one after the other: each takes one of the broker's threads while it is asked
            try:
                info = await consumer_running_info(context.client.remoting, address, context.options.group, member)
            except RmqdError as error:
                log.debug("consistency.unknown", address=address, member=member, error=str(error))
                continue
            theirs = {subscription.topic: subscription for subscription in info.subscription_set}
            differ = list(differences(theirs, context.subscriptions, "this one"))
            told = info.properties.get(PROP_CONSUME_ORDERLY)
            orderly = context.options.consume_mode == "orderly"
            differ += order_difference(None if told is None else told == "true", orderly, "this one")
            if differ:
                self._suspects.add(member)
            else:
                self._suspects.discard(member)
            seen += [(member, difference) for difference in differ]
        return seen

    def _conflict(self, view: ConsumerConnection, address: str) -> Iterator[Difference]:
        """Whether somebody else is connected with our client id."""
        ours = self._context.client.client_id
        if Counter(member.client_id for member in view.connection_set)[ours] > 1:
            connection = self._context.client.remoting.connected(address)
            own = None if connection is None else connection.local_address
            others = sorted(m.client_addr for m in view.connection_set if m.client_id == ours and m.client_addr != own)
            yield Difference("client_id_conflict", ours, f"{ours} is also connected from {', '.join(others)}")


def _some(members: Collection[str]) -> str:
    shown = sorted(members)[:3]
    return ", ".join(shown) + (f" and {len(members) - len(shown)} more" if len(members) > len(shown) else "")
