"""Groups on Spark in a namespace, and on a cluster that is not the default one."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rmqd import Batch, Retry
from rmqd.config.model.root_model import RootConfig
from tests.spark.embedded_broker import BROKER, EmbeddedBroker
from tests.spark.needed import need

need("pyspark", "pyarrow")

from rmqd.client.api.group_requests import get_consumer_list  # noqa: E402
from rmqd.client.client_options import (  # noqa: E402
    ClientOptions,
    is_spark_client_id,
)
from rmqd.client.instance import ClientInstance  # noqa: E402
from rmqd.spark.engine.checkpoint_generations import checkpoint_folder  # noqa: E402
from rmqd.spark.engine.driver_membership import DriverMembership  # noqa: E402
from rmqd.spark.session.group_spec import GroupSpec  # noqa: E402
from tests.spark.group_queries import SECONDS, start  # noqa: E402
from tests.spark.handler_batches import GroupQuery  # noqa: E402

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEEN: list[tuple[str, str, str, int]] = []
HIDDEN = "the default cluster's secret"


@pytest.fixture(autouse=True)
def _nothing_seen() -> None:
    SEEN.clear()


async def note(batch: Batch) -> None:
    """Retries each message once."""
    for message in batch:
        SEEN.append((message.body.decode(), message.topic, batch.message_queue.topic, message.reconsume_times))
        if not message.reconsume_times:
            raise Retry(delay_level=1)


def order_of(broker: EmbeddedBroker, **group: Any) -> GroupSpec:
    """A group in the namespace `shop` of the cluster `tokyo`, with a default cluster that is unreachable."""
    client = {"poll_name_server_interval": "10ms", "namespace": "shop"}
    config = {
        "nameserver": "127.0.0.1:1",
        "client": {"access_key": "a", "secret_key": HIDDEN},
        "clusters": {"tokyo": {"nameserver": [broker.nameserver], "client": client}},
        "groups": {"mailer": {"engine": "spark", "cluster": "tokyo", "subscriptions": {"orders": "*"}, **group}},
    }
    return GroupSpec("mailer", RootConfig.model_validate(config).of_group("mailer"))


def handled_order(broker: EmbeddedBroker) -> GroupSpec:
    """The group with a handler."""
    handler = {"plugin": f"{note.__module__}:{note.__qualname__}", "concurrency": 4}
    return order_of(broker, handler=handler, consume_from_where="first_offset")


@pytest.mark.slow
def test_handlers_see_names_without_the_namespace_and_brokers_with_it(broker: EmbeddedBroker) -> None:
    broker.create_topic("shop%orders", 1)
    broker.send("shop%orders", "one")
    query = GroupQuery(handled_order(broker))
    query.run_until(lambda: len(SEEN) == 2)
    assert SEEN == [("one", "orders", "orders", 0), ("one", "orders", "%RETRY%mailer", 1)]
    assert {topic.topic for outcome in query.outcomes for topic in outcome.topic_counters} == {"orders"}
    assert broker.offsets("shop%mailer", "shop%orders") == {0: 1}
    assert broker.offsets("shop%mailer", "%RETRY%shop%mailer") == {0: 1}


def test_the_driver_is_a_member_of_the_group_with_the_namespace(broker: EmbeddedBroker) -> None:
    broker.create_topic("shop%orders", 1)

    async def join() -> list[str]:
        membership = DriverMembership(handled_order(broker))
        client = ClientInstance(ClientOptions(nameservers=(broker.nameserver,)))
        await membership.join()
        try:
            await client.routes.lookup("shop%orders")
            return await get_consumer_list(client.remoting, client.routes.address(BROKER) or "", "shop%mailer")
        finally:
            await client.close()
            await membership.leave()

    (client_id,) = asyncio.run(join())
    assert is_spark_client_id(client_id)


def test_processes_get_only_the_keys_of_their_cluster(broker: EmbeddedBroker) -> None:
    """The checkpoint is also separate, because offsets of one cluster mean nothing on another one."""
    order = handled_order(broker)
    assert order.client_options.nameservers == (broker.nameserver,)
    assert HIDDEN not in order.config.model_dump_json()
    assert checkpoint_folder(order) == "/var/lib/rmqd/clusters/tokyo/spark/mailer"


def test_a_pipeline_sees_names_without_the_namespace_and_writes_with_it(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    for topic in ("shop%orders", "shop%copies"):
        broker.create_topic(topic, 1)
    broker.send("shop%orders", "one", "two")
    pipeline = {"plugin": f"{as_they_are.__module__}:{as_they_are.__qualname__}"}
    order = order_of(
        broker,
        pipeline=pipeline,
        sink={"format": "rocketmq", "topic": "copies"},
        spark={"trigger": "available_now"},
        consume_from_where="first_offset",
    )
    assert start(spark, order, tmp_path).awaitTermination(SECONDS)
    options = {"nameserver": broker.nameserver, "subscribe": "shop%copies"}
    rows = spark.read.format("rocketmq").options(**options).load().collect()
    assert sorted((row["body"].decode(), row["tags"]) for row in rows) == [("one", "orders"), ("two", "orders")]


def as_they_are(frame: Any, spark: Any) -> Any:
    """Copy each message, with its topic as its tag."""
    return frame.selectExpr("body", "topic AS tags")
