"""The broker's settings and figures, for administrators and monitoring."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest

from rmqd.broker.embedded_rocketmq import EmbeddedOptions
from rmqd.wire.bodies.route_data import KVTable
from rmqd.wire.loose_json import dump_properties, load_properties
from tests.nightly.broker.asking import Asking, asking, told

UPDATE, GET, RUNTIME_INFO = 25, 26, 28
# without the figures of 5.5.0 that have a file path or a delay level in their names
NAMES = """
EndTransactionQueueSize EndTransactionThreadPoolQueueCapacity ackThreadPoolQueueCapacity
ackThreadPoolQueueHeadWaitTimeMills ackThreadPoolQueueSize bootTimestamp brokerActive brokerVersionDesc
commitLogDirCapacity commitLogDiskRatio commitLogMaxOffset commitLogMinOffset consumeQueueDiskRatio dispatchBehindBytes
dispatchMaxBuffer earliestMessageTimeStamp getFoundTps getMessageEntireTimeMax getMissTps getTotalTps getTransferredTps
litePullThreadPoolQueueCapacity litePullThreadPoolQueueHeadWaitTimeMills litePullThreadPoolQueueSize
msgGetTotalTodayMorning msgGetTotalTodayNow msgGetTotalYesterdayMorning msgPutTotalTodayMorning msgPutTotalTodayNow
msgPutTotalYesterdayMorning pageCacheLockTimeMills pullThreadPoolQueueCapacity pullThreadPoolQueueHeadWaitTimeMills
pullThreadPoolQueueSize putLatency99 putLatency999 putMessageAverageSize putMessageDistributeTime
putMessageEntireTimeMax putMessageFailedTimes putMessageSizeTotal putMessageTimesTotal putTps
queryThreadPoolQueueCapacity queryThreadPoolQueueHeadWaitTimeMills queryThreadPoolQueueSize remainHowManyDataToFlush
remainTransientStoreBufferNumbs runtime sendThreadPoolQueueCapacity sendThreadPoolQueueHeadWaitTimeMills
sendThreadPoolQueueSize startAcceptSendRequestTimeStamp timerCongestNum timerDequeueTps timerEnqueueTps
timerOffsetBehind timerReadBehind
"""


@pytest.fixture
async def mq() -> AsyncIterator[Asking]:
    """An embedded RocketMQ with the topic T of two queues."""
    async with asking(EmbeddedOptions(topics={"T": 2})) as connections:
        yield connections


async def settings(mq: Asking) -> dict[str, str]:
    return load_properties((await mq.broker.call(GET)).body)


async def test_settings_are_changed_while_the_broker_runs(mq: Asking) -> None:
    before = await mq.broker.call(GET)
    assert (await settings(mq))["maxMessageSize"] == "4194304"

    assert told(await mq.broker.call(UPDATE, body=b"maxMessageSize=100\nautoCreateSubscriptionGroup=false\n")) == (
        0,
        None,
    )
    after = await mq.broker.call(GET)
    assert load_properties(after.body) == load_properties(before.body) | {
        "maxMessageSize": "100",
        "autoCreateSubscriptionGroup": "false",
    }
    versions = [json.loads(reply.ext_fields["version"])["counter"] for reply in (before, after)]
    assert versions == [0, 1]
    assert (await mq.broker.send("T", b"x" * 200)).code == 13


async def test_unknown_and_invalid_settings_are_ignored(mq: Asking) -> None:
    """As in RocketMQ. A value that is not a boolean is false."""
    before = await settings(mq)
    changes = b"noSetting=1\nmaxMessageSize=abc\n# a comment\n\nautoCreateTopicEnable=maybe\n"
    assert told(await mq.broker.call(UPDATE, body=changes)) == (0, None)
    assert await settings(mq) == before | {"autoCreateTopicEnable": "false"}
    assert told(await mq.broker.call(UPDATE)) == (0, None)


@pytest.mark.parametrize("name", ["brokerConfigPath", "configBlackList"])
async def test_settings_on_the_blacklist_are_rejected(mq: Asking, name: str) -> None:
    before = await settings(mq)
    refused = (16, "Can not update config in black list.")
    assert told(await mq.broker.call(UPDATE, body=f"{name}=x\nmaxMessageSize=1\n".encode())) == refused
    assert await settings(mq) == before


async def test_invalid_delay_levels_are_rejected(mq: Asking) -> None:
    before = await settings(mq)
    assert (await mq.broker.call(UPDATE, body=b"messageDelayLevel=soon\n")).code == 1
    assert await settings(mq) == before


async def test_figures_have_the_names_that_tools_read(mq: Asking) -> None:
    table = KVTable.from_json((await mq.broker.call(RUNTIME_INFO)).body).table
    assert table.keys() == set(NAMES.split())
    assert table["brokerVersionDesc"] == "V5_5_0"
    assert table["earliestMessageTimeStamp"] == "-1"
    assert table["putMessageAverageSize"] == "0.0"


async def test_figures_follow_the_sent_messages(mq: Asking) -> None:
    for _ in range(3):
        await mq.broker.send("T")
    await mq.broker.send("T", b"later", DELAY="18")
    table = KVTable.from_json((await mq.broker.call(RUNTIME_INFO)).body).table

    assert table["msgPutTotalTodayNow"] == "4"
    assert table["msgPutTotalTodayMorning"] == "0"
    assert int(table["commitLogMaxOffset"]) == int(table["putMessageSizeTotal"]) > 0
    assert table["commitLogMinOffset"] == "0"
    assert int(table["earliestMessageTimeStamp"]) > 0
    assert table["scheduleMessageOffset_18"] == "0,1"
    assert [float(rate) for rate in table["putTps"].split()] > [0.0, 0.0, 0.0]


@pytest.mark.parametrize("code", [306, 329])
async def test_a_request_deletes_expired_messages(mq: Asking, code: int) -> None:
    await mq.broker.send("T")
    assert told(await mq.broker.call(code)) == (0, None)
    assert (await mq.broker.call(31, {"topic": "T", "queueId": "0"})).ext_fields == {"offset": "0"}

    await mq.broker.call(UPDATE, body=b"fileReservedTime=-1\n")  # every message is expired
    assert told(await mq.broker.call(code)) == (0, None)
    assert (await mq.broker.call(31, {"topic": "T", "queueId": "0"})).ext_fields == {"offset": "1"}


async def test_a_cleanup_of_unused_topics_succeeds(mq: Asking) -> None:
    assert told(await mq.broker.call(316)) == (0, None)


def test_properties_have_the_format_of_java() -> None:
    assert load_properties(b"#x\n!y\n a = b \nc=d=e\nflag\na=z\n") == {"a": "z", "c": "d=e", "flag": ""}
    assert dump_properties({"b": "1", "a": "2"}) == b"a=2\nb=1\n"
