"""Whether the members of the group consume alike: their subscriptions, their mode and model, and their client ids.

Members that subscribe to different things overwrite each other's subscription at the brokers (the last heartbeat wins,
and of one topic the later `subVersion`; protocol.md §4.9), and miss messages silently. So a broker's own view shows
only one of two opinions, and the members themselves are asked too, through the broker (307).
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import structlog

from rmqd.broker_errors import ConsumerNotOnlineError
from rmqd.client.api.group import consumer_connection, consumer_running_info
from rmqd.consumer.context import GroupContext
from rmqd.consumer.stats.problem import GroupProblems, Problem
from rmqd.errors import RmqdError
from rmqd.wire.bodies.heartbeat import EXPRESSION_TAG, ConsumeType, SubscriptionData
from rmqd.wire.bodies.running_info import PROP_CONSUME_ORDERLY
from rmqd.wire.bodies.stats import ConsumerConnection
from rmqd.wire.topics import is_retry_topic

log = structlog.get_logger(__name__)

CHECK_SECONDS: Final = 60.0
NO_BROKER_SECONDS: Final = 1.0
SECOND_LOOK_SECONDS: Final = 7.0  # a difference must last: a reload reaches all members and brokers within less
MOST_ASKED: Final = 4  # members asked for themselves in a round; over the rounds all are
ROUNDS_TO_END: Final = 2  # without the difference: each broker shows one opinion at a time, not always the other one

SUBSCRIPTION_RULE: Final = "all members of a group must subscribe alike, or messages are missed"


@dataclass(frozen=True, slots=True)
class Difference:
    """In which point members are not as they should be. Equal ones are the same difference."""

    cause: str
    about: str  # the topic, the property or the client id that it is about
    text: str  # a predicate: "subscribe to … , … to …"


def differences(
    theirs: Mapping[str, SubscriptionData], ours: Mapping[str, SubscriptionData], us: str
) -> Iterator[Difference]:
    """In which topics a member's subscriptions (`theirs`) differ from our own (`ours`).

    `us` names the side of `ours` in the texts, as "the configuration". Only what decides about messages is compared:
    not how tags are written, nor when. Retry topics are left out, as each client subscribes to its own by itself.
    """
    theirs = {topic: data for topic, data in theirs.items() if not is_retry_topic(topic)}
    ours = {topic: data for topic, data in ours.items() if not is_retry_topic(topic)}
    for topic in sorted(ours.keys() - theirs.keys()):
        yield Difference("subscription_mismatch", topic, f"do not subscribe to {topic}, {us} does")
    for topic in sorted(theirs.keys() - ours.keys()):
        yield Difference("subscription_mismatch", topic, f"subscribe to {topic}, {us} does not")
    for topic in sorted(ours.keys() & theirs.keys()):
        if _meaning(ours[topic]) != _meaning(theirs[topic]):
            text = f"subscribe to {_written(theirs[topic])} of {topic}, {us} to {_written(ours[topic])}"
            yield Difference("subscription_mismatch", topic, text)


def model_difference(theirs: str | None, ours: str, us: str) -> Iterator[Difference]:
    """Whether members of the group share the messages or each get all of them."""
    if theirs is not None and theirs != ours:
        yield Difference("mode_mismatch", "message model", f"consume as {theirs}, {us} says {ours}")


class Consistency:
    """Looks every minute at every broker that serves the group's topics, and reports by the group's problems."""

    def __init__(self, context: GroupContext, problems: GroupProblems) -> None:
        self._context = context
        self._problems = problems
        self._unseen: dict[Difference, int] = {}  # reported, and for how many rounds it did not show
        self._suspects: set[str] = set()  # members that differed

    async def run(self) -> None:
        """Look until cancelled; the first time as soon as there are brokers to ask."""
        while True:
            if self._brokers():
                await self.check()
                await self._context.clock.sleep(CHECK_SECONDS)
            else:
                await self._context.clock.sleep(NO_BROKER_SECONDS)

    async def check(self) -> None:
        """Compare twice, `SECOND_LOOK_SECONDS` apart, and report what differs both times.

        A difference that is seen once may be a reload that has not reached everybody. What a broker shows depends on
        whose heartbeat came last, so a known difference ends only after several rounds that don't show it.
        """
        first = await self._look()
        await self._context.clock.sleep(SECOND_LOOK_SECONDS)
        second = await self._look()
        if first is None or second is None:
            return
        lasting = first.keys() & second.keys()
        for found in lasting:
            self._problems.begin(found, _problem(found, second[found]))
            self._unseen[found] = 0
        for known in [known for known in self._unseen if known not in first and known not in second]:
            self._unseen[known] += 1
            if self._unseen[known] >= ROUNDS_TO_END:
                del self._unseen[known]
                self._problems.end(known)

    async def _look(self) -> dict[Difference, str] | None:
        """What differs now, with who told of each difference; None where no broker tells anything."""
        addresses = self._brokers()
        found: dict[Difference, str] = {}
        asked: set[str] = set()
        views = await asyncio.gather(*(self._view(address) for address in addresses.values()))
        if all(view is None for view in views):
            return None
        for (name, address), view in zip(addresses.items(), views, strict=True):
            if view is None:
                continue
            others = {member.client_id for member in view.connection_set} - {self._context.client.client_id}
            for difference in self._conflict(view, address):
                found.setdefault(difference, f"broker {name}")
            if not others:  # the broker knows only what we told it, perhaps before a reload
                continue
            for difference in self._differences_of_view(view):
                found.setdefault(difference, f"broker {name}, of {_some(others)}")
            for member, difference in await self._differences_of_members(address, others - asked):
                found[difference] = f"member {member}"
            asked |= others
        self._suspects &= asked
        return found

    def _brokers(self) -> dict[str, str]:
        """The brokers that serve the group's topics, by name."""
        routes = self._context.client.routes
        names = {
            broker.broker_name
            for topic in self._context.subscriptions
            if (route := routes.route(topic)) is not None
            for broker in route.broker_datas
        }
        return {name: address for name in sorted(names) if (address := routes.address(name)) is not None}

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
        context, found = self._context, []
        for member in chosen:  # one after the other: each takes one of the broker's threads while it is asked
            try:
                info = await consumer_running_info(context.client.remoting, address, context.options.group, member)
            except RmqdError as error:
                log.debug("consistency.unknown", address=address, member=member, error=str(error))
                continue
            theirs = {subscription.topic: subscription for subscription in info.subscription_set}
            differ = list(differences(theirs, context.subscriptions, "this one"))
            orderly, told = context.options.consume_mode == "orderly", info.properties.get(PROP_CONSUME_ORDERLY)
            if told is not None and (told == "true") != orderly:
                text = f"consume {_order(not orderly)}, this one {_order(orderly)}"
                differ.append(Difference("mode_mismatch", "order", text))
            if differ:
                self._suspects.add(member)
            else:
                self._suspects.discard(member)
            found += [(member, difference) for difference in differ]
        return found

    def _conflict(self, view: ConsumerConnection, address: str) -> Iterator[Difference]:
        """Whether somebody else is connected with our client id."""
        ours = self._context.client.client_id
        if Counter(member.client_id for member in view.connection_set)[ours] > 1:
            connection = self._context.client.remoting.connected(address)
            own = None if connection is None else connection.local_address
            others = sorted(m.client_addr for m in view.connection_set if m.client_id == ours and m.client_addr != own)
            yield Difference("client_id_conflict", ours, f"{ours} is also connected from {', '.join(others)}")


def _problem(found: Difference, told_by: str) -> Problem:
    match found.cause:
        case "client_id_conflict":
            advice = "two members with one client id take the same queues: give each process its own instance_name"
            return Problem(found.cause, f"{found.text}, says {told_by}", advice)
        case "mode_mismatch":
            advice = "all members of a group must consume in one mode: give this application a group of its own"
        case _:
            advice = f"{SUBSCRIPTION_RULE}: make them equal, or give each application a group of its own"
    return Problem(found.cause, f"other members {found.text} ({told_by})", advice)


def _meaning(data: SubscriptionData) -> object:
    """What two subscriptions must have in common: not how the tags were written, nor when."""
    return data.tags_set if data.expression_type == EXPRESSION_TAG else (data.expression_type, data.sub_string)


def _written(data: SubscriptionData) -> str:
    return f"{data.expression_type} {data.sub_string!r}"


def _order(orderly: bool) -> str:
    return "orderly" if orderly else "concurrently"


def _some(members: Collection[str]) -> str:
    shown = sorted(members)[:3]
    return ", ".join(shown) + (f" and {len(members) - len(shown)} more" if len(members) > len(shown) else "")
