"""`rmqd offsets reset` and `restore` on running groups: which members obey, and that no other group moves."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from asyncio.subprocess import PIPE
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from rmqd.client.api.offset_requests import query_consumer_offset, update_consumer_offset
from rmqd.client.client_options import ClientOptions
from rmqd.client.instance import ClientInstance
from rmqd.codes import RequestCode, ResponseCode
from rmqd.errors import ExitCode
from rmqd.handler_api.batch import Batch
from rmqd.spark.session.queue_queries import pending_reset_offset
from rmqd.wire.bodies.group_bodies import ConsumerRunningInfo, ProcessQueueInfo
from rmqd.wire.bodies.heartbeat_data import ConsumerData, SubscriptionData
from rmqd.wire.command import RemotingCommand
from rmqd.wire.message_queue import MessageQueue
from tests.cli.command import TOP, Ended, rmqd
from tests.client.running import running
from tests.consumer.members import member
from tests.integration.load import Load
from tests.integration.rmqd_process import RmqdProcess, ledger_group
from tests.nightly.integration.static_topics import static_topic
from tests.rocketmq import RealCluster, ledger, offsets, release
from tests.rocketmq.fixtures import fresh_name
from tests.rocketmq.peers import PeerOptions, start_consumer
from tests.rocketmq.producer import Producer
from tests.seen import Seen
from tests.waiting import eventually, wait_until

QUEUES = 8
EARLY = 160
PATIENCE_SECONDS = 90


@pytest.fixture
def short_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let brokers hold pulls only until their next check, every 5 s, instead of Java's 15 s."""
    monkeypatch.setattr("rmqd.consumer.pull.pull_loop.BROKER_HOLD_MS", 1000)


def finished(*paths: Path) -> Counter[str]:
    """How often each key was handled to the end."""
    return Counter(entry.key for entry in ledger.read(*paths) if entry.event == ledger.FINISH)


def send(cluster: RealCluster, topic: str, prefix: str, count: int) -> None:
    with Producer(cluster.broker.address, topic) as producer:
        for number in range(count):
            producer.send(key=f"{prefix}{number}", queue=number % QUEUES)


def change(cluster: RealCluster, folder: Path, *arguments: str) -> Ended:
    """Run the command, with its backup in the test's folder."""
    return rmqd("offsets", *arguments, "--yes", "-o", "json", "-n", cluster.nameserver, "--set", f"state_dir={folder}")


def states(ended: Ended) -> dict[str, int]:
    """The number of queues by their final state."""
    return dict(Counter(one["state"] for one in ended.json()["queues"]))


