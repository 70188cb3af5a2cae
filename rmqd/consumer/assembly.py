"""Creates the parts of a consumer group. The consume mode and the message model decide which classes are used."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rmqd.client.instance import ClientInstance
from rmqd.consumer.cache.flow_control import RateLimit, Thresholds
from rmqd.consumer.cache.keyed_process_queue import KeyedProcessQueue
from rmqd.consumer.cache.process_queue import ProcessQueue
from rmqd.consumer.canary import Canary
from rmqd.consumer.consumer_options import ConsumerOptions
from rmqd.consumer.context import GroupContext
from rmqd.consumer.handling.concurrently import ConsumeMessageConcurrentlyService
from rmqd.consumer.handling.orderly import ConsumeMessageOrderlyService
from rmqd.consumer.handling.send_back import NoRetry, SendBack, reconsume_limit
from rmqd.consumer.handling.slots import HandlerSlots
from rmqd.consumer.hooks import GroupHooks, Hook
from rmqd.consumer.offsets.broker_store import RemoteBrokerOffsetStore
from rmqd.consumer.offsets.local_file_store import LocalFileOffsetStore, OffsetsFile
from rmqd.consumer.offsets.new_group_check import BrokerStartOffsets, FileStartOffsets
from rmqd.consumer.offsets.start_offsets import StartOffsets
from rmqd.consumer.rebalance.ownership import QueueOwnership
from rmqd.consumer.rebalance.queue_lock import QueueLock
from rmqd.consumer.rebalance.rebalance import QueueDivision
from rmqd.consumer.services import ConsumeMessageService, GroupOffsetStore, Ownership, RetryPolicy
from rmqd.consumer.stats.counters import CanaryStats, RetryTopicStats, TopicStats
from rmqd.handler_api.batch import LoadedHandler
from rmqd.wire.bodies.heartbeat_data import SubscriptionData, sql_subscription, tag_subscription
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.properties import value_reader
from rmqd.wire.topics import SUBSCRIPTION_ALL, retry_topic, unwrap_namespace

if TYPE_CHECKING:
    from rmqd.consumer.pop.receipts import PopReceipts


def assemble_group(
    options: ConsumerOptions,
    handler: LoadedHandler,
    client: ClientInstance,
    hooks: Sequence[Hook] = (),
    *,
    retry_policy: RetryPolicy | None = None,
    ends: Mapping[MessageQueue, int] | None = None,
    service: ConsumeMessageService | None = None,
    cache: type[ProcessQueue] = ProcessQueue,
    division: Callable[[GroupContext], QueueDivision] | None = None,
) -> tuple[GroupContext, QueueDivision]:
    """Create a group, neither paused nor running, and the object that divides the queues of its topics among members.

    `retry_policy` replaces the send-back to brokers. `ends` are the offsets at which pulling stops. If the broker
    filters messages, it may still return messages beyond an end, and a hook must remove them. `service` receives the
    messages instead of `handler`. `cache` is the class of the process queues. `division` creates an object that selects
    queues independently of the group's members.

    Raises RmqdError for an invalid filter expression. Modules that few groups need are imported only when they are
    used, so that the daemon starts sooner.
    """
    clock, trace, receipts = client.clock, None, None
    if options.trace is not None:
        from rmqd.consumer.handling.message_trace import MessageTrace

        trace = MessageTrace(options.trace, options, client, clock)
        hooks = (*hooks, trace.hook)
    if options.consume_mode == "pop":
        from rmqd.consumer.pop.receipts import PopReceipts

        receipts = PopReceipts(client, options.group, clock)
    group_hooks = GroupHooks(hooks, options.group_without_namespace, client.client_id, clock) if hooks else None
    if group_hooks is not None:
        handler = group_hooks.wrap_handler(handler)
    own_policy, store, start_offsets, ownership = _by_message_model(options, client, receipts)
    retry_policy = retry_policy or own_policy
    leases = ownership if options.consume_mode == "orderly" else None
    slots: HandlerSlots
    if options.retries_in_place:
        slots = ConsumeMessageOrderlyService(options, handler, retry_policy, leases, clock)
    else:
        slots = ConsumeMessageConcurrentlyService(options, handler, retry_policy, clock)
    if (transactions := getattr(store, "transactions", None)) is not None:
        slots.transactions = transactions
        transactions.keeps_batch_order = options.keeps_queue_order
    context = GroupContext(
        options=options,
        client=client,
        clock=clock,
        subscriptions=subscription_data_of(options, int(clock.wall() * 1000)),
        stats=create_topic_stats(options, handler.canary),
        service=service or slots,
        retry_policy=retry_policy,
        store=store,
        start_offsets=start_offsets,
        ownership=ownership,
        rate_limit=RateLimit(options.pull_rate_limit, clock),
        thresholds=Thresholds.per_queue(options, 0),
        refused_messages=retry_policy.refused if isinstance(retry_policy, SendBack) else {},
        hooks=group_hooks,
        trace=trace,
        end_offsets=ends or {},
        create_cache=partial(KeyedProcessQueue, key_of=value_reader(options.order_by)) if options.order_by else cache,
    )
    context.not_paused.set()
    if division is not None:
        return context, division(context)
    if options.message_model == "broadcasting":
        return context, QueueDivision(context)
    if receipts is None:
        from rmqd.consumer.pop.pop_retries import PopRetriesDivision

        return context, PopRetriesDivision(context)
    if options.is_lite:
        from rmqd.consumer.lite.lite_assignment import LiteDivision

        return context, LiteDivision(context, receipts)
    from rmqd.consumer.pop.pop_assignment import DivisionByBroker

    return context, DivisionByBroker(context, receipts)


def _by_message_model(
    options: ConsumerOptions, client: ClientInstance, receipts: PopReceipts | None
) -> tuple[RetryPolicy, GroupOffsetStore, StartOffsets, Ownership]:
    """Return the retry policy, offset store, start offsets and ownership, which depend on the message model."""
    group, clock = options.group, client.clock
    if options.message_model == "broadcasting":
        directory, identity = options.local_offsets_directory, partial(_identity, options, client)
        local_store = LocalFileOffsetStore(directory, options.group_without_namespace, clock, identity)
        return NoRetry(options), local_store, FileStartOffsets(client, options, clock, local_store), Ownership()
    store = RemoteBrokerOffsetStore(client, group, clock)
    if options.offset_store is not None:
        from rmqd.consumer.offsets.own_store import CustomOffsetStore

        store = CustomOffsetStore(client, group, clock, options.offset_store(), options.replay)
    start_offsets = BrokerStartOffsets(client, options, clock, store)
    limit = reconsume_limit(options)
    retry_policy = SendBack(client, group, limit)
    if receipts is not None:
        from rmqd.consumer.pop.pop_retries import PopSendBack

        retry_policy = PopSendBack(client, group, limit, receipts)
    if options.consume_mode == "orderly":
        return retry_policy, store, start_offsets, QueueLock(client, group, clock)
    ownership = QueueOwnership(client, group, options.queue_handover_timeout_seconds, clock)
    return retry_policy, store, start_offsets, ownership


def read_local_offsets(options: ConsumerOptions, client: ClientInstance) -> dict[MessageQueue, int]:
    """Return a broadcasting group's offsets from its file; the group need not run. Raises OffsetStoreError."""
    folder = Path(options.local_offsets_directory, options.group_without_namespace)
    return OffsetsFile(folder).offsets_of(_identity(options, client))


