"""`QueuePoller`: the queues of a Spark group, as the brokers report them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from rmqd.broker.embedded_rocketmq import EmbeddedOptions, embedded_rocketmq
from rmqd.client.client_options import ClientOptions
from rmqd.runtime.clock import SystemClock
from tests.spark.needed import need

need("pyspark")

from rmqd.spark.engine import spark_parts  # noqa: E402
from rmqd.spark.engine.spark_figures import DriverMetrics  # noqa: E402
from rmqd.spark.engine.spark_parts import QueuePoller  # noqa: E402


class SeenPlaces:
    """A DriverMetrics that records the number of queues, or the failure, by topic."""

    def __init__(self) -> None:
        self.by_topic: dict[str, int | str] = {}

    def set_queue_lags(self, topic: str, queues: Any) -> None:
        self.by_topic[topic] = len(queues)

    def set_topic_failure(self, topic: str, reason: str) -> None:
        self.by_topic[topic] = reason


async def test_known_brokers_are_polled_without_a_name_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_parts, "ROUTE_POLL_SECONDS", 0.0)  # each poll refreshes the routes
    async with embedded_rocketmq(EmbeddedOptions(topics={"orders": 2})) as rocketmq:
        spec = SimpleNamespace(
            group="mailer", topics=("orders",), client_options=ClientOptions(nameservers=(rocketmq.nameserver,))
        )
        seen = SeenPlaces()
        places = QueuePoller(cast(Any, spec), cast(DriverMetrics, seen), SystemClock())
        await places.poll()
        assert seen.by_topic["orders"] == 2
        await rocketmq.servers[1].close()

        seen.by_topic.clear()
        await places.poll()
        assert seen.by_topic["orders"] == 2
        await places._client.close()
