"""`rmqd dlq replay` and `rmqd dlq purge`: the chosen letters, how they are sent, and the remaining ones."""

from __future__ import annotations

import asyncio
import json
import zlib
from pathlib import Path
from typing import Any

import pytest

from rmqd import DeadLetter
from rmqd.client.api.group_requests import lock_batch, unlock_batch
from rmqd.client.api.send_requests import send_message
from rmqd.client.remoting.remoting_client import RemotingClient
from rmqd.wire.headers.send_headers import SendMessageRequestHeaderV2
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.properties import COMPRESSED
from tests.cli.command import rmqd
from tests.conformance.attempts import Attempts
from tests.consumer.members import member
from tests.nightly.cli.dead_letters import Commands, Seen, give_up, group_of, stored
from tests.rocketmq import RealCluster, offsets, release
from tests.rocketmq.peers import start_scripted
from tests.rocketmq.producer import Producer
from tests.waiting import eventually, wait_until

pytestmark = pytest.mark.process


async def test_letters_are_handled_again_only_by_their_group(
    rocketmq: RealCluster, topic: str, commands: Commands
) -> None:
    """Each letter is sent once, unchanged, and can be retried again. Another group of the topic receives none."""
    await give_up(commands, topic, [f"k{number}" for number in range(70)])
    other = Seen()
    again = Seen(
        fails=lambda message: ValueError("no") if message.keys == "k3" and not message.reconsume_times else None
    )
    neighbour = group_of(f"{commands.group}-other", topic)
    async with member(rocketmq.nameserver, other.handle, **neighbour):
        await eventually(lambda: len(other.messages) == 70, "the other group has all messages")
        result = await commands.replay()
        assert (result["chosen"], result["sent"], result["failed"], result["left"]) == (70, 70, [], 0)
        assert result["topic"] == f"%RETRY%{commands.group}"
        assert await commands.counts() == (0, 70)
        options = group_of(commands.group, topic, delay_level_when_next_consume=1)
        async with member(rocketmq.nameserver, again.handle, **options):
            await eventually(lambda: len(again.messages) == 71, "all letters are handled again, one of them twice")
    by_key = {message.keys or "": message for message in again.messages if not message.reconsume_times}
    assert sorted(by_key) == sorted(f"k{number}" for number in range(70))
    one = by_key["k7"]
    assert (one.topic, one.body, one.tags, one.properties["shop"]) == (topic, b"of k7", "tag-k7", "k")
    assert one.properties["RMQD_REPLAY_ID"]
    assert not {"RMQD_REASON", "RMQD_EXCEPTION", "RMQD_GROUP"} & one.properties.keys()
    assert [message.reconsume_times for message in again.messages if message.keys == "k3"] == [0, 1]
    assert len(other.messages) == 70
    ended = await commands.run("replay", commands.group, "--yes")
    assert (ended.code, ended.out) == (0, f"{commands.group} has no dead letters left\n")


async def test_the_plan_is_shown_and_needs_confirmation(topic: str, commands: Commands) -> None:
    """Nothing is sent without a terminal or `--yes`. The figures are the same as mqadmin's."""
    await give_up(commands, topic, ["a1", "a2", "b1"], reason=lambda key: f"no shop {key[0]}")
    stats = commands.cluster.admin("topicStatus", "-t", f"%DLQ%{commands.group}")
    assert await commands.counts() == (3, 3)
    assert [line.split()[1:4] for line in stats.splitlines() if line.startswith("broker-a ")] == [["0", "0", "3"]]
    dry = await commands.run("replay", commands.group, "--dry-run", "--rate", "5")
    assert dry.code == 0
    assert dry.out.splitlines() == [
        f"{commands.group}: 3 of 3 dead letters left",
        "  2  no shop a",
        "  1  no shop b",
        f"of the topics: {topic} 3",
        f"to %RETRY%{commands.group}, which only this group reads, as new messages with reconsume times from 0",
        "no members now: messages wait for one",
        "at most 5 per second",
    ]
    asked = await commands.run("replay", commands.group)
    assert asked.code == 1
    assert "--yes" in asked.err
    assert await commands.counts() == (3, 3)


async def test_options_choose_letters(topic: str, commands: Commands) -> None:
    """For show, purge and replay. Other letters stay."""
    await give_up(commands, topic, ["a1", "a2", "b1", "b2"], reason=lambda key: f"No Shop {key}")
    assert sorted(await commands.shown("--key", "a1", "--key", "b2", "--since", "1h")) == ["a1", "b2"]
    ended = await commands.run("purge", commands.group, "--dry-run", "--tag", "tag-a2", "--reason", "no shop a")
    assert ended.out.startswith(
        f"{commands.group}: 1 of 4 dead letters left: to be settled without being handled again\n"
    )
    assert (await commands.run("show", commands.group, "--property", "shop")).code == 2
    assert (await commands.run("replay", commands.group, "--since", "yesterday")).code == 2
    result = await commands.replay("--property", "shop=b")
    assert (result["sent"], result["left"]) == (2, 2)
    assert sorted(await commands.shown()) == ["a1", "a2"]


