"""`rmqd check --connect`: checks whether clusters let the configured groups work. It changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

from rmqd.cli.terminal.cluster_command import ask_cluster
from rmqd.cli.terminal.output import Answer, count
from rmqd.client.api.admin_requests import broker_config, cluster_info, query_message, request_modes
from rmqd.client.api.group_requests import (
    check_client_config,
    consumer_connection,
    get_consumer_list,
    subscription_groups,
    unlock_batch,
)
from rmqd.client.api.offset_requests import get_min_offset
from rmqd.client.api.pop_requests import query_assignment
from rmqd.client.brokers import Brokers
from rmqd.client.instance import ClientInstance
from rmqd.client.routing.name_server_client import get_route
from rmqd.config.model.root_model import RootConfig
from rmqd.consumer.assembly import subscription_data_of
from rmqd.consumer.consumer_options import ConsumerOptions
from rmqd.consumer.health import group_problems
from rmqd.consumer.health.causes import Problem, make_problem
from rmqd.consumer.health.consistency import describe_filter_refusal
from rmqd.errors import ExitCode, RemotingError, RmqdError, RouteNotFoundError
from rmqd.errors.broker_errors import (
    AccessRefusedError,
    BrokerError,
    ConsumerNotOnlineError,
    RequestCodeNotSupportedError,
)
from rmqd.operate.diagnosis import cluster_findings
from rmqd.operate.diagnosis.diagnosis_facts import DiagnosisSnapshot
from rmqd.operate.diagnosis.member_findings import conflict_problem, pulling_problem
from rmqd.operate.queries.diagnosis_queries import broker_facts
from rmqd.plugins.model_options import consumer_options
from rmqd.wire.bodies.config_bodies import SubscriptionGroupConfig
from rmqd.wire.bodies.pop_bodies import MessageRequestMode, QueryAssignmentRequestBody
from rmqd.wire.bodies.route_data import ClusterInfo, TopicRouteData
from rmqd.wire.bodies.stats_bodies import ConsumerConnection
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.topics import DEFAULT_TOPIC, retry_topic, without_namespace

Level = Literal["ok", "warning", "error", "unreachable"]

PROXY = (
    "is a proxy, not a name server: groups can use it, but checks and `rmqd lag` cannot; give the name server for these"
)
BROKER = "is not a name server, but probably a broker; name servers have port 9876 by default"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check. An `error` prevents a group from working as configured; a `warning` may prevent it."""

    level: Level
    subject: str
    message: str

    def line(self) -> str:
        return f"{'OK' if self.level == 'ok' else self.level:<11}  {self.subject}: {self.message}"


def exit_code(checks: Iterable[CheckResult]) -> ExitCode:
    """Return 69 if a server did not respond, else 1 if there are errors, else 0."""
    levels = {check.level for check in checks}
    if "unreachable" in levels:
        return ExitCode.UNAVAILABLE
    return ExitCode.FAILURE if "error" in levels else ExitCode.OK


def check_cluster(config: RootConfig) -> list[CheckResult]:
    """Check each cluster that has configured groups, and these groups on it."""
    checks: list[CheckResult] = []
    for cluster, settings in config.known_clusters.items():
        on_it = {name: consumer_options(config, name) for name in config.groups if config.cluster_name(name) == cluster}
        prefix = f"clusters.{cluster}: " if len(config.known_clusters) > 1 else ""
        if on_it:
            checks += ask_cluster(settings.client_options(), partial(_check, on_it, prefix))
    return checks


async def _check(wanted: Mapping[str, ConsumerOptions], prefix: str, client: ClientInstance) -> list[CheckResult]:
    checks = await _check_name_servers(client, prefix)
    if all(check.level == "unreachable" or check.message == PROXY for check in checks):
        return checks  # without a name server, no broker is known
    checks += await _check_brokers(client, prefix)
    parts = await asyncio.gather(*(_GroupCheck(client, name, options).run() for name, options in wanted.items()))
    return without_namespace([*checks, *(check for part in parts for check in part)], client.options.namespace)


