"""Problems that both a running group and `rmqd diagnose` report, such as differences between the group's members."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from rmqd.consumer.health.causes import Problem, make_problem
from rmqd.wire.bodies.config_bodies import SubscriptionGroupConfig
from rmqd.wire.bodies.heartbeat_data import EXPRESSION_TAG, MessageModel, SubscriptionData
from rmqd.wire.topics import is_retry_topic

MAX_LISTED_NAMES = 4


def list_names(names: Iterable[str], most: int = MAX_LISTED_NAMES) -> str:
    """Return the first `most` names in alphabetical order, and the number of the others: `a, b, c, d and 3 more`."""
    every = sorted(names)
    more = f" and {len(every) - most} more" if len(every) > most else ""
    return ", ".join(every[:most]) + more


PROCESS_CLIENT_ID: Final = re.compile(r"@\d+#\d{9,}")
"""The default instance name of Java and rmqd: the process id, and its creation time in nanoseconds."""

FORBIDDING_CAUSES: Final = ("consumption_disabled", "group_unknown", "retries_dropped")
"""The problems by which a broker's settings keep a group from consuming."""
FORBIDDEN_PREFIX: Final = "is kept from consuming: "
"""Text in the reason why a group is not ready, if access is refused or brokers' settings forbid it to consume."""


def missing_topic_problem(topic: str) -> Problem:
    """Return the problem of a topic without a route."""
    return make_problem("topic_missing", f"no name server knows topic {topic}", topic=topic)


def unreadable_topic_problem(topic: str, brokers: list[str]) -> Problem:
    """Return the problem of a topic that is not readable on some brokers."""
    evidence = f"topic {topic} is not readable on {list_names(brokers)}: the topic's permission there forbids it"
    return make_problem("no_permission", evidence, topic=topic)


def update_group_command(settings: SubscriptionGroupConfig, attributes: str = "") -> str:
    """Return the mqadmin command that stores these settings of a group, and changes `attributes`.

    The command contains all settings, because mqadmin resets each omitted setting except attributes.
    """
    values = (
        ("s", settings.consume_enable), ("m", settings.consume_from_min_enable),
        ("d", settings.consume_broadcast_enable), ("q", settings.retry_queue_nums), ("r", settings.retry_max_times),
        ("i", settings.broker_id), ("w", settings.which_broker_when_consume_slowly),
        ("a", settings.notify_consumer_ids_changed_enable),
    )  # fmt: skip
    command = f"`mqadmin updateSubGroup -c CLUSTER -g {settings.group_name}"
    command += "".join(f" -{option} {str(value).lower()}" for option, value in values)
    command += " -o true" if settings.consume_message_orderly else ""  # mqadmin 4.x lacks the option
    if settings.group_retry_policy != SubscriptionGroupConfig(group_name="").group_retry_policy:
        command += f" -p {shlex.quote(json.dumps(settings.group_retry_policy))}"
    return f"{command} --attributes {attributes}`" if attributes else f"{command}`"


def group_settings_problem(where: str, group: str, settings: SubscriptionGroupConfig, model: str) -> Problem | None:
    """Return how a broker's settings forbid the group to consume; None if they allow it."""
    if not settings.consume_enable:
        evidence = f"{where} forbids the group to consume (consumeEnable is false)"
        step = f"{update_group_command(replace(settings, consume_enable=True))} allows the group to consume again"
        return Problem("consumption_disabled", evidence, step)
    if model == MessageModel.BROADCASTING and not settings.consume_broadcast_enable:
        step = f"{update_group_command(replace(settings, consume_broadcast_enable=True))} allows it to broadcast"
        evidence = f"{where} forbids broadcasting (consumeBroadcastEnable is false)"
        return Problem("consumption_disabled", evidence, step)
    if model == MessageModel.CLUSTERING and settings.retry_queue_nums < 1:
        evidence = f"{where} has no retry queue for the group (retryQueueNums): sent-back messages are dropped there"
        step = f"{update_group_command(replace(settings, retry_queue_nums=1))} gives the group a retry queue"
        return Problem("retries_dropped", f"{evidence}, as if they were handled", step)
    return None


def unknown_group_problem(where: str, group: str) -> Problem:
    """Return the problem of a broker (`where`) that neither knows the group nor creates it when members connect."""
    evidence = (
        f"{where} does not know the group, and does not create it when members connect (autoCreateSubscriptionGroup)"
    )
    return make_problem("group_unknown", evidence, group=group)


@dataclass(frozen=True, slots=True)
class MemberDifference:
    """A difference between members. Later checks recognize a known difference by equality."""

    cause: str  # a key of CAUSES
    subject: str  # the topic, the property or the client id
    text: str  # follows the words "other members", as in: "do not subscribe to A, this one does"


def subscription_differences(
    theirs: Mapping[str, SubscriptionData], ours: Mapping[str, SubscriptionData], us: str
) -> Iterator[MemberDifference]:
    """Yield a difference for each topic whose subscription differs between a member (`theirs`) and us (`ours`).

    `us` names the side of `ours` in the texts, such as "the configuration". Only the effect on messages is compared,
    not the notation of tags or the version. Retry topics are skipped, because each client subscribes to them
    automatically.
    """
    theirs = {topic: data for topic, data in theirs.items() if not is_retry_topic(topic)}
    ours = {topic: data for topic, data in ours.items() if not is_retry_topic(topic)}
    for topic in sorted(ours.keys() - theirs.keys()):
        yield MemberDifference("subscription_mismatch", topic, f"do not subscribe to {topic}, {us} does")
    for topic in sorted(theirs.keys() - ours.keys()):
        yield MemberDifference("subscription_mismatch", topic, f"subscribe to {topic}, {us} does not")
    for topic in sorted(ours.keys() & theirs.keys()):
        if _meaning(ours[topic]) != _meaning(theirs[topic]):
            text = f"subscribe to {topic} by {_written(theirs[topic])}, {us} by {_written(ours[topic])}"
            yield MemberDifference("subscription_mismatch", topic, text)


def model_difference(theirs: str | None, ours: str, us: str) -> Iterator[MemberDifference]:
    """Yield a difference if the message models differ. `theirs` is None if unknown; `us` names the side of `ours`."""
    if theirs is not None and theirs != ours:
        yield MemberDifference("mode_mismatch", "message model", f"consume as {theirs}, {us} as {ours}")


def order_difference(theirs: bool | None, ours: bool, us: str) -> Iterator[MemberDifference]:
    """Yield a difference if only one side consumes orderly (True). `theirs` is None if unknown."""
    if theirs is not None and theirs != ours:
        yield MemberDifference("mode_mismatch", "order", f"consume {_order(theirs)}, {us} {_order(ours)}")


def _order(orderly: bool) -> str:
    return "orderly" if orderly else "concurrently"


def _meaning(data: SubscriptionData) -> object:
    """Return the part of a subscription that decides which messages match: no version, no order of tags."""
    return data.tags_set if data.expression_type == EXPRESSION_TAG else (data.expression_type, data.sub_string)


def _written(data: SubscriptionData) -> str:
    return f"{data.expression_type} {data.sub_string!r}"