async def test_letters_of_an_orderly_group_with_locks_go_by_send_back(
    rocketmq: RealCluster, topic: str, commands: Commands
) -> None:
    """Messages in the retry topic of such a group would become dead letters."""
    await give_up(commands, topic, [f"k{number}" for number in range(20)], consume_mode="orderly")
    again = Seen()
    async with member(
        rocketmq.nameserver, again.handle, **group_of(commands.group, topic, consume_mode="orderly")
    ) as one:
        await eventually(lambda: {queue for _, queue in one.owned()}, "the member has queues")
        result = await commands.replay()
        assert (result["sent"], result["left"], set(result["ways"].values())) == (20, 0, {"send_back"})
        await eventually(lambda: len(again.messages) == 20, "all letters are handled again")
    assert again.keys() == sorted(f"k{number}" for number in range(20))
    assert {(message.topic, message.reconsume_times) for message in again.messages} == {(topic, 1)}
    assert await commands.counts() == (0, 20)


@pytest.mark.skipif(release.is_4(), reason="a RocketMQ 4 takes every retry that is sent, whoever holds the lock")
async def test_letters_go_by_send_back_while_locks_of_a_stopped_member_last(
    rocketmq: RealCluster, topic: str, commands: Commands, remoting: RemotingClient
) -> None:
    """Locks last for a minute. The first letter is also tried by the retry topic; its copy is not counted as left."""
    await give_up(commands, topic, ["k0", "k1", "k2"], consume_mode="orderly")
    queues = [MessageQueue(topic, "broker-a", 1)]
    await lock_batch(remoting, rocketmq.broker.address, commands.group, "one that is gone", queues)
    result = await commands.replay()
    assert (result["sent"], result["failed"], set(result["ways"].values())) == (3, [], {"send_back"})
    assert await commands.counts() == (0, 4)  # one was also tried by the retry topic
    await unlock_batch(remoting, rocketmq.broker.address, commands.group, "one that is gone", queues)
    again = Seen()
    options = group_of(commands.group, topic, consume_mode="orderly")
    async with member(rocketmq.nameserver, again.handle, **options):
        await eventually(lambda: len(again.messages) == 3, "all letters are handled again")
    assert again.keys() == ["k0", "k1", "k2"]


async def test_a_compressed_body_is_replayed_as_it_is_stored(
    rocketmq: RealCluster, topic: str, commands: Commands, remoting: RemotingClient
) -> None:
    body = b"a body " * 1000
    header = SendMessageRequestHeaderV2(
        producer_group="p",
        topic=topic,
        queue_id=0,
        sys_flag=COMPRESSED,
        born_timestamp=1,
        flag=7,
        properties="KEYS\x01z1\x02",
    )
    await send_message(remoting, rocketmq.broker.address, header, zlib.compress(body))
    await give_up(commands, topic, ["k0"], also=1)
    result = await commands.replay()
    again = Seen()
    async with member(rocketmq.nameserver, again.handle, **group_of(commands.group, topic)):
        await eventually(lambda: len(again.messages) == result["sent"], "all letters are handled again")
    one = next(message for message in again.messages if message.keys == "z1")
    assert (one.body, one.flag, one.born_timestamp, len(one.stored_body) < 1000) == (body, 7, 1, True)


async def test_purged_letters_are_settled_but_stay_stored(topic: str, commands: Commands, tmp_path: Path) -> None:
    """Another machine knows only the settled letters before the first remaining one."""
    await give_up(commands, topic, ["a1", "a2", "b1", "a3"], reason=lambda key: f"no shop {key[0]}")
    order = await commands.shown()
    ended = await commands.run("purge", commands.group, "--reason", "no shop a", "--yes", "-o", "json")
    assert (ended.code, ended.json()["purged"], ended.json()["left"]) == (0, 3, 1), ended.err
    assert await commands.counts() == (1, 4)
    assert await commands.shown() == ["b1"]
    assert await commands.shown("--all") == order
    elsewhere = Commands(commands.cluster, commands.group, tmp_path / "elsewhere")
    assert await elsewhere.shown() == order[order.index("b1") :]
    result = await commands.replay()
    assert (result["sent"], result["left"]) == (1, 0)
    assert await elsewhere.counts() == (0, 4)


async def test_replayed_letters_are_found_without_the_state_dir(topic: str, commands: Commands, tmp_path: Path) -> None:
    """They are found by their copies in the retry topic, even if earlier letters remain."""
    await give_up(commands, topic, ["a1", "a2", "b1", "b2"])
    assert (await commands.replay("--property", "shop=b"))["sent"] == 2
    elsewhere = Commands(commands.cluster, commands.group, tmp_path / "elsewhere")
    result = await elsewhere.replay()
    assert (result["sent"], result["found"], result["left"]) == (2, 2, 0)
    again = Seen()
    async with member(commands.cluster.nameserver, again.handle, **group_of(commands.group, topic)):
        await eventually(lambda: len(again.messages) == 4, "all letters are handled again")
        await eventually(
            lambda: offsets.lag(commands.cluster, commands.group, f"%RETRY%{commands.group}") == 0, "no message is left"
        )
    assert again.keys() == ["a1", "a2", "b1", "b2"]


