"""`rmqd replay`: a time range is handled again by a shadow group, and the group itself does not change."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rmqd.handler_api.batch import Batch
from tests.cli import in_process
from tests.cli.command import TOP, Ended, rmqd
from tests.consumer.members import member
from tests.rocketmq import RealCluster, offsets
from tests.rocketmq.producer import Producer
from tests.waiting import eventually, wait_until

pytestmark = [pytest.mark.process, pytest.mark.slow]

HANDLER = """
import time
from pathlib import Path
from rmqd import DeadLetter

def handle(batch, options):
    for message in batch:
        while message.keys == "held" and Path(options["path"] + ".hold").exists():
            time.sleep(0.05)
        with Path(options["path"]).open("a") as file:
            file.write(f"{message.keys}\\n")
        if message.keys == "bad":
            raise ValueError("not this one")
        if message.keys == "dead":
            raise DeadLetter("no such customer")
"""


class Replay:
    """A group's configuration, the keys that its handler got, and the commands."""

    def __init__(self, cluster: RealCluster, folder: Path, group: str, topic: str, **keys: Any) -> None:
        self.group, self.shadow = group, f"{group}-rmqd-replay"
        self._nameserver, self._folder, self._handled = cluster.nameserver, folder, folder / "handled"
        (folder / "shop.py").write_text(HANDLER)
        handler = {"plugin": "shop:handle", "options": {"path": str(self._handled)}}
        settings = {"subscriptions": {topic: "*"}, "handler": handler, **keys}
        config = {"nameserver": cluster.nameserver, "state_dir": str(folder / "state"), "groups": {group: settings}}
        (folder / "rmqd.yaml").write_text(json.dumps(config))

    def run(self, *arguments: str) -> Ended:
        return rmqd("replay", self.group, *arguments, "-c", "rmqd.yaml", cwd=self._folder, python_path=self._folder)

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "rmqd", "replay", self.group, *arguments, "-c", "rmqd.yaml"],
            cwd=self._folder,
            env={"PYTHONPATH": f"{TOP}:{self._folder}"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def handled(self) -> list[str]:
        return self._handled.read_text().splitlines() if self._handled.exists() else []

    def shown(self, group: str) -> dict[str, Any]:
        """A group according to the brokers; empty if they do not know it."""
        ended = in_process.rmqd("groups", "show", group, "-n", self._nameserver, "-o", "json")
        found: dict[str, Any] = ended.json() if ended.code == 0 else {}
        return found

    def is_removed(self) -> bool:
        """Whether the brokers have neither the shadow group nor its topics."""
        return not self.shown(self.shadow) and not self.has_topic(self.shadow)

    def has_topic(self, name: str) -> bool:
        """Whether the brokers have a topic whose name ends with `name`."""
        ended = in_process.rmqd("topics", "list", "--all", "-n", self._nameserver, "-o", "json")
        return any(one["topic"].endswith(name) for one in ended.json())

    def hold(self) -> Path:
        """Make the handler wait at the message `held` until the returned file is deleted."""
        file = self._handled.with_name(self._handled.name + ".hold")
        file.touch()
        return file


def send(cluster: RealCluster, topic: str, keys: Sequence[str], queues: int = 2, tags: str = "") -> None:
    count = sum(offsets.stored(cluster, topic).values()) + len(keys)
    with Producer(cluster.broker.address, topic, queues) as producer:
        for key in keys:
            producer.send(key=key, tags=tags)
    wait_until(lambda: sum(offsets.stored(cluster, topic).values()) == count, "all messages are in their queues")


def now() -> str:
    """A time after the messages stored so far, and before later ones."""
    time.sleep(0.05)
    at = f"@{time.time_ns() // 1_000_000}"
    time.sleep(0.05)
    return at


async def test_a_time_range_is_replayed_while_its_group_runs(
    rocketmq: RealCluster, topic: str, group: str, tmp_path: Path
) -> None:
    """Failures are retried and reported. The running group does not change."""

    async def handle(batch: Batch) -> None:
        """The group's member in production. It handles every message."""

    options: dict[str, Any] = {"group": group, "subscriptions": [topic], "consume_from_where": "first_offset"}
    async with member(rocketmq.nameserver, handle, persist_consumer_offset_interval_seconds=0.2, **options):
        send(rocketmq, topic, [f"before{n}" for n in range(6)])
        since = now()
        window = [*(f"m{n}" for n in range(20)), "bad", "dead"]
        send(rocketmq, topic, window)
        until = now()
        send(rocketmq, topic, [f"after{n}" for n in range(6)])
        await eventually(lambda: offsets.lag(rocketmq, group, topic) == 0, "production has handled all messages")
        replay = Replay(rocketmq, tmp_path, group, topic)

        def state() -> tuple[Any, ...]:
            return offsets.committed(rocketmq, group, topic), replay.shown(group)

        before = await asyncio.to_thread(state)
        arguments = ("--from", since, "--to", until, "--retries", "1", "--yes", "-o", "json")
        ended = await asyncio.to_thread(replay.run, *arguments)
        after = await asyncio.to_thread(state)
    told = ended.json()
    assert ended.code == 1, ended.err  # two messages failed
    assert Counter(replay.handled()) == Counter([*window, "bad"])
    assert (told["shadow"], told["messages"], told["passed"], told["is_done"]) == (replay.shadow, 22, 22, True)
    assert told["handled"]["acked"] == 20
    failures = {one["keys"]: (one["reason"], one["exception"], one["attempts"]) for one in told["failures"]}
    assert failures == {
        "bad": ("all attempts of the replay failed", "ValueError: not this one", 2),
        "dead": ("no such customer", "DeadLetter: no such customer", 1),
    }
    assert before == after
    assert not await asyncio.to_thread(replay.has_topic, f"%DLQ%{group}")
    assert await asyncio.to_thread(replay.is_removed)


def test_a_killed_replay_is_continued(rocketmq: RealCluster, topic: str, group: str, tmp_path: Path) -> None:
    """The same command handles the rest. Another time range has to wait. The shadow group is visible meanwhile."""
    keys = [*(f"m{n}" for n in range(100)), "held", *(f"n{n}" for n in range(99))]
    send(rocketmq, topic, keys, queues=4)
    replay = Replay(rocketmq, tmp_path, group, topic)
    hold = replay.hold()
    arguments = ("--from", "1h", "--rate", "50", "--yes")
    process = replay.start(*arguments)
    try:
        wait_until(lambda: len(replay.handled()) > 70, "it handles messages")
        members = "its member owns 8 queues, and the retry topic's"
        wait_until(lambda: [one["queues"] for one in replay.shown(replay.shadow)["members"]] == [9], members)
        wait_until(lambda: "continues" in replay.run("--from", "1h", "--dry-run").out, "it commits while it runs")
    finally:
        process.kill()
        process.wait()
    before = len(replay.handled())
    hold.unlink()
    other = replay.run("--from", "2h", "--yes")
    assert (other.code, f"rmqd replay {group} --from 1h" in other.err) == (1, True)
    ended = replay.run(*arguments)
    assert (ended.code, "200 of 200 messages" in ended.out) == (0, True), ended.err
    handled = Counter(replay.handled())
    assert handled.keys() == set(keys)
    assert sum(handled.values()) < len(keys) + before  # committed messages are not handled again
    assert replay.is_removed()
    assert not any(offsets.committed(rocketmq, group, topic).values())
    assert replay.shown(group) == {}


def test_the_order_of_an_orderly_group_is_kept(rocketmq: RealCluster, topic: str, group: str, tmp_path: Path) -> None:
    """A failed message is retried in place until its attempts are used up. Then the next one is handled."""
    rocketmq.create_group(group, {"+priority.factor": "2"})  # the shadow group copies its group's settings
    send(rocketmq, topic, ["a", "b", "bad", "c", "d"], queues=1)
    replay = Replay(rocketmq, tmp_path, group, topic, consume_mode="orderly", suspend_current_queue_time="100ms")
    ended = replay.run("--from", "1h", "--retries", "2", "--yes")
    assert ended.code == 1
    assert replay.handled() == ["a", "b", "bad", "bad", "bad", "c", "d"]
    assert "1 message failed, in " in ended.out
    assert replay.is_removed()


def test_matching_messages_after_the_time_range_are_not_replayed(
    rocketmq: RealCluster, topic: str, group: str, tmp_path: Path
) -> None:
    """With a filter, the next message that the broker finds may be after the end of the range."""
    send(rocketmq, topic, ["m0", "m1"], queues=1, tags="paid")
    send(rocketmq, topic, ["x"] * 5, queues=1, tags="open")
    until = now()
    send(rocketmq, topic, ["late0", "late1"], queues=1, tags="paid")
    replay = Replay(rocketmq, tmp_path, group, topic, subscriptions={topic: "paid"})
    ended = replay.run("--from", "1h", "--to", until, "--yes")
    assert ended.code == 0, ended.err
    assert sorted(replay.handled()) == ["m0", "m1"]
    assert replay.is_removed()


def test_the_plan_is_shown_first(rocketmq: RealCluster, topic: str, group: str, tmp_path: Path) -> None:
    send(rocketmq, topic, ["a", "b", "c"], queues=2)
    replay = Replay(rocketmq, tmp_path, group, topic)
    plan = replay.run("--from", "1h", "--rate", "7", "--dry-run")
    assert plan.code == 0
    assert "3 messages at most, 7 a second\n" in plan.out
    assert f"the handler's effects are real; {group} does not change" in plan.out
    told = replay.run("--from", "1h", "--dry-run", "-o", "json").json()
    assert (told["shadow"], told["messages"], len(told["queues"])) == (replay.shadow, 3, 8)
    refused = replay.run("--from", "1h")
    assert (refused.code, "--yes" in refused.err, replay.handled()) == (1, True, [])
    assert replay.is_removed()
    assert replay.run().code == 2
    assert replay.run("--from", "1h", "--to", "2h").code == 2
    assert replay.run("--abandon", "--yes").code == 1


def test_a_replay_is_abandoned(rocketmq: RealCluster, topic: str, group: str, tmp_path: Path) -> None:
    send(rocketmq, topic, ["a", "held"])
    replay = Replay(rocketmq, tmp_path, group, topic, shutdown_timeout="0s")
    replay.hold()
    process = replay.start("--from", "1h", "--yes")
    try:
        wait_until(lambda: replay.handled() == ["a"], "it handles messages")
        refused = replay.run("--abandon", "--yes")
        assert (refused.code, "this replay is already running" in refused.err) == (1, True)
    finally:
        process.terminate()
        assert process.wait() == 128 + signal.SIGTERM
    assert not replay.is_removed()
    ended = replay.run("--abandon", "--yes")
    assert ended.code == 0, ended.err
    assert replay.is_removed()
    assert replay.run("--from", "2h", "--dry-run").code == 0  # no other replay blocks it
