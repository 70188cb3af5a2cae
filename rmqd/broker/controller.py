"""BrokerController: the state of one broker, which its request processors share, and its periodic tasks.

The module also contains the figures of GET_BROKER_RUNTIME_INFO, the locks of orderly groups, and static topics.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import Final

import structlog

from rmqd.broker.broker_settings import BrokerSettings
from rmqd.broker.broker_stats import MINUTE, BrokerStatsManager, StatsItem
from rmqd.broker.consumer_registry import ConsumerOffsetManager, SubscriptionGroupManager
from rmqd.broker.held_requests import (
    GroupQueue,
    PopLiteLongPollingService,
    PopLongPollingService,
    PullRequestHoldService,
)
from rmqd.broker.member_registry import ConsumerManager, ProducerManager
from rmqd.broker.peer_channel import Channel, Refusal
from rmqd.broker.pop.lite_topics import LiteSubscriptions
from rmqd.broker.pop.pop_orders import ConsumerOrderInfoManager
from rmqd.broker.pop.revive import PopReviveService
from rmqd.broker.schedule import ScheduleMessageService
from rmqd.broker.store.journal import Journal, JournalKind, RecordLog
from rmqd.broker.store.message_store import MessageStore
from rmqd.broker.topic_registry import TopicConfigManager
from rmqd.codes import ResponseCode
from rmqd.runtime.clock import Clock
from rmqd.wire.bodies.route_data import LogicQueueMappingItem, TopicQueueMappingDetail
from rmqd.wire.headers.group_headers import NotifyConsumerIdsChangedRequestHeader
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.receipt_handle import ANY_QUEUE_ID
from rmqd.wire.topics import is_light_queue

_VERSION: Final = "V5_5_0"
_QUEUES: Final = {"send": 10000, "pull": 100000, "litePull": 100000, "query": 20000, "ack": 100000}  # Java's capacities
_NO_TIME: Final = -1
_CONSTANT: Final = {
    "EndTransactionQueueSize": "0",
    "EndTransactionThreadPoolQueueCapacity": "100000",
    "brokerActive": "true",
    "brokerVersionDesc": _VERSION,
    "dispatchBehindBytes": "0",
    "dispatchMaxBuffer": "0",
    "pageCacheLockTimeMills": "0",
    "putMessageDistributeTime": "null",
    "putMessageEntireTimeMax": "0",
    "putLatency99": "0.00",
    "putLatency999": "0.00",
    "getMessageEntireTimeMax": "0",
    "remainHowManyDataToFlush": "0 B",
    "remainTransientStoreBufferNumbs": "2147483647",
    "startAcceptSendRequestTimeStamp": "0",
    "timerCongestNum": "0",
    "timerDequeueTps": "0.0",
    "timerEnqueueTps": "0.0",
    "timerOffsetBehind": "0",
    "timerReadBehind": "0",
}


def runtime_info(broker: BrokerController) -> dict[str, str]:
    """Return the broker's runtime figures, by the names that mqadmin and monitoring tools read.

    The figures of thread pool queues and of the page cache are constant, because this broker has neither.
    """
    stats, store = broker.stats, broker.store
    puts, gets, oldest = stats.puts, stats.gets, store.oldest
    disk = shutil.disk_usage("/")
    ratio = f"{disk.used / disk.total:.2f}"
    table = {
        **_CONSTANT,
        "bootTimestamp": str(int(broker.booted_at * 1000)),
        "runtime": _duration(broker.clock.wall() - broker.booted_at),
        "commitLogDirCapacity": f"Total : {_bytes(disk.total)}, Free : {_bytes(disk.free)}.",
        "commitLogDiskRatio": ratio,
        "consumeQueueDiskRatio": ratio,
        "commitLogMaxOffset": str(store.end),
        "commitLogMinOffset": str(0 if oldest is None else oldest.commit_log_offset),
        "earliestMessageTimeStamp": str(_NO_TIME if oldest is None else oldest.store_timestamp),
        "putMessageTimesTotal": str(puts.messages),
        "putMessageFailedTimes": "0",
        "putMessageSizeTotal": str(puts.size_bytes),
        "putMessageAverageSize": str(puts.size_bytes / puts.messages if puts.messages else 0.0),
        "putTps": _rates(stats.now(), puts),
        "getFoundTps": _rates(stats.now(), gets),
        "getMissTps": _rates(stats.now(), stats.get_misses),
        "getTotalTps": _rates(stats.now(), gets, stats.get_misses),
        "getTransferredTps": _rates(stats.now(), gets),
        "msgPutTotalYesterdayMorning": str(stats.puts_at_midnights[0]),
        "msgPutTotalTodayMorning": str(stats.puts_at_midnights[1]),
        "msgPutTotalTodayNow": str(puts.messages),
        "msgGetTotalYesterdayMorning": str(stats.gets_at_midnights[0]),
        "msgGetTotalTodayMorning": str(stats.gets_at_midnights[1]),
        "msgGetTotalTodayNow": str(gets.messages),
    }
    for name, capacity in _QUEUES.items():
        table[f"{name}ThreadPoolQueueSize"] = "0"
        table[f"{name}ThreadPoolQueueCapacity"] = str(capacity)
        table[f"{name}ThreadPoolQueueHeadWaitTimeMills"] = "0"
    for level, (offset, end) in broker.schedule.progress().items():
        table[f"scheduleMessageOffset_{level}"] = f"{offset},{end}"
    return dict(sorted(table.items()))


def _rates(now: float, *items: StatsItem) -> str:
    """Return the messages per second of all items together, as text: over ten seconds, a minute and ten minutes."""
    return " ".join(str(sum(item.nums(now, seconds).tps for item in items)) for seconds in (10.0, MINUTE, 10 * MINUTE))


def _duration(seconds: float) -> str:
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    return f"[ {days} days, {hour} hours, {minute} minutes, {second} seconds ]"


def _bytes(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


log = structlog.get_logger(__name__)

SCAN_SECONDS: Final = 10.0


LOCK_SECONDS: Final = 60.0  # Java: rocketmq.broker.rebalance.lockMaxLiveTime


class RebalanceLockManager:
    """The queue locks of orderly groups, in memory only. A lock stores its owner's client id and when it expires.

    `now` returns monotonic seconds.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._locks: dict[str, dict[MessageQueue, tuple[str, float]]] = {}

    def lock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> frozenset[MessageQueue]:
        """Lock the queues that no other client has locked. Returns the queues that the client has locked now."""
        held, now = self._locks.setdefault(group, {}), self._now()
        got = set()
        for queue in queues:
            owner, until = held.get(queue, ("", 0.0))
            if owner in ("", client_id) or until < now:
                held[queue] = (client_id, now + LOCK_SECONDS)
                got.add(queue)
        return frozenset(got)

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Unlock queues. The locks of other clients stay."""
        held = self._locks.get(group, {})
        for queue in queues:
            if held.get(queue, ("", 0.0))[0] == client_id:
                del held[queue]

    def has_any(self, group: str) -> bool:
        """Return whether a member of the group holds a lock that has not expired."""
        now = self._now()
        return any(until >= now for _, until in self._locks.get(group, {}).values())


class TopicQueueMappingManager:
    """The mappings of static topics, from logical queues to the queues of this broker.

    The cluster has only this broker. So each logical queue is one physical queue with the same id and offsets, and
    requests may name either of them. Other mappings are rejected.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._details: dict[str, TopicQueueMappingDetail] = {}
        for topic, value in journal.items(JournalKind.STATIC_TOPIC):
            self._details[topic] = TopicQueueMappingDetail.from_json(value.encode())

    def get(self, topic: str) -> TopicQueueMappingDetail | None:
        """Return the mapping of a static topic; None if the topic is not static."""
        return self._details.get(topic)

    def delete(self, topic: str) -> None:
        if self._details.pop(topic, None) is not None:
            self._journal.delete(JournalKind.STATIC_TOPIC, topic)

    def merge_request(
        self, detail: TopicQueueMappingDetail, broker_name: str, *, force: bool
    ) -> TopicQueueMappingDetail:
        """Return a requested mapping, merged with the topic's existing queues. Raises Refusal if it is invalid."""
        for queue_id, items in detail.hosted_queues.items():
            if detail.bname != broker_name or not _is_plain(queue_id, items, broker_name):
                raise _refused(f"queue {queue_id} of {detail.topic} must be all of queue {queue_id} of this broker")
        old = self.get(detail.topic)
        if old is None:
            return detail
        if not force:
            if detail.epoch < old.epoch:
                raise _refused(f"Can't accept data with small epoch {detail.epoch} < {old.epoch}")
            if detail.scope != old.scope:
                raise _refused(f"Can't accept data with unmatched scope {detail.scope} != {old.scope}")
            if detail.epoch == old.epoch and old.hosted_queues.keys() - detail.hosted_queues.keys():
                raise _refused("Cannot accept equal epoch with null data")
        return replace(detail, hosted_queues=old.hosted_queues | detail.hosted_queues)

    def put(self, detail: TopicQueueMappingDetail) -> None:
        self._details[detail.topic] = detail
        self._journal.put(JournalKind.STATIC_TOPIC, detail.topic, detail.to_json().decode())


