"""A stream with a broker that does not respond while others do, or with an unavailable master."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from rmqd.codes import RequestCode, ResponseCode
from rmqd.wire.bodies.route_data import TopicQueueMappingInfo
from rmqd.wire.command import RemotingCommand
from rmqd.wire.message_queue import MessageQueue
from tests.client.peer import Reply, route_of
from tests.spark.needed import need
from tests.waiting import WAIT_SECONDS

need("pyspark", "pyarrow")


from rmqd.client.client_options import ClientOptions  # noqa: E402
from rmqd.config.model.root_model import RootConfig  # noqa: E402
from rmqd.errors import RemotingError, RmqdError, UnknownTopicKindError  # noqa: E402
from rmqd.spark.engine.checkpoint_generations import CheckpointGenerations  # noqa: E402
from rmqd.spark.session.group_spec import GroupSpec  # noqa: E402
from rmqd.spark.session.queue_queries import (  # noqa: E402
    QueueResponses,
    retry_until_timeout,
)
from rmqd.spark.session.queue_range import Replica  # noqa: E402
from rmqd.spark.session.spark_access import ClientAccess  # noqa: E402
from rmqd.spark.session.spark_cluster import close_clusters, cluster_of  # noqa: E402
from rmqd.spark.source.source_offsets import SourceOffsets  # noqa: E402
from rmqd.spark.source.source_progress import BrokerUnresponsiveError  # noqa: E402
from tests.client.peer import Peer  # noqa: E402
from tests.spark.local_folder import LocalFolder, save  # noqa: E402
from tests.spark.micro_batches import Checkpoint  # noqa: E402
from tests.spark.test_silent_brokers import (  # noqa: E402
    GROUP,
    TOPIC,
    Cluster,
    events,
)


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    """A running cluster."""
    async with AsyncExitStack() as ending:
        peers = [await ending.enter_async_context(Peer()) for _ in range(3)]
        yield Cluster(*peers)


@pytest.fixture
def logs() -> Iterator[list[Any]]:
    """The log events of a test."""
    with capture_logs() as logs:
        yield logs


async def test_polls_do_not_wait_for_a_broker_that_is_known_to_be_silent(cluster: Cluster, logs: list[Any]) -> None:
    """It accepts connections, but responds late. Meanwhile other brokers are read, and the late response counts."""
    a, b = cluster.peers["a"], cluster.peers["b"]
    query = await cluster.query(unavailableToleranceMs="60000")
    await asyncio.to_thread(query.poll)
    await b.down()
    await asyncio.to_thread(query.poll)
    asked, may_answer = asyncio.Event(), asyncio.Event()

    async def late(_: RemotingCommand) -> Reply:
        asked.set()
        await may_answer.wait()
        return Reply(ext_fields={"offset": "0"})

    before = len(b.got(RequestCode.GET_MAX_OFFSET))
    b.on(RequestCode.GET_MAX_OFFSET, late)
    await b.listen()
    async with asyncio.timeout(WAIT_SECONDS):
        while not asked.is_set():
            await asyncio.to_thread(query.poll)
    await cluster.store("a", b"1")
    assert await asyncio.to_thread(query.poll)
    assert query.rows[-1] == ["1"]
    may_answer.set()
    async with asyncio.timeout(WAIT_SECONDS):
        while not events(logs, "spark.broker_returned"):
            await asyncio.to_thread(query.poll)
    assert len(b.got(RequestCode.GET_MAX_OFFSET)) == before + 1
    assert len(a.got(RequestCode.GET_MAX_OFFSET)) > before + 1


async def test_a_broker_that_is_silent_for_too_long_fails_the_query(cluster: Cluster) -> None:
    """The error starts with its name, because a user who runs a query by hand may see nothing else."""
    query = await cluster.query(unavailableToleranceMs="0")
    await asyncio.to_thread(query.poll)
    await cluster.peers["b"].down()
    with pytest.raises(
        BrokerUnresponsiveError, match=r"^b: has not returned the ends of its queues for \d+ m?s while others did: "
    ):
        await asyncio.to_thread(query.poll)


async def test_a_removed_broker_does_not_block_commits_on_other_brokers(cluster: Cluster) -> None:
    """The query starts without it, in another process."""
    cluster.have_group()
    for name in cluster.brokers:
        await cluster.store(name, b"1")
    checkpoint, more = Checkpoint(), {"groupId": GROUP, "commitOffsets": "true"}
    await asyncio.to_thread((await cluster.query(checkpoint, **more)).run_until_idle)
    cluster.know({"a": {0: cluster.peers["a"].address}})
    await cluster.store("a", b"2")
    await asyncio.to_thread(close_clusters)
    await asyncio.to_thread((await cluster.query(checkpoint, **more)).run_until_idle)
    assert {name: broker.commits_of(MessageQueue(TOPIC, name, 0))[-1] for name, broker in cluster.brokers.items()} == {
        "a": 2, "b": 1,
    }  # fmt: skip


async def test_a_silent_broker_does_not_block_resets_and_commits_on_other_brokers(
    cluster: Cluster, tmp_path: Path
) -> None:
    """The group has `engine: spark`. Its driver raises the error afterwards."""
    cluster.have_group()
    offsets = {name: broker.offsets for name, broker in cluster.brokers.items()}
    places = {name: (GROUP, MessageQueue(TOPIC, name, 0)) for name in cluster.brokers}
    config = {"engine": "spark", "subscriptions": {TOPIC: "*"}, "handler": {"plugin": "noop"}}
    root = {"nameserver": cluster.name_server.address, "groups": {GROUP: config}}
    generations = CheckpointGenerations(GroupSpec(GROUP, RootConfig.model_validate(root)), LocalFolder(tmp_path))
    generation = await asyncio.to_thread(generations.prepare_generation)
    done = SourceOffsets({queue: 3 for _, queue in places.values()})
    save(Checkpoint([json.dumps(done.to_json())], 1), generation.path)
    for name in places:
        offsets[name][places[name]] = 2
    await cluster.peers["b"].down()

    with pytest.raises(RemotingError, match="refused"):
        await asyncio.to_thread(generations.commit_end_offsets)
    assert offsets["a"][places["a"]] == 3
    with pytest.raises(RemotingError, match="refused"):
        await asyncio.to_thread(generations.store_moved_offsets)
    offsets["a"][places["a"]] = 1
    assert await asyncio.to_thread(generations.store_moved_offsets) == {places["a"][1]: 1}


async def test_a_slave_that_is_behind_does_not_shorten_a_queue(cluster: Cluster) -> None:
    """The master is down, or has just returned and is queried first. A shorter queue would be a data loss."""
    await cluster.store("a", *(b"%d" % number for number in range(5)))
    checkpoint = Checkpoint()
    query = await cluster.query(checkpoint)
    await asyncio.to_thread(query.poll)
    slave, master = cluster.peers["b"], cluster.peers["a"].address
    slave.on(RequestCode.GET_MAX_OFFSET, Reply(ext_fields={"offset": "2"}))
    query = await cluster.query(checkpoint, **{"fetchOffset.intervalMs": "2000"})
    for replicas in ({1: slave.address}, {0: master, 1: slave.address}):
        cluster.know({"a": replicas})
        assert not await asyncio.to_thread(query.poll)


async def test_a_bounded_query_waits_for_the_start_of_a_new_queue(cluster: Cluster) -> None:
    """Without the start there would be nothing to read, and such a query would end as done."""
    checkpoint = Checkpoint()
    cluster.know({"a": {0: cluster.peers["a"].address}})
    await asyncio.to_thread((await cluster.query(checkpoint)).poll)
    cluster.know({name: {0: peer.address} for name, peer in cluster.peers.items()})
    await cluster.store("b", b"1")
    b = cluster.peers["b"]
    refused = Reply(ResponseCode.SYSTEM_BUSY, "as it is scripted")
    b.gate = lambda command: refused if command.code == RequestCode.GET_MIN_OFFSET else None
    query = await cluster.available_now(checkpoint, unavailableToleranceMs="0")
    with pytest.raises(RmqdError, match="as it is scripted"):
        await asyncio.to_thread(query.poll)
    b.gate = None
    query = await cluster.available_now(checkpoint, unavailableToleranceMs="20000")
    assert await asyncio.to_thread(query.run_until_idle) == [["1"]]


async def test_a_route_without_its_master_is_queried_again(cluster: Cluster) -> None:
    """The query ignores `routeRefreshMs`. Otherwise batches would be planned with only a slave until then."""
    slave, master = cluster.peers["b"].address, cluster.peers["a"].address
    cluster.know({"a": {1: slave}})
    asked = cluster_of(ClientAccess(ClientOptions(nameservers=(cluster.name_server.address,))))
    queue = MessageQueue(TOPIC, "a", 0)
    assert await asyncio.to_thread(asked.known_replicas, queue) == (Replica(1, slave),)
    cluster.know({"a": {0: master, 1: slave}})
    both = (Replica(0, master), Replica(1, slave))
    async with asyncio.timeout(WAIT_SECONDS):
        while await asyncio.to_thread(asked.known_replicas, queue) != both:
            pass


async def test_a_broker_is_queried_once_for_a_group_and_once_for_each_queues_offset(cluster: Cluster) -> None:
    """Its response about the group applies to all its queues, and not to other brokers."""
    cluster.have_group()
    missing = Reply(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark="no such group")
    cluster.peers["b"].on(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, missing)
    for peer in cluster.peers.values():
        peer.on(RequestCode.QUERY_CONSUMER_OFFSET, Reply(ext_fields={"offset": "7"}))
    cluster.by_topic[TOPIC] = route_of({name: {0: peer.address} for name, peer in cluster.peers.items()}, 8)
    asked = cluster_of(ClientAccess(ClientOptions(nameservers=(cluster.name_server.address,))))
    queues = [MessageQueue(TOPIC, name, queue_id) for name in cluster.peers for queue_id in range(8)]
    answers = await asyncio.to_thread(asked.committed_offsets, GROUP, queues)
    assert answers.values == {queue: 7 for queue in queues if queue.broker_name == "a"}
    assert set(answers.errors) == {queue for queue in queues if queue.broker_name == "b"}
    assert {str(error) for error in answers.errors.values()} == {str(next(iter(answers.errors.values())))}
    for peer, offsets in zip(cluster.peers.values(), (8, 0), strict=True):
        assert len(peer.got(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG)) == 1
        assert len(peer.got(RequestCode.QUERY_CONSUMER_OFFSET)) == offsets


async def test_start_and_committed_offsets_come_only_from_masters(cluster: Cluster) -> None:
    """A slave may be queried for end offsets, if the caller allows it."""
    slave = cluster.peers["b"]
    for code in (RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET, RequestCode.QUERY_CONSUMER_OFFSET):
        slave.on(code, Reply(ext_fields={"offset": "2"}))
    cluster.know({"a": {1: slave.address}})
    asked = cluster_of(ClientAccess(ClientOptions(nameservers=(cluster.name_server.address,))))
    queue = MessageQueue(TOPIC, "a", 0)

    def ask() -> list[dict[MessageQueue, RmqdError]]:
        everything = (
            asked.min_offsets([queue]), asked.max_offsets([queue]), asked.offsets_at_times({queue: 0}),
            asked.committed_offsets("reports", [queue]), asked.commit("reports", {queue: 1}),
        )  # fmt: skip
        return [answers.errors for answers in everything]

    failed = await asyncio.to_thread(ask)
    assert {str(error) for one in failed for error in one.values()} == {
        "a: no name server has a route to its master, which is down or being replaced"
    }
    ends = await asyncio.to_thread(lambda: asked.max_offsets([queue], of_slaves=True))
    assert ends.values == {queue: 2}


async def test_a_static_topic_is_refused_by_name(cluster: Cluster) -> None:
    """Its queues move between brokers, and rmqd does not follow them. It would read only a part, without an error."""
    mapping = TopicQueueMappingInfo("a", 2, 1, curr_id_map={0: 0, 1: 0})
    cluster.by_topic[TOPIC] = replace(cluster.by_topic[TOPIC], mappings=(mapping,))
    asked = cluster_of(ClientAccess(ClientOptions(nameservers=(cluster.name_server.address,))))
    answers = await asyncio.to_thread(asked.queues, [TOPIC])
    [error] = answers.other_errors
    assert "orders is a static topic" in str(error)


async def test_a_topic_that_becomes_static_is_refused_by_name(cluster: Cluster) -> None:
    """It was read before, but a remap moves its queues to brokers that rmqd does not query."""
    asked = cluster_of(ClientAccess(ClientOptions(nameservers=(cluster.name_server.address,))))
    assert (await asyncio.to_thread(asked.queues, [TOPIC])).other_errors == []
    mapping = TopicQueueMappingInfo("a", 2, 1, curr_id_map={0: 0, 1: 0})
    cluster.by_topic[TOPIC] = replace(cluster.by_topic[TOPIC], mappings=(mapping,))
    [error] = (await asyncio.to_thread(asked.queues, [TOPIC])).other_errors
    assert "orders is a static topic" in str(error)


async def test_a_topic_of_an_unknown_kind_is_refused_by_name(cluster: Cluster) -> None:
    """The error is raised at once, as on `engine: local`, because waiting does not help."""
    body = json.dumps({"topicName": TOPIC, "attributes": {"message.type": "TABLE"}}).encode()
    cluster.peers["a"].on(RequestCode.GET_TOPIC_CONFIG, Reply(body=body))
    asked = cluster_of(ClientAccess(ClientOptions(nameservers=(cluster.name_server.address,))))

    def ask() -> QueueResponses[list[MessageQueue]]:
        answers = asked.queues([TOPIC])
        if answers.other_errors:
            raise answers.other_errors[0]
        return answers

    with pytest.raises(UnknownTopicKindError, match=r"message\.type=TABLE, which this version of rmqd does not know"):
        await asyncio.to_thread(retry_until_timeout, ask, 60)
