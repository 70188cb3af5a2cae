"""A broker's folder: its contents after a stop and after a crash."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import closing
from pathlib import Path

from rmqd.broker.broker_settings import BrokerSettings
from rmqd.broker.embedded_rocketmq import EmbeddedOptions, EmbeddedRocketMQ, embedded_rocketmq
from rmqd.client.api.send_requests import send_message
from rmqd.client.remoting.remoting_client import RemotingClient
from rmqd.codes import RequestCode, ResponseCode
from rmqd.wire.bodies.config_bodies import TopicConfig
from rmqd.wire.headers.send_headers import SendMessageRequestHeaderV2
from tests.broker.peer import connected
from tests.broker.stores import bodies, in_folder, put


def crashed(directory: Path) -> Path:
    """Copy the folder, as if the process crashed now."""
    return Path(shutil.copytree(directory, directory.parent / "crashed"))


def send_header() -> SendMessageRequestHeaderV2:
    return SendMessageRequestHeaderV2(producer_group="P", topic="T", queue_id=0, sys_flag=0, born_timestamp=0, flag=0)


async def send(remoting: RemotingClient, rocketmq: EmbeddedRocketMQ, body: bytes) -> int:
    return (await send_message(remoting, rocketmq.broker.address, send_header(), body)).queue_offset


async def test_a_restarted_broker_has_its_state_again(tmp_path: Path) -> None:
    """Messages, topics, groups, committed offsets and resets."""
    options = EmbeddedOptions(data_dir=tmp_path, topics={"T": 3})
    async with embedded_rocketmq(options) as rocketmq:
        broker = rocketmq.broker
        for number in range(5):
            put(broker.store, str(number), queue_id=number % 2)
        broker.groups.find_or_create("G")
        broker.offsets.commit("G", "T", 0, 2)
        broker.offsets.commit("G", "T", 0, 1)
        broker.offsets.reset("G", "T", 1, 0)
        broker.topics.put(TopicConfig(topic_name="gone"))
        broker.topics.delete("gone")

    async with embedded_rocketmq(EmbeddedOptions(data_dir=tmp_path)) as rocketmq:
        broker = rocketmq.broker
        assert (bodies(broker.store, queue_id=0), bodies(broker.store, queue_id=1)) == (["0", "2", "4"], ["1", "3"])
        config = broker.topics.get("T")
        assert config is not None
        assert config.write_queue_nums == 3
        assert broker.topics.get("gone") is None
        assert broker.groups.get("G") is not None
        assert broker.offsets.get("G", "T", 0) == 1
        assert broker.offsets.pending_reset("G", "T", 1) == 0
        assert put(broker.store, "5", queue_id=1).queue_offset == 2


async def test_acknowledged_messages_are_kept_after_a_crash(tmp_path: Path) -> None:
    """A producer that received the response must not need to send again."""
    options = EmbeddedOptions(data_dir=tmp_path / "data", topics={"T": 1})
    remoting = RemotingClient()
    try:
        async with embedded_rocketmq(options) as rocketmq:
            await asyncio.gather(*(send(remoting, rocketmq, b"%d" % number) for number in range(20)))
            left = crashed(tmp_path / "data")
    finally:
        await remoting.close()

    store, data_dir = in_folder(left)
    with closing(data_dir):
        assert sorted(bodies(store), key=int) == [str(number) for number in range(20)]


async def test_a_name_with_the_separator_of_keys_does_not_prevent_a_start(tmp_path: Path) -> None:
    """Names of light queues are not restricted."""
    options = EmbeddedOptions(data_dir=tmp_path, topics={"T": 1}, settings=BrokerSettings(enableLmq=True))
    clone = {"srcGroup": "G", "destGroup": "g@h", "topic": "T", "offline": "true"}
    commit = {"consumerGroup": "G", "topic": "%LMQ%a@b", "queueId": "0", "commitOffset": "5"}
    async with embedded_rocketmq(options) as rocketmq, connected(rocketmq.broker.address) as peer:
        rocketmq.broker.groups.find_or_create("G")
        rocketmq.broker.offsets.commit("G", "T", 0, 1)
        assert (await peer.call(RequestCode.CLONE_GROUP_OFFSET, clone)).code == ResponseCode.INVALID_PARAMETER
        assert (await peer.call(RequestCode.UPDATE_CONSUMER_OFFSET, commit)).code == ResponseCode.SUCCESS

    async with embedded_rocketmq(options) as rocketmq:
        assert rocketmq.broker.offsets.get("G", "%LMQ%a@b", 0) == 5
