"""The topics of a cluster; one topic with its queues, and the groups that read it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rmqd.broker_errors import TopicNotExistError
from rmqd.client.api.admin import topic_config, topic_configs, topic_consumers, topic_stats
from rmqd.errors import RmqdError
from rmqd.wire.bodies.route import PERM_READ, PERM_WRITE
from rmqd.wire.topic_kinds import MESSAGE_TYPE
from rmqd.wire.topics import REPLY_TOPIC_SUFFIX, SYSTEM_TOPIC_PREFIX, is_dlq_topic, is_retry_topic, is_system_topic

if TYPE_CHECKING:
    from rmqd.client.looks.brokers import Brokers
    from rmqd.wire.bodies.settings import TopicConfig
    from rmqd.wire.bodies.stats import TopicStatsTable


@dataclass(frozen=True, slots=True)
class TopicSummary:
    """One topic. `queues` is the number of readable queues of all brokers. `permissions` is "rw", "r", "w" or "".

    `message_type` is from the topic's settings; "" if it is not set, as on brokers of 4.x.
    """

    topic: str
    queues: int
    permissions: str
    message_type: str
    brokers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TopicQueue:
    """The ends of one queue. `last_stored_ms` is the store time of its last message (Unix milliseconds), 0 if none."""

    broker: str
    queue: int
    min: int
    max: int
    last_stored_ms: int


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """The topic's settings on one broker."""

    read_queues: int
    write_queues: int
    permissions: str
    attributes: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class TopicDetail:
    """One topic. `messages` is the number of messages on its brokers, `groups` are its present and past consumers."""

    topic: str
    messages: int
    queues: tuple[TopicQueue, ...]
    groups: tuple[str, ...]
    brokers: Mapping[str, TopicSettings]


async def list_topics(
    brokers: Brokers, *, namespace: str = "", with_system: bool = False
) -> tuple[list[TopicSummary], dict[str, RmqdError]]:
    """Return the topics by name, and the failed queries. A `namespace` selects its own topics.

    `with_system` includes RocketMQ's own topics, retry topics and dead letter topics.
    """
    remoting = brokers.client.remoting
    tables = await brokers.ask(lambda address: topic_configs(remoting, address))
    where: dict[str, dict[str, TopicConfig]] = {}
    for broker, table in tables.by_broker.items():
        for topic, config in table.items():
            if topic.startswith(f"{namespace}%" if namespace else "") and (
                with_system or not _is_inner(topic, brokers)
            ):
                where.setdefault(topic, {})[broker] = config
    return [_summary(topic, where[topic]) for topic in sorted(where)], dict(tables.errors)


async def show_topic(brokers: Brokers, topic: str) -> tuple[TopicDetail, dict[str, RmqdError]]:
    """Return one topic, and the failed queries. Raises TopicNotExistError if no reachable broker has it."""
    remoting = brokers.client.remoting
    configs = await brokers.ask(lambda address: topic_config(remoting, address, topic))
    missing = [error for error in configs.errors.values() if isinstance(error, TopicNotExistError)]
    errors = {name: error for name, error in configs.errors.items() if error not in missing}
    if not configs.by_broker:
        unknown = RmqdError(f"no broker has topic {topic}; run `rmqd topics list` to see all")
        raise next(iter(errors.values()), unknown)
    stats, groups = await asyncio.gather(
        brokers.ask(lambda address: topic_stats(remoting, address, topic), configs.by_broker),
        brokers.ask(lambda address: topic_consumers(remoting, address, topic), configs.by_broker),
    )
    queues = tuple(_queues(stats.by_broker.values()))
    detail = TopicDetail(
        topic,
        sum(queue.max - queue.min for queue in queues),
        queues,
        tuple(sorted({group for found in groups.by_broker.values() for group in found})),
        {name: _settings(config) for name, config in configs.by_broker.items()},
    )
    return detail, {**errors, **stats.errors, **groups.errors}


def _is_inner(topic: str, brokers: Brokers) -> bool:
    """Return whether a topic is not for users. Brokers also create topics named after each broker and cluster."""
    is_derived = is_retry_topic(topic) or is_dlq_topic(topic) or topic.endswith(REPLY_TOPIC_SUFFIX)
    is_system = is_system_topic(topic) or topic.startswith(SYSTEM_TOPIC_PREFIX)
    return is_derived or is_system or topic in brokers.masters or topic in brokers.clusters


def _summary(topic: str, configs: Mapping[str, TopicConfig]) -> TopicSummary:
    permissions = 0
    for config in configs.values():
        permissions |= config.perm
    return TopicSummary(
        topic,
        sum(config.read_queue_nums for config in configs.values()),
        _permissions(permissions),
        next((kind for config in configs.values() if (kind := config.attributes.get(MESSAGE_TYPE))), ""),
        tuple(configs),
    )


def _queues(tables: Iterable[TopicStatsTable]) -> Iterable[TopicQueue]:
    for table in tables:
        for queue, ends in sorted(table.offset_table.items()):
            yield TopicQueue(
                queue.broker_name, queue.queue_id, ends.min_offset, ends.max_offset, ends.last_update_timestamp
            )


def _settings(config: TopicConfig) -> TopicSettings:
    return TopicSettings(config.read_queue_nums, config.write_queue_nums, _permissions(config.perm), config.attributes)


def _permissions(perm: int) -> str:
    return ("r" if perm & PERM_READ else "") + ("w" if perm & PERM_WRITE else "")
