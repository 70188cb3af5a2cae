"""mqadmin commands on a running group, which the dashboard uses too."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest

from rmqd.handler_api.batch import Batch
from rmqd.wire.bodies.group_bodies import ConsumerRunningInfo
from rmqd.wire.messages.message import Message
from tests.conformance import behaviour
from tests.consumer.members import member
from tests.integration.rmqd_process import RmqdProcess, ledger_group
from tests.nightly.integration.test_resets import switch
from tests.rocketmq import RealCluster, offsets, peers, rpc
from tests.rocketmq.producer import Producer
from tests.seen import Seen
from tests.smoke.test_resets import finished, send, times_handled, until_done
from tests.waiting import eventually, wait_until

PERSIST_SECONDS = 5.0
REPEAT_SECONDS = 30.0
MARGIN_SECONDS = 10.0
CLUSTER = "DefaultCluster"
# properties that mean the same in Java and rmqd, and have the same defaults
SHARED = {
    "consumeConcurrentlyMaxSpan",
    "consumeMessageBatchMaxSize",
    "consumeTimeout",
    "consumerGroup",
    "maxReconsumeTimes",
    "messageModel",
    "pullBatchSize",
    "pullInterval",
    "pullThresholdForQueue",
    "pullThresholdForTopic",
    "pullThresholdSizeForQueue",
    "pullThresholdSizeForTopic",
    "suspendCurrentQueueTimeMillis",
}
OF_THE_CLIENT = {  # a Java client of 4.9 does not report these
    "heartbeatBrokerInterval",
    "namesrvAddr",
    "persistConsumerOffsetInterval",
    "pollNameServerInterval",
    "vipChannelEnabled",
}


def running_info(rocketmq: RealCluster, group: str, client_id: str) -> ConsumerRunningInfo:
    fields: dict[str, object] = {"consumerGroup": group, "clientId": client_id, "jstackEnable": "false"}
    answer = rpc.call(rocketmq.broker.address, offsets.GET_CONSUMER_RUNNING_INFO, fields, timeout_seconds=12)
    return ConsumerRunningInfo.from_json(answer.body)


@behaviour(
    "operators",
    ("`consumerStatus` shows a member's options, queues and rates, with `-s` its activity, and judges the group"),
    java="its jstack with `-s`",
    rmqd="the stacks of its tasks and threads instead of the jstack",
    checked="mqadmin's output, and its verdict: same subscription, rebalance OK",
)
def test_consumer_status_shows_options_queues_and_stacks_of_a_member(
    rocketmq: RealCluster, topic: str, group: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stacks are rmqd's instead of Java's, and mqadmin's analysis finds no problem."""
    monkeypatch.chdir(tmp_path)  # where mqadmin writes a file for each member
    path = tmp_path / "ledger"
    send(rocketmq, topic, "m", 80)
    config = ledger_group(
        topic, path, "a", handler_options={"slow_key": "slow", "slow_seconds": 300.0}, consume_from_where="first_offset"
    )
    with RmqdProcess(tmp_path / "rmqd", rocketmq.nameserver, {group: config}) as rmqd:
        wait_until(lambda: offsets.lag(rocketmq, group, topic) == 0, "all is handled and committed")
        with Producer(rocketmq.broker.address, topic) as producer:
            producer.send(key="slow", queue=5)
        client_id = rmqd.status()["client_id"]
        wait_until(lambda: running_info(rocketmq, group, client_id).jstack is None, "the member responds")
        wait_until(lambda: any(queue["cached"] for queue in rmqd.queues(group)), "one message is being handled")
        shown = rocketmq.admin("consumerStatus", "-g", group, "-i", client_id, "-s")
        analysis = rocketmq.admin("consumerStatus", "-g", group)
    assert re.search(r"^consumeThreadMax +: 20$", shown, re.MULTILINE), shown
    assert re.search(r"^PROP_CONSUMEORDERLY +: false$", shown, re.MULTILINE)
    assert re.search(rf"Topic: {topic} +ClassFilter: false +SubExpression: \*", shown)
    rows = re.findall(rf"^{topic} +broker-a +(\d) +(\d+) *$", shown, re.MULTILINE)
    assert rows == [(str(queue), "10") for queue in range(8)]
    assert re.search(
        rf"^{topic} +broker-a +5 +ProcessQueueInfo .*cachedMsgMinOffset=10, .*cachedMsgCount=1", shown, re.M
    )
    assert re.search(rf"^{topic} +[\d.]+ +(?!0\.00)[\d.]+ +[\d.]+ +(?!0\.00)[\d.]+ +0\.00 +0 *$", shown, re.MULTILINE)
    assert "LedgerHandler.handle" in shown, "the stack of the handler's task"
    assert client_id in analysis
    assert "Same subscription in the same group of consumer" in analysis
    assert "Rebalance OK" in analysis
    assert "can't consume" not in analysis