def test_rmqd_and_java_members_obey_under_load_and_no_other_group_moves(
    rocketmq: RealCluster, topic: str, group: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Reset the group to the first message, and restore the backup. Both members confirm the reset."""
    other = rocketmq.create_topic(fresh_name(request.node.name, "other"))
    ours, theirs, others, second = (tmp_path / name for name in ("ours", "theirs", "others", "second"))
    settings = ledger_group(topic, ours, "rmqd", consume_from_where="first_offset")
    bystanders = {
        f"{group}_2": ledger_group(topic, second, "second", consume_from_where="first_offset"),
        f"{group}_3": ledger_group(other, others, "other", consume_from_where="first_offset"),
    }
    send(rocketmq, topic, "early", EARLY)
    with (
        RmqdProcess(tmp_path / "rmqd", rocketmq.nameserver, {group: settings, **bystanders}) as daemon,
        start_consumer(PeerOptions(rocketmq.nameserver, topic, theirs), group),
        Load(rocketmq, topic, 100_000, per_second=50) as load,
        Load(rocketmq, other, 100_000, per_second=10),
    ):
        daemon.wait_ready()

        def shared() -> bool:
            ids = offsets.members(rocketmq, group)
            return [len(offsets.queues_of(rocketmq, group, topic, one)) for one in ids] == [4, 4]

        wait_until(shared, "each member has half of the queues", PATIENCE_SECONDS)
        wait_until(lambda: set(finished(ours, theirs)) >= {f"early{n}" for n in range(EARLY)}, "the early are handled")
        wait_until(lambda: finished(theirs), "Java handles messages")
        # RocketMQ 4 resets only queues with a stored offset
        wait_until(lambda: all(offsets.committed(rocketmq, group, topic).values()), "each queue has an offset")
        done = change(rocketmq, tmp_path, "reset", group, topic, "--to", "first")
        assert done.code == 0, done.err
        assert states(done) == {"moved": QUEUES}
        assert [(one["answers"], one["obeyed"]) for one in done.json()["members"]] == [(True, True)] * 2
        assert {one["to"] for one in done.json()["queues"]} == {0}
        wait_until(
            lambda: min(finished(ours, theirs)[f"early{n}"] for n in range(EARLY)) >= 2,
            "all from the first message is handled again",
            PATIENCE_SECONDS,
        )
        saved = {one["queue"]: one["from"] for one in done.json()["queues"]}
        back = change(rocketmq, tmp_path, "restore", done.json()["backup"])
        if release.is_4():  # its members can only be moved by time
            assert "or stop the members" in back.err
        else:
            assert back.code == 0, back.err
            assert {one["queue"]: one["to"] for one in back.json()["queues"]} == saved
            assert set(states(back)) <= {"moved", "unchanged"}
        sent = len(load.sent)
        wait_until(lambda: len(load.sent) > sent + 50, "the load continues")
    # the other groups handle each message once, and were never moved
    assert max(finished(second).values()) == 1
    assert max(finished(others).values()) == 1
    assert not [event for event in daemon.events("offset.corrected") if event["group"] != group]


@pytest.mark.usefixtures("short_holds")
async def test_an_idle_member_has_obeyed_when_the_command_ends(
    rocketmq: RealCluster, topic: str, group: str, tmp_path: Path, way: str
) -> None:
    """The broker holds the member's pulls. The reset arrives when a pull returns, or is pushed."""
    await asyncio.to_thread(send, rocketmq, topic, "m", 40)
    seen = Seen()
    options: dict[str, Any] = {"group": group, "subscriptions": [topic], "consume_from_where": "first_offset"}
    async with member(rocketmq.nameserver, seen, persist_consumer_offset_interval_seconds=0.2, **options):

        def is_committed() -> bool:
            return len(offsets.committed(rocketmq, group, topic)) == QUEUES and not offsets.lag(rocketmq, group, topic)

        await eventually(lambda: asyncio.to_thread(is_committed), "all is committed")
        back = await asyncio.to_thread(change, rocketmq, tmp_path, "reset", group, topic, "--to", "first")
        assert (back.code, states(back)) == (0, {"moved": QUEUES}), back.err
        await eventually(lambda: len(seen.keys) == 80, "all is handled again")
        exact = await asyncio.to_thread(change, rocketmq, tmp_path, "reset", group, topic, "--to", "3")
        if way == "pushed":
            assert exact.code == 1
            assert "only by time: use --to first, last or a time" in exact.err
        else:
            assert (exact.code, states(exact)) == (0, {"moved": QUEUES}), exact.err
            await eventually(lambda: len(seen.keys) == 80 + 2 * QUEUES, "two in each queue are handled once more")
    assert Counter(seen.keys).most_common(1)[0][1] == (2 if way == "pushed" else 3)


@pytest.mark.usefixtures("short_holds")
async def test_a_busy_member_skips_its_backlog(rocketmq: RealCluster, topic: str, group: str, tmp_path: Path) -> None:
    """The backlog is cached already. A skip in one queue does not move the other queues."""
    if rocketmq.spec.version.startswith("4"):
        pytest.skip("RocketMQ 4 pushes resets to the members, by time alone")
    await asyncio.to_thread(send, rocketmq, topic, "old", 400)
    seen = Seen()

    async def slow(batch: Batch) -> None:
        await asyncio.sleep(0.5)
        seen.take(batch)

    options: dict[str, Any] = {"group": group, "subscriptions": [topic], "consume_from_where": "first_offset"}
    async with member(rocketmq.nameserver, slow, concurrency=1, **options) as one:
        await eventually(lambda: len(one.owned()) == QUEUES and seen.keys, "the member is busy")
        skipped = await asyncio.to_thread(
            change, rocketmq, tmp_path, "reset", group, topic, "--skip", "30", "--queue", "3"
        )
        assert (skipped.code, states(skipped)) == (0, {"moved": 1}), skipped.err
        done = await asyncio.to_thread(change, rocketmq, tmp_path, "reset", group, topic, "--to", "last")
        assert (done.code, states(done)) == (0, {"moved": QUEUES}), done.err
        await asyncio.to_thread(send, rocketmq, topic, "new", 2)
        await eventually(lambda: {"new0", "new1"} <= set(seen.keys), "new messages are handled")
    assert len(seen.keys) == len(set(seen.keys)) < 400


class Posing:
    """A fake member that reports one queue, at the offset that the test sets."""

    def __init__(self, group: str, queue: MessageQueue, at: int, message_model: str = "CLUSTERING") -> None:
        self.group = group
        self.at = at
        self._queue = queue
        self._message_model = message_model

    def consumer_data(self) -> ConsumerData:
        subscriptions = (SubscriptionData(self._queue.topic, "*"),)
        return ConsumerData(self.group, subscriptions, message_model=self._message_model)

    def on_consumer_ids_changed(self) -> None:
        pass

    async def on_request(self, command: RemotingCommand) -> tuple[int, str, dict[str, str], bytes] | None:
        if command.code != RequestCode.GET_CONSUMER_RUNNING_INFO:
            return None
        held = {self._queue: ProcessQueueInfo(commit_offset=self.at)}
        return ResponseCode.SUCCESS, "", {}, ConsumerRunningInfo({}, mq_table=held).to_json()


@contextlib.asynccontextmanager
async def posing(rocketmq: RealCluster, member: Posing, topic: str) -> AsyncIterator[ClientInstance]:
    """Run the fake member's client, which is known to the brokers."""
    client = ClientInstance(ClientOptions(nameservers=(rocketmq.nameserver,)))
    async with running(client.run()):
        await client.routes.lookup(topic)
        client.register(member)
        await client.heartbeat.send_heartbeats()
        yield client
        client.stop()


async def test_a_member_that_does_not_obey_is_named(
    rocketmq: RealCluster, topic: str, group: str, tmp_path: Path
) -> None:
    """The other queues, which have no owner, are moved anyway; the command exits with 1."""
    if rocketmq.spec.version.startswith("4"):
        pytest.skip("RocketMQ 4 pushes resets to the members")
    await asyncio.to_thread(send, rocketmq, topic, "m", 40)
    async with posing(rocketmq, Posing(group, MessageQueue(topic, "broker-a", 2), 5), topic) as client:
        done = await asyncio.to_thread(change, rocketmq, tmp_path, "reset", group, topic, "--to", "1", "--wait", "2s")
        client_id = client.client_id
    assert done.code == 1
    assert states(done) == {"stored": QUEUES - 1, "not_obeyed": 1}
    assert done.json()["members"] == [{"client_id": client_id, "answers": True, "obeyed": False}]
    assert done.err.endswith(
        f"rmqd: broker-a queue 2: target 1, stored 1; member {client_id}, which is at 5\n"
        f"rmqd: brokers keep a reset for the member's next pull; check again with `rmqd groups show {group}`\n"
    ), done.err


async def test_a_broker_that_pushes_keeps_no_reset_for_a_member_that_does_not_obey(
    rocketmq: RealCluster, topic: str, group: str, tmp_path: Path
) -> None:
    """This is what RocketMQ 4 does, so the command recommends other steps."""
    is_old = rocketmq.spec.version.startswith("4")
    await asyncio.to_thread(send, rocketmq, topic, "m", 40)
    if not is_old:
        await asyncio.to_thread(rocketmq.set_broker, useServerSideResetOffset="false")
    try:
        async with posing(rocketmq, Posing(group, MessageQueue(topic, "broker-a", 2), 5), topic) as client:
            for queue in range(QUEUES):
                where = MessageQueue(topic, "broker-a", queue)
                await update_consumer_offset(client.remoting, rocketmq.broker.address, group, where, 5)
            wait = ("--to", "first", "--wait", "2s")
            done = await asyncio.to_thread(change, rocketmq, tmp_path, "reset", group, topic, *wait)
    finally:
        if not is_old:
            await asyncio.to_thread(rocketmq.set_broker, useServerSideResetOffset="true")
    assert done.code == 1
    assert states(done)["not_obeyed"], done.err
    assert done.err.endswith(
        "rmqd: broker-a pushed the reset to the members once; "
        f"check with `rmqd groups show {group}`. If a member missed it, stop the members and reset again\n"
    ), done.err
    assert "brokers keep" not in done.err


async def test_an_interrupted_reset_reports_what_was_done_and_how_to_undo_it(
    rocketmq: RealCluster, topic: str, group: str, tmp_path: Path
) -> None:
    if rocketmq.spec.version.startswith("4"):
        pytest.skip("RocketMQ 4 pushes resets to the members")
    await asyncio.to_thread(send, rocketmq, topic, "m", 40)
    options = ("--to", "1", "--yes", "-n", rocketmq.nameserver, "--set", f"state_dir={tmp_path}")
    async with posing(rocketmq, Posing(group, MessageQueue(topic, "broker-a", 2), 5), topic):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "rmqd", "offsets", "reset", group, topic, *options,
            env={**os.environ, "PYTHONPATH": f"{TOP}:{TOP / 'handlers'}"}, stdout=PIPE, stderr=PIPE,
        )  # fmt: skip
        assert process.stdout is not None
        backup = ""
        while not (line := (await process.stdout.readline()).decode()).startswith("sent; waiting for 1 member"):
            assert line, "the command waits for the member"
            backup = line.removeprefix("backup: ").strip() if line.startswith("backup: ") else backup
        process.send_signal(signal.SIGINT)
        _, err = await process.communicate()
    assert process.returncode == ExitCode.INTERRUPTED
    assert err.decode() == (
        "rmqd: interrupted; the group was reset; whether its members applied it is unknown: "
        f"`rmqd groups show {group}` shows its offsets, `rmqd offsets restore {backup}` undoes it\n"
    )