def _is_plain(queue_id: int, items: tuple[LogicQueueMappingItem, ...], broker_name: str) -> bool:
    if len(items) != 1:
        return False
    [item] = items
    return (item.bname, item.queue_id, item.logic_offset, item.start_offset) == (broker_name, queue_id, 0, 0)


def _refused(why: str) -> Refusal:
    return Refusal(ResponseCode.SYSTEM_ERROR, why)


class BrokerController:
    """The state of one broker, shared by its processors. Messages are stamped and delayed by `clock`.

    Held pulls and pops time out by `clock.monotonic`. Clients and queue locks expire by the event loop's time, which
    does not jump when a test sets `clock`.
    """

    def __init__(self, settings: BrokerSettings, clock: Clock, log: RecordLog, journal: Journal, address: str) -> None:
        self._loop = asyncio.get_running_loop()
        self.settings = settings
        self.clock = clock
        self.address = address
        self.journal = journal
        self.topics = TopicConfigManager(settings, journal)
        self.static_topics = TopicQueueMappingManager(journal)
        self.groups = SubscriptionGroupManager(settings, clock, journal)
        self.offsets = ConsumerOffsetManager(settings, journal)
        self.consumers = ConsumerManager(self._consumer_ids_changed)
        self.producers = ProducerManager()
        self.locks = RebalanceLockManager(self._loop.time)
        self.store = MessageStore(clock, address, settings, log, journal)
        self.held_pulls = PullRequestHoldService(clock)
        self.schedule = ScheduleMessageService(self.store, settings, clock, journal)
        self.held_pops = PopLongPollingService(settings, clock)
        self.held_notifications = PopLongPollingService(settings, clock)
        self.held_lite_pops = PopLiteLongPollingService(settings, clock)
        self.lite = LiteSubscriptions(
            self.groups, self._loop.time, self.store.light.names_of_parent_topic, self._wake_lite
        )
        wake = self.schedule.wake_for
        self.revive = PopReviveService(self.store, self.topics, self.offsets, settings, journal, wake)
        self.pop_order = ConsumerOrderInfoManager(journal, self._free_of_order, wake)
        self.schedule.add_delivery(self.revive)
        self.schedule.add_delivery(self.pop_order)
        self.booted_at = clock.wall()
        """When the broker started, in seconds since 1970."""
        self.stats = BrokerStatsManager(self._loop.time, clock, settings.brokerClusterName)
        self.store.on_arrival(self.stats.count_stored)
        self.store.on_arrival(self.held_pulls.arrived)
        self.store.on_arrival(self.held_pops.arrived)
        self.store.on_arrival(self.held_notifications.arrived)
        self.store.on_light_arrival(self.held_pulls.arrived)
        self.store.on_light_arrival(lambda arrival: self.lite.notify(arrival.topic))

    @property
    def name(self) -> str:
        return self.settings.brokerName

    @property
    def host(self) -> str:
        return self.address.rpartition(":")[0]

    def change_settings(self, settings: BrokerSettings) -> None:
        """Apply other settings. Raises UnknownSettingError, and changes nothing, if the delay levels are invalid."""
        self.schedule.change_settings(settings)
        self.settings = self.groups.settings = self.topics.settings = self.offsets.settings = settings
        self.held_pops.settings = self.held_notifications.settings = self.held_lite_pops.settings = settings
        self.revive.settings = settings
        self.store.change_settings(settings)

    def now(self) -> float:
        """Return the event loop's time in seconds, which measures the lifetimes of clients and locks."""
        return self._loop.time()

    def now_ms(self) -> int:
        """Return the clock's time in milliseconds since 1970, used for store times, invisible times and delays."""
        return round(self.clock.wall() * 1000)

    async def run(self) -> None:
        """Run the broker's periodic tasks, such as delayed delivery and retention, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.schedule.run(), name="schedule")
            tasks.create_task(self.expire_clients(), name="housekeeping")
            tasks.create_task(self.store.run(), name="retention")
            tasks.create_task(self.stats.run(), name="stats")
            tasks.create_task(self.lite.run(), name="lite subscriptions")

    async def expire_clients(self) -> None:
        """Every 10 s, disconnect clients that sent no heartbeat for `channelExpiredTimeout`, until cancelled."""
        expired_seconds = self.settings.channelExpiredTimeout / 1000
        while True:
            await asyncio.sleep(SCAN_SECONDS)
            self.close_expired_clients(self.now() - expired_seconds)

    def close_expired_clients(self, heard_before: float) -> None:
        """Remove clients without a heartbeat since `heard_before` (loop time), and close their connections."""
        silent = self.producers.remove_silent(heard_before) + self.consumers.remove_silent(heard_before)
        for client in {client.channel: client for client in silent}.values():
            log.warning("broker.client_expired", client_id=client.client_id, client=client.channel.address)
            client.channel.close()

    def _free_of_order(self, key: GroupQueue) -> None:
        """Called when an orderly pop stops blocking a queue. Wakes the pops that wait for the queue."""
        topic, group, queue_id = key
        if is_light_queue(topic):
            self.lite.notify(topic, group)
            return
        if not self.held_pops.wake(GroupQueue(topic, group, ANY_QUEUE_ID)):
            self.held_pops.wake(GroupQueue(topic, group, queue_id))
        self.held_notifications.wake(GroupQueue(topic, group, ANY_QUEUE_ID))
        self.held_notifications.wake(GroupQueue(topic, group, queue_id))

    def _wake_lite(self, client_id: str, group: str) -> None:
        self.held_lite_pops.wake(GroupQueue(client_id, group, ANY_QUEUE_ID))

    def _consumer_ids_changed(self, group: str, members: Collection[Channel]) -> None:
        """Called when group members change. Sends them NOTIFY_CONSUMER_IDS_CHANGED (40) before a heartbeat's reply."""
        if self.settings.notifyConsumerIdsChangedEnable:
            header = NotifyConsumerIdsChangedRequestHeader(consumer_group=group)
            for channel in members:
                channel.send_oneway(header.code, header.ext_fields())