def _identity(options: ConsumerOptions, client: ClientInstance) -> str:
    """Return the text that identifies the group in its offsets file; empty while the id of its cluster is unknown."""
    return str(client.identity(options.group)) if client.cluster_id.id else ""


def subscription_data_of(options: ConsumerOptions, version: int) -> dict[str, SubscriptionData]:
    """Return the subscriptions to announce to brokers, by topic; `version` is Unix time in milliseconds."""
    result = {}
    for topic, subscription in options.subscriptions.items():
        build = tag_subscription if subscription.kind == "TAG" else sql_subscription
        result[topic] = build(topic, subscription.expression, version)
    if options.message_model == "broadcasting" or options.is_lite:
        return result
    retry = retry_topic(options.group)
    result[retry] = tag_subscription(retry, SUBSCRIPTION_ALL, version)
    return result


def create_topic_stats(options: ConsumerOptions, canary: Canary | None = None) -> dict[str, TopicStats]:
    """Return each topic's counters. Retried messages are counted separately, under their original topic."""
    make: Callable[..., TopicStats] = TopicStats
    if canary is not None and canary.is_live:
        make = partial(CanaryStats, takes=canary.is_in_share)
    named = {topic: unwrap_namespace(topic, options.namespace) for topic in options.subscriptions}
    stats = {topic: make(name, is_retry=False) for topic, name in named.items()}
    if options.message_model == "broadcasting" or options.is_lite:
        return stats
    retry, topics = retry_topic(options.group), list(named.values())
    stats[retry] = make(topics[0], is_retry=True) if len(topics) == 1 else RetryTopicStats(retry, topics, make)
    return stats