async def test_a_letter_that_cannot_be_replayed_is_named(topic: str, commands: Commands) -> None:
    """The letter was sent to the topic by hand. The other one is replayed, and the exit code is 1."""
    await give_up(commands, topic, ["k1"])
    with Producer(commands.cluster.broker.address, f"%DLQ%{commands.group}", queues=1) as producer:
        producer.send(key="by-hand")
    ended = await commands.run("replay", commands.group, "--yes", "-o", "json")
    result = ended.json()
    assert (ended.code, result["sent"], result["left"]) == (1, 1, 1)
    assert [one["error"] for one in result["failed"]] == ["its original topic is unknown: no property RETRY_TOPIC"]
    assert "1 message failed" in ended.err


async def test_a_message_that_is_dead_lettered_again_is_a_new_letter(topic: str, commands: Commands) -> None:
    await give_up(commands, topic, ["k1"])
    for times in (1, 2):
        assert (await commands.replay())["sent"] == 1
        again = Seen(fails=lambda _, times=times: DeadLetter(f"still {times}"))  # type: ignore[misc]
        async with member(commands.cluster.nameserver, again.handle, **group_of(commands.group, topic)):
            await eventually(lambda: stored(commands) == 1 + times, "it is dead-lettered")  # noqa: B023 - asked at once
        assert (await commands.run("show", commands.group, "-o", "json")).json()[0]["reason"] == f"still {times}"


async def test_a_group_in_a_namespace(rocketmq: RealCluster, topic: str, group: str, tmp_path: Path) -> None:
    """The output has the names without the namespace."""
    wrapped = Commands(rocketmq, f"shop%{group}", tmp_path / "state")
    rocketmq.create_topic(f"shop%{topic}", 1)
    await give_up(wrapped, f"shop%{topic}", ["k1"])
    common = ("-n", rocketmq.nameserver, "--set", f"state_dir={tmp_path / 'state'}", "--set", "client.namespace=shop")
    ended = await asyncio.to_thread(rmqd, "dlq", "replay", group, "--yes", "-o", "json", *common)
    assert ended.code == 0, ended.err
    result = ended.json()
    assert (result["sent"], result["topic"], result["topics"]) == (1, f"%RETRY%{group}", {topic: 1})
    again = Seen()
    async with member(
        rocketmq.nameserver, again.handle, **group_of(f"shop%{group}", f"shop%{topic}", namespace="shop")
    ):
        await eventually(lambda: len(again.messages) == 1, "the letter is handled again")
    assert (again.messages[0].keys, again.messages[0].topic) == ("k1", topic)


@pytest.mark.skipif(release.is_4(), reason="RocketMQ 4.9 has no POP")
async def test_a_group_that_pops(rocketmq: RealCluster, topic: str, commands: Commands) -> None:
    rocketmq.set_consume_mode(topic, commands.group, "POP")
    await give_up(commands, topic, ["k1", "k2"], consume_mode="pop")
    assert (await commands.replay())["sent"] == 2
    again = Seen()
    async with member(rocketmq.nameserver, again.handle, **group_of(commands.group, topic, consume_mode="pop")):
        await eventually(lambda: len(again.messages) == 2, "all come again", 60)
    assert {(message.keys, message.topic) for message in again.messages} == {("k1", topic), ("k2", topic)}


@pytest.mark.slow
@pytest.mark.parametrize("orderly", [False, True])
def test_a_group_of_java_members(
    rocketmq: RealCluster, topic: str, group: str, tmp_path: Path, *, orderly: bool
) -> None:
    """Dead letters of Java have no reason. Java members handle the replayed message."""
    with Producer(rocketmq.broker.address, topic) as producer:
        producer.send(
            b"body", key="k1", properties={"script": "later:-1" if not orderly else "suspend:10,suspend:10,ok"}
        )
    options: dict[str, object] = {"subscriptions": f"{topic}=TAG=*", "attempts": tmp_path / "attempts"}
    if orderly:
        options |= {"orderly": True, "max_reconsume_times": 1}
    common = ("-n", rocketmq.nameserver, "--set", f"state_dir={tmp_path / 'state'}")

    def left() -> int:
        listed: list[dict[str, Any]] = json.loads(rmqd("dlq", "list", "-o", "json", *common).out)
        return next((one["left"] for one in listed if one["group"] == group), 0)

    with start_scripted(rocketmq.nameserver, group, tmp_path, **options):
        # an orderly Java member that misses its first lock requests it again after 20 s
        wait_until(lambda: left() == 1, "the message is dead-lettered", 60)
        attempts = len(Attempts.read(tmp_path / "attempts"))
        ended = rmqd("dlq", "replay", group, "--yes", "-o", "json", *common)
        assert (ended.code, ended.json()["sent"]) == (0, 1), ended.err
        assert ended.json()["reasons"] == [{"reason": None, "messages": 1}]
        wait_until(lambda: len(Attempts.read(tmp_path / "attempts")) > attempts, "the message is handled again")
    again = Attempts.read(tmp_path / "attempts")[attempts]
    assert (again.keys, again.topic) == ("k1", topic)
