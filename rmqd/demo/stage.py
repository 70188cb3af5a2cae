"""The parts around a running broker: the producer, the group, and their observers."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from rmqd.broker.embedded import EmbeddedRocketMQ
from rmqd.client.api.offset import query_consumer_offset
from rmqd.client.instance import ClientInstance
from rmqd.client.options import ClientOptions
from rmqd.clock import Clock
from rmqd.config.model.root import RootConfig
from rmqd.daemon.groups.engine import LocalEngine
from rmqd.daemon.groups.health import LoopMonitor
from rmqd.daemon.groups.local_groups import LocalGroups
from rmqd.demo.figures import DemoFigures, Observer
from rmqd.demo.ledger import Ledger
from rmqd.demo.orders import Orders
from rmqd.demo.producer import OrderProducer
from rmqd.wire.message_queue import MessageQueue

POLL_SECONDS: Final = 0.02


class Stage:
    """One group of `config`, a producer for its topics, and the ledger. Raises ConfigError; starts nothing."""

    def __init__(
        self, rocketmq: EmbeddedRocketMQ, config: RootConfig, clock: Clock, *, seed: int | None, messages: int | None
    ) -> None:
        [(self.group, settings)] = config.groups.items()
        topics = tuple(settings.subscriptions)
        nameservers = (rocketmq.nameserver,)
        self.ledger = Ledger(self.group, clock)
        self.groups = LocalGroups(
            config.model_copy(update={"nameserver": nameservers}),
            LocalEngine(clock, (self.ledger.hook,)),  # on Spark, reports replace the hook
            clock,
            LoopMonitor(clock),
        )
        self._client = ClientInstance(ClientOptions(nameservers=nameservers))
        self.producer = OrderProducer(self._client, Orders(topics, seed), messages)
        self._observer = Observer(topics, self.producer, self.ledger)
        self._topics = topics
        self._clock = clock
        self._began = clock.monotonic()
        self._broker = (rocketmq.broker.name, rocketmq.broker.address)
        rocketmq.broker.store.on_arrival(self.ledger.arrived)

    def figures(self, state: str = "") -> DemoFigures:
        """Return the present figures, with `state` instead of the group's own if given."""
        [group] = self.groups.snapshot().groups
        return self._observer.figures(group, state or group.state, self._clock.monotonic() - self._began)

    async def ready(self, timeout_seconds: float) -> None:
        """Wait until the group consumes, at most for this time."""
        await self.groups.started(timeout_seconds)

    async def catch_up(self, timeout_seconds: float) -> None:
        """Let the group handle the stored messages, at most for this time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                while self._is_behind():  # noqa: ASYNC110 a group has no event for this
                    await asyncio.sleep(POLL_SECONDS)

    def _is_behind(self) -> bool:
        figures = self.figures()
        return figures.account.behind > 0 and figures.state != "failed"

    async def leave(self) -> None:
        """Read the committed offsets after the group has released its queues, and close the producer's client."""
        name, address = self._broker
        try:
            for topic, queue_id in list(self.ledger.ends):
                if topic in self._topics:
                    queue = MessageQueue(topic, name, queue_id)
                    offset = await query_consumer_offset(self._client.remoting, address, self.group, queue)
                    if offset is not None:
                        self._observer.committed(topic, queue_id, offset)
        finally:
            await self._client.close()
