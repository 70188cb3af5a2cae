"""Checks that brokers let a group consume, and that its members have equal subscriptions and modes but different ids.

Members with different subscriptions overwrite each other's subscription at the brokers (the last heartbeat wins, and
for one topic the later `subVersion`; protocol.md §4.9). Then they miss messages without any error. A broker shows only
one of the subscriptions, so the members themselves are queried too, through the broker (307).
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

import structlog

from rmqd.client.api.admin_requests import topic_config
from rmqd.client.api.group_requests import check_client_config, subscription_group, subscription_groups
from rmqd.client.api.remoting_request import REQUEST_TIMEOUT_SECONDS
from rmqd.client.brokers import Brokers
from rmqd.client.group_reader import GroupReader, connections_by_member
from rmqd.client.instance import ClientInstance
from rmqd.codes import ResponseCode
from rmqd.consumer.context import GroupContext
from rmqd.consumer.health.causes import Problem
from rmqd.consumer.health.group_problems import (
    PROCESS_CLIENT_ID,
    MemberDifference,
    group_settings_problem,
    list_names,
    model_difference,
    order_difference,
    subscription_differences,
    unknown_group_problem,
)
from rmqd.errors import FilterRefusedError, RmqdError, UnknownTopicKindError
from rmqd.errors.broker_errors import AccessRefusedError, BrokerError, SubscriptionGroupNotExistError
from rmqd.runtime.clock import wait_within
from rmqd.wire.bodies.config_bodies import unknown_attributes
from rmqd.wire.bodies.heartbeat_data import EXPRESSION_TAG, ConsumeType, SubscriptionData
from rmqd.wire.bodies.route_data import TopicRouteData
from rmqd.wire.bodies.stats_bodies import ConsumerConnection
from rmqd.wire.topics import is_light_queue

log = structlog.get_logger(__name__)


async def check_filters(client: ClientInstance, group: str, subscriptions: Iterable[SubscriptionData]) -> None:
    """Let every broker check the SQL expressions of its topics, before the first pull (CHECK_CLIENT_CONFIG, 46).

    Raises FilterRefusedError if a broker refuses an expression. A broker that does not respond is skipped.
    """
    asked = [data for data in subscriptions if data.expression_type != EXPRESSION_TAG]
    await asyncio.gather(*(_check_filter(client, group, data) for data in asked))


def describe_filter_refusal(where: str, subscription: SubscriptionData, error: BrokerError) -> str:
    """Return why the broker `where` refused a filter, and the next step."""
    if error.code == ResponseCode.SYSTEM_ERROR and "does not support consumer to filter message" in error.remark:
        return (
            f"{where} filters by tags only: set enablePropertyFilter=true there (in its configuration file, or by "
            "`mqadmin updateBrokerConfig -k enablePropertyFilter -v true`), or subscribe by tags"
        )
    reason = " ".join(error.remark.split())  # the parser writes one line for each expected word
    return f"{where} refuses the SQL filter {subscription.sub_string!r}: {reason:.300}"


def _addresses(client: ClientInstance, route: TopicRouteData) -> Iterator[tuple[str, str]]:
    """Yield the name and the address of each broker in a topic's route that has an address."""
    names = [broker.broker_name for broker in route.broker_datas]
    return ((name, address) for name in names if (address := client.routes.address(name)) is not None)


async def _check_filter(client: ClientInstance, group: str, subscription: SubscriptionData) -> None:
    try:
        route = await client.routes.lookup(subscription.topic)
    except RmqdError as error:
        log.debug("filter.not_checked", topic=subscription.topic, error=str(error))
        return
    await asyncio.gather(*(_check_filter_at(client, *at, group, subscription) for at in _addresses(client, route)))


async def _check_filter_at(
    client: ClientInstance, broker_name: str, address: str, group: str, subscription: SubscriptionData
) -> None:
    try:
        await check_client_config(client.remoting, address, client.client_id, group, subscription)
    except AccessRefusedError:
        return
    except RmqdError as error:
        if isinstance(error, BrokerError) and not error.retriable:
            where = f"{broker_name} ({address})"
            raise FilterRefusedError(subscription.topic, describe_filter_refusal(where, subscription, error)) from error
        if not error.is_reported:
            log.warning("filter.not_checked", topic=subscription.topic, address=address, error=str(error))