async def _check_name_servers(client: ClientInstance, prefix: str) -> list[CheckResult]:
    await client.name_servers.look_up()
    addresses = client.name_servers.addresses
    if not addresses:
        return [CheckResult("unreachable", f"{prefix}name servers", "the address server returned no name server")]
    asked = [_or_error(cluster_info(client.remoting, address)) for address in addresses]
    answers = dict(zip(addresses, await asyncio.gather(*asked), strict=True))
    known = {
        address: _broker_addresses(answer) for address, answer in answers.items() if not isinstance(answer, RmqdError)
    }
    everything = frozenset[str]().union(*known.values())
    checks = []
    for address, answer in answers.items():
        subject = f"{prefix}name server {address}"
        if isinstance(answer, RequestCodeNotSupportedError):
            route = await _or_error(get_route(client.remoting, address, DEFAULT_TOPIC))
            is_broker = isinstance(route, RequestCodeNotSupportedError)  # proxies answer this request
            checks.append(
                CheckResult("unreachable", subject, BROKER) if is_broker else CheckResult("warning", subject, PROXY)
            )
        elif isinstance(answer, RmqdError):
            # groups work as long as one name server responds
            level: Level = "warning" if known else "unreachable"
            checks.append(CheckResult(level, subject, f"does not answer ({answer})"))
        elif missing := everything - known[address]:
            checks.append(
                CheckResult("warning", subject, f"does not know {_join(missing)}, which another name server knows")
            )
        else:
            checks.append(CheckResult("ok", subject, f"answers, and knows {count(len(everything), 'broker')}"))
    return checks


async def _check_brokers(client: ClientInstance, prefix: str) -> list[CheckResult]:
    """Check for read-only brokers and wrong clocks, like `rmqd diagnose`. `_GroupCheck` finds other broker problems."""
    brokers = Brokers(client)
    info = await _or_error(brokers.load_cluster_info())
    if isinstance(info, RmqdError):
        return []
    snapshot = DiagnosisSnapshot(group="", at=client.clock.wall(), brokers=await broker_facts(brokers, info))
    problems = (one.problem for one in cluster_findings.brokers(snapshot))
    seen = ("broker_read_only", "clock_skew")
    return [_check_of("warning", f"{prefix}brokers", problem) for problem in problems if problem.cause in seen]


