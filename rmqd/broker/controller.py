"""BrokerController: the parts of one broker, and the processors of its requests."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from rmqd.broker.broker_stats import BrokerStatsManager
from rmqd.broker.channel import Channel
from rmqd.broker.groups import SubscriptionGroupManager
from rmqd.broker.held_pulls import PullRequestHoldService
from rmqd.broker.housekeeping import ClientHousekeepingService
from rmqd.broker.journal import Journal
from rmqd.broker.locks import RebalanceLockManager
from rmqd.broker.members import ConsumerManager, ProducerManager
from rmqd.broker.offsets import ConsumerOffsetManager
from rmqd.broker.pop.held_pops import Place, PopLongPollingService
from rmqd.broker.pop.lite import LiteSubscriptions
from rmqd.broker.pop.order import ConsumerOrderInfoManager, OrderKey
from rmqd.broker.pop.revive import PopReviveService
from rmqd.broker.schedule import ScheduleMessageService
from rmqd.broker.settings import BrokerSettings
from rmqd.broker.static_topics import TopicQueueMappingManager
from rmqd.broker.store.message_store import MessageStore
from rmqd.broker.store.record_log import RecordLog
from rmqd.broker.topics import TopicConfigManager
from rmqd.clock import Clock
from rmqd.wire.headers.group import NotifyConsumerIdsChangedRequestHeader
from rmqd.wire.pop import ANY_QUEUE
from rmqd.wire.topics import is_light_queue


class BrokerController:
    """The parts that processors share. `clock` stamps and schedules messages, and may jump in tests.

    Held pulls and pops use its `monotonic`. The lifetime of clients and locks uses the event loop's own time, which
    does not jump.
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
        self.housekeeping = ClientHousekeepingService(self.consumers, self.producers)
        self.locks = RebalanceLockManager(self._loop.time)
        self.store = MessageStore(clock, address, settings, log, journal)
        self.held_pulls = PullRequestHoldService(clock)
        self.schedule = ScheduleMessageService(self.store, settings, clock, journal)
        self.held_pops = PopLongPollingService(settings, clock)
        self.held_notifications = PopLongPollingService(settings, clock)
        self.held_lite_pops = PopLongPollingService(settings, clock)
        """Held pops of lite topics. Each waits at the place (client id, group, any queue)."""
        self.lite = LiteSubscriptions(self.groups, self._loop.time, self.store.light.below, self._wake_lite)
        wake = self.schedule.wake_for
        self.revive = PopReviveService(self.store, self.topics, self.offsets, settings, journal, wake)
        self.pop_order = ConsumerOrderInfoManager(journal, self._free_of_order, wake)
        self.schedule.deliver_also(self.revive)
        self.schedule.deliver_also(self.pop_order)
        self.booted_at = clock.wall()
        """Seconds since 1970."""
        self.stats = BrokerStatsManager(self._loop.time, clock, settings.brokerClusterName)
        self.store.on_arrival(self.stats.arrived)
        self.store.on_arrival(self.held_pulls.arrived)
        self.store.on_arrival(self.held_pops.arrived)
        self.store.on_arrival(self.held_notifications.arrived)
        self.store.on_light_arrival(self.held_pulls.arrived)
        self.store.on_light_arrival(lambda arrival: self.lite.notify(arrival.topic))

    @property
    def name(self) -> str:
        return self.settings.brokerName

    def change_settings(self, settings: BrokerSettings) -> None:
        """Apply other settings. Raises UnknownSettingError, and changes nothing, if the delay levels are invalid."""
        self.schedule.change_settings(settings)
        self.settings = self.groups.settings = self.topics.settings = self.offsets.settings = settings
        self.held_pops.settings = self.held_notifications.settings = self.held_lite_pops.settings = settings
        self.revive.settings = settings
        self.store.change_settings(settings)

    def now(self) -> float:
        """Return the loop's time in seconds, which measures the lifetime of clients and locks."""
        return self._loop.time()

    def now_ms(self) -> int:
        """Return the clock's time in milliseconds since 1970, which stamps, hides and schedules messages."""
        return round(self.clock.wall() * 1000)

    async def run(self) -> None:
        """Deliver delayed messages and revive popped ones, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.schedule.run(), name="schedule")
            tasks.create_task(self.housekeeping.run(self.settings.channelExpiredTimeout / 1000), name="housekeeping")
            tasks.create_task(self.store.run(), name="retention")
            tasks.create_task(self.stats.run(), name="stats")
            tasks.create_task(self.lite.run(), name="lite subscriptions")

    def _free_of_order(self, key: OrderKey) -> None:
        """Wake pops that wait for a queue that an orderly pop had closed and that is open again."""
        topic, group, queue_id = key
        if is_light_queue(topic):
            self.lite.notify(topic, group)
            return
        if not self.held_pops.wake(Place(topic, group, ANY_QUEUE)):
            self.held_pops.wake(Place(topic, group, queue_id))
        self.held_notifications.wake(Place(topic, group, ANY_QUEUE))
        self.held_notifications.wake(Place(topic, group, queue_id))

    def _wake_lite(self, client_id: str, group: str) -> None:
        self.held_lite_pops.wake(Place(client_id, group, ANY_QUEUE))

    def _consumer_ids_changed(self, group: str, members: Collection[Channel]) -> None:
        """Send NOTIFY_CONSUMER_IDS_CHANGED (40) to members, before the response to the heartbeat that caused it."""
        if self.settings.notifyConsumerIdsChangedEnable:
            header = NotifyConsumerIdsChangedRequestHeader(consumer_group=group)
            for channel in members:
                channel.send_oneway(header.code, header.ext_fields())
