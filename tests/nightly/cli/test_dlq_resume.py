"""Interrupted `rmqd dlq replay`: letters that were sent are not sent again."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from rmqd.client.api.offset_requests import get_max_offset
from rmqd.client.remoting.remoting_client import RemotingClient
from rmqd.wire.message_queue import MessageQueue
from tests.cli.command import TOP
from tests.consumer.members import member
from tests.nightly.cli.dead_letters import Commands, Seen, give_up, group_of, stored
from tests.rocketmq import offsets, release
from tests.waiting import eventually

pytestmark = pytest.mark.process
BROKER = "broker-a"
SCHEDULE = "SCHEDULE_TOPIC_XXXX"


async def letters_of(commands: Commands) -> list[dict[str, Any]]:
    """The letters in the order of their queue."""
    shown = (await commands.run("show", commands.group, "-o", "json")).json()
    return sorted(shown, key=lambda one: int(one["offset"]))


def leave_open(commands: Commands, way: str, keys: dict[int, str], ends: dict[str, dict[int, int]]) -> None:
    """Record letters as in flight, like a process of rmqd 0.1.0 that is killed before it records the responses."""
    path = commands.state_dir / "dlq" / commands.group / "marks.json"
    path.parent.mkdir(parents=True)
    window = {"queue_id": 0, "way": way, "keys": keys, "ends": ends}
    path.write_text(json.dumps({"queues": [], "windows": {BROKER: window}}))


async def test_letters_in_flight_to_a_retry_topic_are_sent_once(topic: str, commands: Commands, tmp_path: Path) -> None:
    """Two of four were stored before the process died. The other two were not sent."""
    await give_up(commands, topic, ["k0", "k1", "k2", "k3"])
    letters = await letters_of(commands)
    elsewhere = Commands(commands.cluster, commands.group, tmp_path / "elsewhere")
    assert (await elsewhere.replay("--id", letters[1]["msg_id"], "--id", letters[3]["msg_id"]))["sent"] == 2
    ids = {one["offset"]: f"{one['offset_msg_id']}-{one['stored_at_ms']}" for one in letters}
    leave_open(commands, "retry_topic", ids, {})
    dry = await commands.run("replay", commands.group, "--dry-run")
    assert "4 were in flight when an earlier run was interrupted" in dry.out
    leave_one = Commands(commands.cluster, commands.group, tmp_path / "one")
    leave_open(leave_one, "retry_topic", dict([*ids.items()][:1]), {})
    dry = await leave_one.run("replay", commands.group, "--dry-run")
    assert "1 was in flight when an earlier run was interrupted" in dry.out
    result = await commands.replay()
    assert (result["sent"], result["found"], result["left"]) == (2, 2, 0)
    again = Seen()
    async with member(commands.cluster.nameserver, again.handle, **group_of(commands.group, topic)):
        await eventually(lambda: len(again.messages) == 4, "all letters are handled again")
        await eventually(lambda: _lag(commands) == 0, "no message is left")
    assert again.keys() == ["k0", "k1", "k2", "k3"]


@pytest.mark.skipif(release.is_4(), reason="a RocketMQ 4 takes every retry that is sent, whoever holds the lock")
async def test_letters_in_flight_by_send_back_are_sent_once(
    topic: str, commands: Commands, remoting: RemotingClient, tmp_path: Path
) -> None:
    """The broker's copies are found among the delayed messages."""
    await give_up(commands, topic, ["k0", "k1", "k2", "k3"], consume_mode="orderly")
    letters = await letters_of(commands)
    end = await get_max_offset(remoting, commands.cluster.broker.address, MessageQueue(SCHEDULE, BROKER, 0))
    elsewhere = Commands(commands.cluster, commands.group, tmp_path / "elsewhere")
    again = Seen()
    options = group_of(commands.group, topic, consume_mode="orderly")
    async with member(commands.cluster.nameserver, again.handle, **options) as one:
        await eventually(lambda: {queue for _, queue in one.owned()}, "the member has queues")
        assert (await elsewhere.replay("--id", letters[1]["msg_id"], "--id", letters[3]["msg_id"]))["sent"] == 2
        keys = {
            one["offset"]: f"{one['msg_id']} {one['properties']['ORIGIN_MESSAGE_ID']} {one['reconsume_times'] + 1}"
            for one in letters
        }
        leave_open(commands, "send_back", keys, {SCHEDULE: {0: end}})
        result = await commands.replay()
        assert (result["sent"], result["found"], result["left"]) == (2, 2, 0)
        await eventually(lambda: len(again.messages) >= 4, "all letters are handled again")
        await eventually(lambda: _lag(commands) == 0, "no message is left")
    assert again.keys() == ["k0", "k1", "k2", "k3"]


async def test_one_process_replays_at_a_time(topic: str, commands: Commands) -> None:
    """A second process is refused. It can continue the replay once the first one is killed."""
    await give_up(commands, topic, ["k0", "k1", "k2"])
    marks = commands.state_dir / "dlq"
    arguments = ("-n", commands.cluster.nameserver, "--set", f"state_dir={commands.state_dir}", "--rate", "0.05")
    environment = {**os.environ, "PYTHONPATH": f"{TOP}:{TOP / 'handlers'}"}
    slow = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "rmqd", "dlq", "replay", commands.group, "--yes", *arguments, env=environment
    )
    try:
        await eventually(lambda: [*marks.rglob("marks.json")], "the replay has begun")
        refused = await commands.run("replay", commands.group, "--yes")
        assert refused.code == 1
        assert f"process {slow.pid} on " in refused.err
    finally:
        slow.kill()
        await slow.wait()
    assert (await commands.replay())["left"] == 0
    again = Seen()
    async with member(commands.cluster.nameserver, again.handle, **group_of(commands.group, topic)):
        await eventually(lambda: len(again.messages) == 3, "all letters are handled again")
        await eventually(lambda: _lag(commands) == 0, "no message is left")
    assert again.keys() == ["k0", "k1", "k2"]


async def test_letters_of_a_recreated_dead_letter_topic_are_not_settled(topic: str, commands: Commands) -> None:
    """The stored marks belong to deleted messages."""
    await give_up(commands, topic, ["k0", "k1"])
    assert (await commands.run("purge", commands.group, "--yes")).code == 0
    assert await commands.counts() == (0, 2)
    letters = f"%DLQ%{commands.group}"
    await asyncio.to_thread(commands.cluster.admin, "deleteTopic", "-c", "DefaultCluster", "-t", letters)
    await eventually(lambda: stored(commands) == 0, "the topic is deleted")
    await give_up(commands, topic, ["k2", "k3", "k4"])
    assert await commands.counts() == (3, 3)
    assert sorted(await commands.shown()) == ["k2", "k3", "k4"]


def _lag(commands: Commands) -> int:
    return offsets.lag(commands.cluster, commands.group, f"%RETRY%{commands.group}")