class _GroupCheck:
    """Checks the routes of a group's topics, and the brokers in the routes. `name` is the group's configured name."""

    def __init__(self, client: ClientInstance, name: str, group: ConsumerOptions) -> None:
        self._client = client
        self._name = group.group
        self._group = group
        self._subject = f"groups.{name}"
        self._pops = group.consume_mode == "pop"
        self._subscriptions = subscription_data_of(group, 0)
        self._subscriptions.pop(retry_topic(group.group), None)

    async def run(self) -> list[CheckResult]:
        topics = list(self._group.subscriptions)
        routes = dict(
            zip(topics, await asyncio.gather(*(_or_error(self._client.routes.lookup(t)) for t in topics)), strict=True)
        )
        checks = [check for topic, route in routes.items() for check in self._route_checks(topic, route)]
        found = {topic: route for topic, route in routes.items() if not isinstance(route, RmqdError)}
        brokers = sorted({broker.broker_name for route in found.values() for broker in route.broker_datas})
        parts = await asyncio.gather(*(self._broker_checks(broker, found) for broker in brokers))
        return checks + [check for part in parts for check in part]

    def _route_checks(self, topic: str, route: TopicRouteData | RmqdError) -> Iterator[CheckResult]:
        subject = f"{self._subject}.subscriptions.{topic}"
        if isinstance(route, RouteNotFoundError):
            yield _check_of("error", subject, group_problems.missing_topic_problem(topic))
        elif isinstance(route, RmqdError):
            yield CheckResult("unreachable" if isinstance(route, RemotingError) else "error", subject, str(route))
        else:
            closed = sorted(queues.broker_name for queues in route.queue_datas if not queues.is_readable)
            queues = self._client.routes.queues(topic)
            if closed:
                level: Level = "warning" if queues else "error"
                yield _check_of(level, subject, group_problems.unreadable_topic_problem(topic, closed))
            if queues:
                brokers = len({queue.broker_name for queue in queues})
                yield CheckResult("ok", subject, f"{count(len(queues), 'queue')} on {count(brokers, 'broker')}")

    async def _broker_checks(self, broker: str, routes: dict[str, TopicRouteData]) -> list[CheckResult]:
        address = self._client.routes.address(broker)
        if address is None:
            return [CheckResult("unreachable", self._subject, f"no address of {broker} is known: it is down")]
        topics = [topic for topic, route in routes.items() if any(b.broker_name == broker for b in route.broker_datas)]
        where = f"{broker} ({address})"
        # settings of all groups are queried, because a query for one group may create the group on the broker
        settings, config, members, filters, modes = await asyncio.gather(
            _or_error(subscription_groups(self._client.remoting, address)),
            _or_error(broker_config(self._client.remoting, address)),
            _or_error(consumer_connection(self._client.remoting, address, self._name)),
            asyncio.gather(*(self._filter_check(address, where, topic) for topic in topics)),
            asyncio.gather(*(self._mode_check(address, where, topic) for topic in topics if self._pops)),
        )
        if isinstance(settings, RemotingError) or isinstance(members, RemotingError):
            silent = settings if isinstance(settings, RemotingError) else members
            return [CheckResult("unreachable", self._subject, f"{where} does not answer ({silent})")]
        makes_groups = isinstance(config, RmqdError) or config.get("autoCreateSubscriptionGroup") != "false"
        return [
            *self._settings_checks(where, settings, makes_groups=makes_groups),
            *self._member_checks(where, members),
            *await self._rights_checks(address, broker, topics),
            *(check for check in filters if check is not None),
            *modes,
        ]

    async def _mode_check(self, address: str, where: str, topic: str) -> CheckResult:
        """Check whether a broker lets the group pop the topic. Called for groups with `consume_mode: pop`."""
        subject = f"{self._subject}.subscriptions.{topic}"
        try:
            mode = await self._mode(address, topic)
        except RequestCodeNotSupportedError:
            return CheckResult(
                "error", subject, f"{where} does not support POP; use RocketMQ 5, or consume_mode: concurrently"
            )
        except RmqdError as error:
            level: Level = "unreachable" if isinstance(error, RemotingError) else "error"
            return CheckResult(level, subject, _refusal(where, "the group's mode", error))
        if mode is MessageRequestMode.POP:
            return CheckResult("ok", subject, f"{where} lets the group pop")
        return _check_of("warning", subject, pulling_problem(self._name, topic, where, "the configuration"))

    async def _mode(self, address: str, topic: str) -> MessageRequestMode:
        """Return the mode that the broker assigns to members, else the mode that an administrator set, else PULL."""
        body = QueryAssignmentRequestBody(topic, self._name, self._client.client_id)
        if assigned := await query_assignment(self._client.remoting, address, body):
            return assigned[0].mode
        was_set = (await request_modes(self._client.remoting, address)).get((topic, self._name))
        return MessageRequestMode.PULL if was_set is None else MessageRequestMode(was_set.mode)

    async def _rights_checks(self, address: str, broker: str, topics: Iterable[str]) -> list[CheckResult]:
        """Send requests that need a member's permissions and change nothing. Returns an error for each refused one.

        No pull is sent, because a pull under a group's name can erase a pending offset reset. With ACL 2.0, an unlock
        needs the same permissions as a pull. With ACL 1.0, an unlock needs none, and the two queries need them.
        """
        remoting, group = self._client.remoting, self._name
        questions: list[tuple[str, Awaitable[object]]] = [(self._subject, get_consumer_list(remoting, address, group))]
        for topic in topics:
            subject = f"{self._subject}.subscriptions.{topic}"
            # no lock is released: no topic has queue -1, and no member has this client id
            unlock = unlock_batch(remoting, address, group, "rmqd check", [MessageQueue(topic, broker, -1)])
            query = query_message(remoting, address, topic, "rmqd check", max_messages=1)
            first = get_min_offset(remoting, address, MessageQueue(topic, broker, 0))
            questions += [(subject, question) for question in (first, unlock, query)]
        answers = await asyncio.gather(*(_or_error(question) for _, question in questions))
        refused = [one for one in zip(questions, answers, strict=True) if isinstance(one[1], AccessRefusedError)]
        return [CheckResult("error", subject, str(error)) for (subject, _), error in refused]

    def _settings_checks(
        self, where: str, groups: dict[str, SubscriptionGroupConfig] | RmqdError, *, makes_groups: bool
    ) -> Iterator[CheckResult]:
        if isinstance(groups, RmqdError):
            yield CheckResult("error", self._subject, _refusal(where, "its settings", groups))
            return
        settings = groups.get(self._name)
        if settings is None and not makes_groups:
            yield _check_of("error", self._subject, group_problems.unknown_group_problem(where, self._name))
        elif settings is None:
            told = "with autoCreateSubscriptionGroup, it creates the group at the first connection"
            yield CheckResult("warning", self._subject, f"{where} does not know the group yet; {told}")
        elif problem := group_problems.group_settings_problem(
            where, self._name, settings, self._group.announced_message_model
        ):
            yield _check_of("error", self._subject, problem)
        else:
            yield CheckResult("ok", self._subject, f"{where} allows the group to consume")

    def _member_checks(self, where: str, members: ConsumerConnection | RmqdError) -> Iterator[CheckResult]:
        if isinstance(members, ConsumerNotOnlineError):
            yield CheckResult("ok", self._subject, f"{where} has no member of the group now")
            return
        if isinstance(members, RmqdError):
            yield CheckResult("error", self._subject, _refusal(where, "its members", members))
            return
        clients: dict[str, list[str]] = {}
        for connection in members.connection_set:
            clients.setdefault(connection.client_id, []).append(connection.client_addr)
        found_differences = list(self._differences(members))
        for difference in found_differences:
            evidence = f"the members {_join(clients)} on {where} {difference.text}"
            yield _check_of("error", self._subject, make_problem(difference.cause, evidence, group=self._name))
        for client, addresses in clients.items():
            if len(addresses) > 1:
                yield _check_of("error", self._subject, conflict_problem(client, where, addresses))
        if not found_differences:
            yield CheckResult("ok", self._subject, f"agrees with {count(len(clients), 'member')} on {where}")

    def _differences(self, members: ConsumerConnection) -> Iterator[group_problems.MemberDifference]:
        """Yield the differences between the members' last heartbeat at a broker and the configuration."""
        us = "the configuration"
        yield from group_problems.subscription_differences(members.subscription_table, self._subscriptions, us)
        yield from group_problems.model_difference(members.message_model, self._group.announced_message_model, us)

    async def _filter_check(self, address: str, where: str, topic: str) -> CheckResult | None:
        if self._group.subscriptions[topic].kind == "TAG":
            return None
        subject, data = f"{self._subject}.subscriptions.{topic}", self._subscriptions[topic]
        try:
            await check_client_config(self._client.remoting, address, self._client.client_id, self._name, data)
        except BrokerError as error:
            return CheckResult("error", subject, describe_filter_refusal(where, data, error))
        except RemotingError as error:
            return CheckResult("unreachable", subject, f"{where} does not answer ({error})")
        return CheckResult("ok", subject, f"{where} accepts the SQL filter")


async def _or_error(question: Awaitable[Answer]) -> Answer | RmqdError:
    try:
        return await question
    except RmqdError as error:
        return error


def _check_of(level: Level, subject: str, problem: Problem) -> CheckResult:
    return CheckResult(level, subject, f"{problem.evidence}; {problem.next}")


def _refusal(where: str, what: str, error: RmqdError) -> str:
    return f"{where} does not return {what}: {error}"


def _broker_addresses(cluster: ClusterInfo) -> frozenset[str]:
    return frozenset(
        address for broker in cluster.broker_addr_table.values() for address in broker.broker_addrs.values()
    )


def _join(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