async def check_topic_types(client: ClientInstance, topics: Iterable[str]) -> None:
    """Check before the first pull that rmqd knows the kind of each topic (GET_TOPIC_CONFIG, 351).

    Raises UnknownTopicKindError otherwise. Topics without a known route are skipped. A failed query is ignored: the
    broker is unreachable, forbids the query, or is too old to have topics of an unknown kind.
    """
    places = [
        (topic, *at)
        for topic in topics
        if not is_light_queue(topic) and (route := client.routes.route(topic)) is not None
        for at in _addresses(client, route)
    ]
    await asyncio.gather(*(_check_kind_at(client, *place) for place in places))


async def _check_kind_at(client: ClientInstance, topic: str, broker_name: str, address: str) -> None:
    try:
        config = await topic_config(client.remoting, address, topic, timeout_seconds=REQUEST_TIMEOUT_SECONDS)
    except RmqdError as error:
        log.debug("topic.kind_not_checked", topic=topic, address=address, error=str(error))
        return
    if marks := unknown_attributes(config):
        raise UnknownTopicKindError(topic, f"{broker_name} ({address})", marks)


CHECK_INTERVAL_SECONDS: Final = 60.0
RETRY_WITHOUT_BROKER_SECONDS: Final = 1.0
# a difference must last longer than a reload takes to reach all members and brokers
SECOND_CHECK_AFTER_SECONDS: Final = 7.0
MAX_QUERIED_MEMBERS: Final = 4  # members that are queried directly in one round; later rounds query the others
# a difference ends after so many rounds without it, because brokers' answers vary
ROUNDS_UNTIL_DIFFERENCE_ENDS: Final = 2