@behaviour(
    "operators",
    "Running info has the same fields, and the options the same names and units",
    java="all of the consumer's fields",
    rmqd="the same, except for the options that docs/migrating.md lists as missing",
    checked="compared with a Java member of the same group: all values",
)
def test_running_info_matches_a_java_member(
    rocketmq: RealCluster, topic: str, group: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both members of a group have the same fields, and the same values of shared properties."""
    monkeypatch.chdir(tmp_path)
    old = rocketmq.spec.version.startswith("4")
    send(rocketmq, topic, "m", 80)
    peer = peers.PeerOptions(rocketmq.nameserver, topic, tmp_path / "java", rocketmq.spec.version)
    with (
        peers.start_consumer(peer, group) as java,
        RmqdProcess(
            tmp_path / "rmqd",
            rocketmq.nameserver,
            {group: ledger_group(topic, tmp_path / "a", "a", consume_from_where="first_offset")},
        ) as rmqd,
    ):
        wait_until(lambda: len(offsets.members(rocketmq, group)) == 2, "both members are connected")
        # a Java member may stall for 30 s on topics that are filled at its start
        wait_until(lambda: offsets.lag(rocketmq, group, topic) == 0, "all is handled and committed", 60)
        own_id = rmqd.status()["client_id"]
        wait_until(lambda: len(offsets.queues_of(rocketmq, group, topic, own_id)) == 4, "they share the queues", 30)
        theirs, ours = (running_info(rocketmq, group, client_id) for client_id in (java.client_id, own_id))
        wait_until(lambda: len(offsets.queues_of(rocketmq, group, topic, java.client_id)) == 4, "also Java says so", 30)
        theirs = running_info(rocketmq, group, java.client_id)
        analysis = rocketmq.admin("consumerStatus", "-g", group)
    assert "Rebalance OK" in analysis
    assert theirs.status_table.keys() == ours.status_table.keys()
    assert {s.topic: s.sub_string for s in theirs.subscription_set} == {
        s.topic: s.sub_string for s in ours.subscription_set
    }
    assert not set(theirs.mq_table) & {queue for queue in ours.mq_table if queue.topic == topic}
    for name in ("PROP_CONSUME_TYPE", "PROP_CONSUMEORDERLY", "PROP_NAMESERVER_ADDR", "PROP_THREADPOOL_CORE_SIZE"):
        assert ours.properties[name] == theirs.properties[name], name
    for name in SHARED if old else SHARED | OF_THE_CLIENT:
        assert ours.properties[name] == theirs.properties[name], name


class Handler(Seen):
    """Records its messages with their ids; raises `error` if it is set."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[Message] = []
        self.error: Exception | None = None

    async def __call__(self, batch: Batch) -> None:
        await super().__call__(batch)
        self.messages += batch
        if self.error is not None:
            raise self.error


@behaviour(
    "operators",
    "One message is consumed directly, by its unique id and by its offset id",
    java="in the thread that reads the request; without a time limit",
    rmqd="outside the group's slots; ends after 9 s, and the operator is notified",
    checked="mqadmin, with a handler that succeeds and a handler that raises; offsets and retry topic do not change",
)
async def test_one_message_is_consumed_directly(rocketmq: RealCluster, topic: str, group: str, tmp_path: Path) -> None:
    """By its unique id and by its offset id. The operator receives the handler's result, and nothing else changes."""
    java = peers.PeerOptions(rocketmq.nameserver, topic, tmp_path / "sent", rocketmq.spec.version)
    with peers.start_producer(java, 8) as producer:
        await asyncio.to_thread(producer.wait)
    handler = Handler()
    async with member(
        rocketmq.nameserver, handler, group=group, subscriptions=[topic], consume_from_where="first_offset"
    ) as m:
        await eventually(lambda: len(handler.messages) == 8, "all are handled")
        await m.stop()
    before = offsets.committed(rocketmq, group, topic)
    async with member(
        rocketmq.nameserver, handler, group=group, subscriptions=[topic], consume_from_where="first_offset"
    ) as m:
        await eventually(lambda: len(m.owned()) == 8, "the member runs again")
        message, client_id = handler.messages[0], m.client.client_id

        async def admin(*arguments: str) -> str:
            return await asyncio.to_thread(rocketmq.admin, *arguments, "-g", group, "-d", client_id)

        of_topic = () if rocketmq.spec.version.startswith("4") else ("-t", topic)
        by_unique_id = await admin("queryMsgByUniqueKey", "-i", message.msg_id, "-t", topic)
        by_offset_id = await admin("queryMsgById", "-i", message.offset_msg_id, *of_topic)
        handler.error = ValueError("no such order")
        failed = await admin("queryMsgByUniqueKey", "-i", message.msg_id, "-t", topic)
        handler.error = None
        assert handler.keys[8:] == [message.keys] * 3
        await m.stop()
    assert "CR_SUCCESS" in by_unique_id
    assert "CR_SUCCESS" in by_offset_id
    assert re.search(r"CR_THROW_EXCEPTION.*ValueError: no such order, at .*test_operators.py", failed, re.DOTALL), (
        failed
    )
    assert offsets.committed(rocketmq, group, topic) == before
    assert sum(offsets.stored(rocketmq, f"%RETRY%{group}").values()) == 0


@behaviour(
    "operators",
    "`skipAccumulatedMessage` moves a busy group to the ends of its queues",
    java="with the next pull of each queue",
    rmqd="the same",
    checked="mqadmin and a ledger",
)
def test_accumulated_messages_are_skipped(rocketmq: RealCluster, topic: str, group: str, tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    send(rocketmq, topic, "old", 400)
    config = ledger_group(
        topic,
        path,
        "a",
        handler_options={"seconds": 0.2},
        concurrency=1,
        shutdown_timeout="1s",
        consume_from_where="first_offset",
    )
    with RmqdProcess(tmp_path / "rmqd", rocketmq.nameserver, {group: config}) as rmqd:
        wait_until(lambda: len(finished(path)) > 2, "the group is busy")
        until_done(rocketmq, "skipAccumulatedMessage", "-g", group, "-t", topic)
        send(rocketmq, topic, "new", 8)  # they wake the pulls
        wait_until(lambda: times_handled(path, "new") == {1}, "new messages are handled")
        wait_until(lambda: offsets.lag(rocketmq, group, topic) == 0, "the lag is 0")
        status, _ = rmqd.terminate()
        assert status == 0
    assert len(finished(path)) < 200


def test_connection_and_progress_name_the_member(rocketmq: RealCluster, topic: str, group: str, tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    with RmqdProcess(tmp_path / "rmqd", rocketmq.nameserver, {group: ledger_group(topic, path, "a")}) as rmqd:
        rmqd.wait_ready()
        switch(rmqd, group, "pause")
        send(rocketmq, topic, "m", 80)
        connection = rocketmq.admin("consumerConnection", "-g", group)
        progress = until_done(rocketmq, "consumerProgress", "-g", group, "-s", "true")
        client_id = rmqd.status()["client_id"]
    assert re.search(rf"{re.escape(client_id)} +127\.0\.0\.1:\d+ +PYTHON +V5_5_0", connection), connection
    assert re.search(rf"^{topic} +\*", connection, re.MULTILINE)
    assert "ConsumeType: CONSUME_PASSIVELY" in connection
    assert "MessageModel: CLUSTERING" in connection
    assert re.search(r"^Diff Total: 80$", progress, re.MULTILINE) or re.search(r"Consume Diff Total: 80", progress), (
        progress
    )


@behaviour(
    "operators",
    "If a running group is deleted, even with its offsets, no message is lost",
    java="commits all offsets every 5 s, so they are soon stored again",
    rmqd="checks every 30 s whether the broker has them, so they are stored again within 40 s",
    checked=(
        "mqadmin deleteSubGroup on an idle group; messages sent while it is stopped are handled after the next start"
    ),
    long=True,
)
@pytest.mark.parametrize("clean", ["with its offsets", "without"])
def test_a_running_group_that_is_deleted_loses_nothing(
    rocketmq: RealCluster, topic: str, group: str, tmp_path: Path, clean: str
) -> None:
    """The broker recreates the group, and rmqd stores its offsets again, even if no message is handled."""
    path = tmp_path / "ledger"
    config = ledger_group(topic, path, "a", consume_from_where="last_offset")
    with RmqdProcess(tmp_path / "rmqd", rocketmq.nameserver, {group: config}) as rmqd:
        rmqd.wait_ready()
        send(rocketmq, topic, "m", 80)
        wait_until(lambda: offsets.lag(rocketmq, group, topic) == 0, "all is handled and committed")
        ends = offsets.stored(rocketmq, topic)
        output = rocketmq.admin(
            "deleteSubGroup", "-c", CLUSTER, "-g", group, "-r", str(clean == "with its offsets").lower()
        )
        assert "success" in output
        wait_until(
            lambda: offsets.committed(rocketmq, group, topic) == ends,
            "the broker has the offsets again",
            REPEAT_SECONDS + PERSIST_SECONDS + MARGIN_SECONDS,
        )
        status, _ = rmqd.terminate()
        assert status == 0
        send(rocketmq, topic, "while it was down", 8)
        rmqd.start()
        wait_until(lambda: times_handled(path, "while it was down") == {1}, "the group continues at its offsets")
    assert times_handled(path, "m") == {1}


@behaviour(
    "operators",
    (
        "If a group is deleted and the broker does not recreate it, this is reported; the group "
        "continues once it exists again"
    ),
    java="a warning for each pull",
    rmqd="a warning for each queue, and after 20 s queue.stalled with the cause consumption_disabled",
    checked="mqadmin deleteSubGroup with autoCreateSubscriptionGroup=false, then updateSubGroup",
)
def test_a_deleted_group_that_is_not_recreated_is_reported(
    rocketmq: RealCluster, topic: str, group: str, tmp_path: Path
) -> None:
    """If brokers do not create groups automatically, pull errors are logged until the group exists again."""
    path = tmp_path / "ledger"
    send(rocketmq, topic, "m", 80)
    with RmqdProcess(
        tmp_path / "rmqd",
        rocketmq.nameserver,
        {group: ledger_group(topic, path, "a", consume_from_where="first_offset")},
    ) as rmqd:
        wait_until(lambda: offsets.lag(rocketmq, group, topic) == 0, "all is handled and committed")
        rocketmq.set_broker(autoCreateSubscriptionGroup="false")
        try:
            rocketmq.admin("deleteSubGroup", "-c", CLUSTER, "-g", group)
            send(rocketmq, topic, "n", 80)
            wait_until(
                lambda: "SUBSCRIPTION_GROUP_NOT_EXIST" in json.dumps(rmqd.events("pull.failed")), "it is logged", 30
            )
            rocketmq.admin("updateSubGroup", "-c", CLUSTER, "-g", group)
            wait_until(lambda: times_handled(path, "n") == {1}, "it goes on by itself", 40)
        finally:
            rocketmq.set_broker(autoCreateSubscriptionGroup="true")
    assert times_handled(path, "m") == {1}
