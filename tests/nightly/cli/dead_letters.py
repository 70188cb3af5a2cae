"""Dead letters for tests of `rmqd dlq`: how to create them, and the commands about them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from rmqd import DeadLetter, Message
from rmqd.handler_api.batch import Batch
from tests.cli.command import Ended, rmqd
from tests.consumer.members import member
from tests.rocketmq import ClusterError, RealCluster, offsets
from tests.rocketmq.producer import Producer
from tests.waiting import eventually


class Commands:
    """`rmqd dlq` for one group, with a state_dir."""

    def __init__(self, cluster: RealCluster, group: str, state_dir: Path) -> None:
        self.cluster = cluster
        self.group = group
        self.state_dir = state_dir

    async def run(self, *arguments: str) -> Ended:
        """Run a subcommand."""
        common = ("-n", self.cluster.nameserver, "--set", f"state_dir={self.state_dir}")
        return await asyncio.to_thread(rmqd, "dlq", *arguments, *common)

    async def replay(self, *arguments: str) -> dict[str, Any]:
        """Replay without confirmation, and return the result. The command must succeed."""
        ended = await self.run("replay", self.group, "--yes", "-o", "json", *arguments)
        assert ended.code == 0, ended.err
        result: dict[str, Any] = ended.json()
        return result

    async def counts(self) -> tuple[int, int]:
        """The dead letters left, and those stored at the brokers, according to `rmqd dlq list`."""
        ended = await self.run("list", "-o", "json")
        assert ended.code == 0, ended.err
        return next(((one["left"], one["messages"]) for one in ended.json() if one["group"] == self.group), (0, 0))

    async def shown(self, *arguments: str) -> list[str]:
        """The keys of the dead letters in `rmqd dlq show`."""
        ended = await self.run("show", self.group, "--most", "1000", "-o", "json", *arguments)
        assert ended.code == 0, ended.err
        return [one["keys"] for one in ended.json()]


class Seen:
    """A handler that records its messages."""

    def __init__(self, *, fails: Callable[[Message], Exception | None] = lambda _: None) -> None:
        self.messages: list[Message] = []
        self._fails = fails

    async def handle(self, batch: Batch) -> None:
        """Record each message, and raise the error that `fails` returns for it."""
        for message in batch:
            self.messages.append(message)
            if error := self._fails(message):
                raise error

    def keys(self) -> list[str]:
        """The sorted keys of the recorded messages."""
        return sorted(message.keys or "" for message in self.messages)


def group_of(group: str, topic: str, **more: Any) -> dict[str, Any]:
    """Options of a group that starts at the first message and commits every 0.2 s."""
    common = {"consume_from_where": "first_offset", "persist_consumer_offset_interval_seconds": 0.2}
    return {"group": group, "subscriptions": [topic], **common, **more}


def stored(commands: Commands) -> int:
    """The number of the group's dead letters at the broker."""
    with contextlib.suppress(ClusterError):
        return sum(offsets.stored(commands.cluster, f"%DLQ%{commands.group}").values())
    return 0


async def give_up(
    commands: Commands,
    topic: str,
    keys: Iterable[str],
    reason: Callable[[str], str] = "bad {}".format,
    also: int = 0,
    **more: Any,
) -> None:
    """Dead-letter messages with these keys, and `also` messages that are already in the topic."""
    keys = list(keys)
    before = stored(commands)
    with Producer(commands.cluster.broker.address, topic) as producer:
        for key in keys:
            producer.send(f"of {key}".encode(), key=key, tags=f"tag-{key}", properties={"shop": key[0]}, queue=0)
    seen = Seen(fails=lambda message: DeadLetter(reason(message.keys or "")))
    async with member(commands.cluster.nameserver, seen.handle, **group_of(commands.group, topic, **more)):
        await eventually(lambda: stored(commands) == before + len(keys) + also, "all messages are dead-lettered")
        await eventually(lambda: offsets.lag(commands.cluster, commands.group, topic) == 0, "all offsets are committed")