async def test_a_reset_that_was_sent_to_a_dead_connection_is_sent_again(
    rocketmq: RealCluster, topic: str, group: str, tmp_path: Path
) -> None:
    """Brokers do so within 20 s of a member's end. Java's next member then commits its old offset over the reset."""
    if rocketmq.spec.version.startswith("4"):
        pytest.skip("RocketMQ 4 pushes resets to the members")
    await asyncio.to_thread(send, rocketmq, topic, "m", 40)
    queue, address = MessageQueue(topic, "broker-a", 2), rocketmq.broker.address
    member = Posing(group, queue, 5)
    async with posing(rocketmq, member, topic) as client:
        command = asyncio.create_task(
            asyncio.to_thread(change, rocketmq, tmp_path, "reset", group, topic, "--to", "1", "--queue", "2")
        )

        async def is_sent() -> bool:
            return await query_consumer_offset(client.remoting, address, group, queue) == 1

        await eventually(is_sent, "the reset waits")
        assert await pending_reset_offset(client.remoting, address, group, queue, 5) == 1  # the dead connection's pull
        assert await update_consumer_offset(client.remoting, address, group, queue, 5)
        await eventually(is_sent, "the reset waits again")
        assert await pending_reset_offset(client.remoting, address, group, queue, 5) == 1  # the member's own pull
        member.at = 1
        done = await command
    assert (done.code, states(done)) == (0, {"moved": 1}), done.err