class ConsistencyCheck:
    """Queries every broker of the group's topics once a minute, and reports problems of the group.

    If another process could have this member's client id, it also checks the client ids when members join or leave,
    because two members with one id handle messages twice.
    """

    def __init__(self, context: GroupContext) -> None:
        self._context = context
        self._unseen: dict[MemberDifference, int] = {}  # reported differences: number of rounds without them
        self._suspects: set[str] = set()  # members with differences
        self._has_others = False  # whether brokers know other members, at the last query
        self._settings_known: set[str] = set()  # addresses whose settings were read at least once
        self._told = asyncio.Event()  # set when client ids must be checked before the next round

    def on_members_changed(self) -> None:
        """Called when a broker reports that members joined or left."""
        if not PROCESS_CLIENT_ID.search(self._context.client.client_id):
            self._told.set()

    async def run(self) -> None:
        """Check periodically until cancelled. The first check begins as soon as the group's brokers are known."""
        clock = self._context.clock
        while True:
            if not (brokers := self._context.brokers()):
                await clock.sleep(RETRY_WITHOUT_BROKER_SECONDS)
                continue
            await asyncio.gather(*(self._check_settings(*broker) for broker in brokers.items()))
            await self.check()
            until = clock.monotonic() + CHECK_INTERVAL_SECONDS
            while await wait_within(clock, until - clock.monotonic(), self._told.wait()):
                self._told.clear()
                await self.check(of_ids_only=True)

    async def check(self, *, of_ids_only: bool = False) -> None:
        """Compare the members twice, some seconds apart, and report differences that exist both times.

        A difference that is seen once may be a reload that has not reached all members. A broker shows the subscription
        of the last heartbeat, so a known difference ends only after several rounds. `of_ids_only` limits the check to
        client ids.
        """
        first = await self._query_members(of_ids_only)
        if not (first or self._unseen or self._has_others):  # the second query could show nothing that lasts
            return
        await self._context.clock.sleep(SECOND_CHECK_AFTER_SECONDS / 2 if of_ids_only else SECOND_CHECK_AFTER_SECONDS)
        second = await self._query_members(of_ids_only)
        if first is None or second is None:
            return
        lasting = first.keys() & second.keys()
        for difference in lasting:
            problem = self._problem(difference, second[difference])
            self._context.problems.begin(difference, problem)
            self._unseen[difference] = 0
        if of_ids_only:
            return
        for known in [known for known in self._unseen if known not in first and known not in second]:
            self._unseen[known] += 1
            if self._unseen[known] >= ROUNDS_UNTIL_DIFFERENCE_ENDS:
                del self._unseen[known]
                self._context.problems.end(known)

    async def _check_settings(self, name: str, address: str) -> None:
        """Report a broker that does not know the group, forbids it to consume, or drops its retries."""
        context, remoting, group = self._context, self._context.client.remoting, self._context.options.group
        where, key = f"{name} ({address})", ("settings", name)
        try:
            try:
                settings = await subscription_group(remoting, address, group)
            except SubscriptionGroupNotExistError:
                context.problems.begin(
                    ("unknown", name), unknown_group_problem(where, context.options.group_without_namespace)
                )
                return
            except RmqdError:  # an old broker, or no permission: query all groups, until their settings were read once
                if address in self._settings_known and key not in context.problems:
                    return
                if (found := (await subscription_groups(remoting, address)).get(group)) is None:
                    return
                settings = found
        except RmqdError as error:
            log.debug("settings.unknown", address=address, error=str(error))
            return
        self._settings_known.add(address)
        problem = group_settings_problem(
            where, context.options.group_without_namespace, settings, context.options.announced_message_model
        )
        context.problems.end(("unknown", name))
        context.problems.set(key, problem)

    async def _query_members(self, of_ids_only: bool) -> dict[MemberDifference, str] | None:
        """Return the current differences, each with the broker or member that shows it; None if no broker responds."""
        context, seen, asked = self._context, dict[MemberDifference, str](), set[str]()
        self._has_others = False
        addresses = context.brokers()
        reader = GroupReader(Brokers(context.client, addresses), context.options.group)
        views = await reader.connections()
        for name, error in views.errors.items():
            log.debug("consistency.unknown", address=addresses[name], error=str(error))
        if len(views.errors) == len(addresses):
            return None
        for name, view in views.found.items():
            others = {member.client_id for member in view.connection_set} - {context.client.client_id}
            self._has_others = self._has_others or bool(others)
            for difference in self._conflict(view, addresses[name]):
                seen.setdefault(difference, f"broker {name}")
            if of_ids_only or not others:  # the broker knows only our subscription, perhaps from before a reload
                continue
            for difference in self._differences_of_view(view):
                seen.setdefault(difference, f"broker {name}, members {list_names(others, 3)}")
            for member, difference in await self._differences_of_members(reader, views.found, others - asked):
                seen[difference] = f"member {member}"
            asked |= others
        if not of_ids_only:
            self._suspects &= asked
        return seen

    def _problem(self, difference: MemberDifference, told_by: str) -> Problem:
        is_ours = difference.cause == "client_id_conflict"
        evidence = f"{difference.text}, says {told_by}" if is_ours else f"other members {difference.text} ({told_by})"
        return self._context.make_problem(difference.cause, evidence)

    def _differences_of_view(self, view: ConsumerConnection) -> Iterator[MemberDifference]:
        context = self._context
        yield from subscription_differences(view.subscription_table, context.subscriptions, "this one")
        yield from model_difference(view.message_model, context.options.announced_message_model, "this one")
        if view.consume_type not in (None, ConsumeType.PASSIVELY):
            text = f"consume by {view.consume_type}, this one by {ConsumeType.PASSIVELY}"
            yield MemberDifference("mode_mismatch", "consume type", text)

    async def _differences_of_members(
        self, reader: GroupReader, known: Mapping[str, ConsumerConnection], members: Collection[str]
    ) -> list[tuple[str, MemberDifference]]:
        """Query up to MAX_QUERIED_MEMBERS members directly, suspects first. Return each difference with its member."""
        chosen = sorted(self._suspects & set(members))
        rest = sorted(set(members) - self._suspects)
        chosen = (chosen + random.sample(rest, len(rest)))[:MAX_QUERIED_MEMBERS]
        context, seen, connections = self._context, [], connections_by_member(known)
        for member in chosen:  # sequential, because each query occupies a thread of the broker
            report = await reader.member(member, connections[member])
            if report.subscriptions is None:
                address = reader.brokers.masters[next(iter(report.connections))]
                log.debug("consistency.unknown", address=address, member=member, error=str(report.error))
                continue
            differ = list(subscription_differences(report.subscriptions, context.subscriptions, "this one"))
            differ += order_difference(report.orderly, context.options.consume_mode == "orderly", "this one")
            if differ:
                self._suspects.add(member)
            else:
                self._suspects.discard(member)
            seen += [(member, difference) for difference in differ]
        return seen

    def _conflict(self, view: ConsumerConnection, address: str) -> Iterator[MemberDifference]:
        """Yield a difference if another process is connected with our client id."""
        ours = self._context.client.client_id
        if Counter(member.client_id for member in view.connection_set)[ours] > 1:
            connection = self._context.client.remoting.connected(address)
            own = None if connection is None else connection.local_address
            others = sorted(m.client_addr for m in view.connection_set if m.client_id == ours and m.client_addr != own)
            yield MemberDifference("client_id_conflict", ours, f"{ours} is also connected from {', '.join(others)}")
