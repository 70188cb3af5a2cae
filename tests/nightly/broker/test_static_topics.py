"""Static topics on the embedded broker: created as mqadmin does on 5.5.0, if one broker can have all their queues."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rmqd.broker.embedded_rocketmq import EmbeddedOptions
from rmqd.wire import loose_json
from rmqd.wire.bodies.route_data import LogicQueueMappingItem, TopicQueueMappingDetail, TopicRouteData, queue_leaders
from rmqd.wire.command import RemotingCommand
from tests.nightly.broker.asking import Asking, asking, told

CREATE, CONFIG = 513, 351
EPOCH = 1_700_000_000_000


def item(queue_id: int, **changed: Any) -> LogicQueueMappingItem:
    """Return the mapping of a queue from its first offset."""
    values: dict[str, Any] = {"queue_id": queue_id, "bname": "broker-a"}
    return LogicQueueMappingItem(**(values | changed))


def mapping(*queue_ids: int, epoch: int = EPOCH, **changed: Any) -> TopicQueueMappingDetail:
    """Return a mapping of the topic S, with these of its 3 queues."""
    values = {"hosted_queues": {queue_id: (item(queue_id),) for queue_id in queue_ids}} | changed
    return TopicQueueMappingDetail("S", "broker-a", 3, epoch, **values)


async def create(
    rmq: Asking, detail: TopicQueueMappingDetail, *, topic: str = "S", force: bool = False
) -> RemotingCommand:
    """Create or update a static topic (request 513)."""
    fields = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": "3",
        "writeQueueNums": "3",
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
        "force": str(force).lower(),
    }
    return await rmq.broker.call(CREATE, fields, detail.to_json())


async def mapped(rmq: Asking) -> dict[str, Any] | None:
    """Return the mapping of S that the broker reports; None without one."""
    reply = await rmq.broker.call(CONFIG, {"topic": "S", "lo": "true"})
    assert reply.code == 0, reply.remark
    told_mapping: dict[str, Any] | None = loose_json.loads(reply.body).get("mappingDetail")
    return told_mapping


async def test_the_mapping_of_a_static_topic_is_in_its_config_and_route() -> None:
    async with asking() as rmq:
        assert told(await create(rmq, mapping(0, 1, 2))) == (0, "not set any response code")

        detail = await mapped(rmq)
        route = TopicRouteData.from_json((await rmq.route("S")).body)
        plain = await rmq.broker.call(CONFIG, {"topic": "S"})

    assert detail is not None
    assert (detail["epoch"], detail["totalQueues"], detail["bname"]) == (EPOCH, 3, "broker-a")
    assert {int(queue_id): len(items) for queue_id, items in detail["hostedQueues"].items()} == {0: 1, 1: 1, 2: 1}
    assert queue_leaders(route.mappings) == {("__syslo__global__", queue_id): "broker-a" for queue_id in range(3)}
    assert b"mappingDetail" not in plain.body
    assert loose_json.loads(plain.body)["writeQueueNums"] == 3


async def test_other_topics_have_no_mapping() -> None:
    async with asking() as rmq:
        await rmq.create("S")

        assert await mapped(rmq) is None
        assert TopicRouteData.from_json((await rmq.route("S")).body).mappings == ()


async def test_a_mapping_gets_more_queues_and_rejects_old_epochs() -> None:
    async with asking() as rmq:
        await create(rmq, mapping(0))
        again = await create(rmq, mapping(1, epoch=EPOCH + 1))
        grown = await mapped(rmq)
        older = await create(rmq, mapping(2))
        same = await create(rmq, mapping(2, epoch=EPOCH + 1))
        other = await create(rmq, mapping(2, epoch=EPOCH + 2, scope="elsewhere"))
        forced = await create(rmq, mapping(2), force=True)
        at_last = await mapped(rmq)

    assert again.code == 0
    assert grown is not None
    assert sorted(map(int, grown["hostedQueues"])) == [0, 1]
    assert told(older) == (1, f"Can't accept data with small epoch {EPOCH} < {EPOCH + 1}")
    assert told(same) == (1, "Cannot accept equal epoch with null data")
    assert told(other) == (1, "Can't accept data with unmatched scope elsewhere != __global__")
    assert forced.code == 0
    assert at_last is not None
    assert sorted(map(int, at_last["hostedQueues"])) == [0, 1, 2]


@pytest.mark.parametrize(
    "items",
    [
        (item(1),),
        (item(0, bname="broker-b"),),
        (item(0, logic_offset=10),),
        (item(0, start_offset=10),),
        (item(0), item(0, gen=1)),
        (),
    ],
    ids=["another number", "another broker", "another offset", "a later start", "a past", "nowhere"],
)
async def test_queues_that_are_not_wholly_on_this_broker_are_rejected(items: tuple[LogicQueueMappingItem, ...]) -> None:
    async with asking() as rmq:
        reply = await create(rmq, mapping(hosted_queues={0: items}))

        assert told(reply) == (1, "queue 0 of S must be all of queue 0 of this broker")
        assert rmq.rocketmq.broker.topics.get("S") is None


@pytest.mark.parametrize("topic", ["SCHEDULE_TOPIC_XXXX", "bad name", ""])
async def test_invalid_topic_names_are_rejected(topic: str) -> None:
    async with asking() as rmq:
        assert (await create(rmq, mapping(0), topic=topic)).code == 29


async def test_a_mapping_survives_a_restart_and_is_deleted_with_its_topic(tmp_path: Path) -> None:
    options = replace(EmbeddedOptions(), data_dir=tmp_path / "data")
    async with asking(options) as rmq:
        await create(rmq, mapping(0))
    async with asking(options) as rmq:
        assert await mapped(rmq) is not None
        await rmq.broker.call(215, {"topic": "S"})
        await rmq.create("S")

        assert await mapped(rmq) is None