async def test_a_broadcasting_group_is_refused(rocketmq: RealCluster, topic: str, group: str, tmp_path: Path) -> None:
    member = Posing(group, MessageQueue(topic, "broker-a", 2), 0, "BROADCASTING")
    async with posing(rocketmq, member, topic):
        refused = await asyncio.to_thread(change, rocketmq, tmp_path, "reset", group, topic, "--to", "last")
    assert (refused.code, "is broadcasting: each member stores its offsets in its own file" in refused.err) == (1, True)


@pytest.mark.slow
def test_an_unresponsive_broker_does_not_prevent_resets_at_others(
    rocketmq_pair: RealCluster, group: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Its queues do not move; the command reports this and exits with 69."""
    topic = rocketmq_pair.create_topic(fresh_name(request.node.name, "topic"))
    for queue in offsets.queues(rocketmq_pair, topic):
        rocketmq_pair.admin("updateSubGroup", "-c", "DefaultCluster", "-g", group) if queue.queue_id == 0 else None
        offsets.commit(rocketmq_pair, group, topic, queue, 5)
    rocketmq_pair.pause("broker-b")
    try:
        done = change(rocketmq_pair, tmp_path, "reset", group, topic, "--to", "first")
    finally:
        rocketmq_pair.resume("broker-b")
    assert done.code == 69, done.err
    assert {(one["broker"], one["state"]) for one in done.json()["queues"]} == {("broker-a", "stored")}
    assert "broker-b" in done.err
    after = offsets.committed(rocketmq_pair, group, topic)
    assert {queue.broker: offset for queue, offset in after.items()} == {"broker-a": 0, "broker-b": 5}


@pytest.mark.slow
def test_a_static_topic_is_refused(rocketmq_static: RealCluster, group: str, tmp_path: Path) -> None:
    topic = static_topic(rocketmq_static, group)
    refused = change(rocketmq_static, tmp_path, "reset", group, topic, "--to", "first")
    assert (refused.code, f"{topic} is a static topic" in refused.err) == (1, True)


@pytest.mark.skipif(release.is_4(), reason="RocketMQ 4.9 has no POP")
async def test_a_group_that_pops_is_moved_by_the_broker(
    rocketmq: RealCluster, topic: str, group: str, tmp_path: Path
) -> None:
    """Members that pop have no offsets, so the broker continues at the new offset with the next pops."""
    rocketmq.set_consume_mode(topic, group, "POP")
    seen = Seen()
    options: dict[str, Any] = {"group": group, "subscriptions": [topic], "consume_from_where": "first_offset"}
    async with member(rocketmq.nameserver, seen, consume_mode="pop", **options) as m:
        await eventually(lambda: any(queue.popped for queue in m.consumer.snapshot().queues), "the member pops")
        await asyncio.to_thread(send, rocketmq, topic, "m", 40)
        await eventually(lambda: len(set(seen.keys)) == 40, "all is handled")
        done = await asyncio.to_thread(change, rocketmq, tmp_path, "reset", group, topic, "--to", "first")
        assert (done.code, states(done)) == (0, {"stored": QUEUES}), done.err
        assert "popped:" in done.err
        await eventually(lambda: min(Counter(seen.keys).values()) >= 2, "all is handled again", PATIENCE_SECONDS)
