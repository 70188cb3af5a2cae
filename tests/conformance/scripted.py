"""One script for two consumers: a Java listener and a handler of rmqd that do to each message what it says.

The actions are those of `tests/rocketmq/java/ScriptedConsumer.java`. A daily run has no Java, but for tests/smoke: rmqd
is then compared with what the test itself expects.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rmqd import Batch, Retry, Suspend
from rmqd.consumer.consumer_options import Subscription
from tests.conformance.attempts import Attempt, Attempts
from tests.consumer.members import Member, member
from tests.rocketmq import RealCluster, offsets, release
from tests.rocketmq.peers import JavaPeer, start_scripted
from tests.waiting import eventually

PERSIST_MILLIS = 200


class ScriptedHandler:
    """rmqd's counterpart of ScriptedConsumer."""

    def __init__(self) -> None:
        self.attempts = Attempts()
        self._tries: Counter[tuple[str, str | None]] = Counter()
        self._batches = 0

    async def __call__(self, batch: Batch) -> None:
        """Write the batch down, and do what its first message says."""
        self.attempts += [Attempt.of(self._batches, message) for message in batch]
        self._batches += 1
        self._tries.update((message.topic, message.keys) for message in batch)
        first = batch[0]
        actions = first.properties.get("script", "ok").split(",")
        for step in actions[min(self._tries[first.topic, first.keys], len(actions)) - 1].split("+"):
            name, _, argument = step.partition(":")
            await self._do(batch, name, argument)

    async def _do(self, batch: Batch, name: str, argument: str) -> None:
        match name:
            case "ok":
                pass
            case "later":
                raise Retry(int(argument) if argument else None)
            case "ack":
                batch.ack_index = int(argument)
            case "suspend":
                raise Suspend(int(argument) / 1000 if argument else None)
            case "commit":
                batch.commit()
            case "rollback":
                batch.rollback()
            case "sleep":
                await asyncio.sleep(int(argument) / 1000)
            case "throw" | "null":  # a listener that returns null is the same to Java; a handler here returns nothing
                raise RuntimeError("as the script says")
            case _:
                raise ValueError(f"no action {name!r}")


@dataclass(frozen=True, slots=True)
class JavaSide:
    """The official consumer, in a group of its own."""

    group: str
    path: Path
    peer: JavaPeer

    @property
    def attempts(self) -> Attempts:
        """What its listener was handed so far."""
        return Attempts.read(self.path)


@dataclass(frozen=True, slots=True)
class RmqdSide:
    """rmqd's engine in this process, in a group of its own."""

    group: str
    handler: ScriptedHandler
    member: Member

    @property
    def attempts(self) -> Attempts:
        """What its handler was handed so far."""
        return self.handler.attempts


@dataclass(frozen=True, slots=True)
class Both:
    """A Java consumer and rmqd over the same topics, in two groups; without Java, rmqd stands in its place too."""

    cluster: RealCluster
    java: JavaSide | RmqdSide
    rmqd: RmqdSide

    @property
    def is_beside_java(self) -> bool:
        """Whether there is a Java consumer."""
        return isinstance(self.java, JavaSide)

    async def handled(self, attempts: int, timeout_seconds: float = 30.0) -> None:
        """Wait until each was handed so many messages."""
        for side in (self.java, self.rmqd):
            await eventually(lambda: len(side.attempts) >= attempts, f"{attempts} attempts", timeout_seconds)  # noqa: B023 awaited in the loop

    async def finish(
        self, *topics: str, attempts: int = 0, retries: bool = False, timeout_seconds: float = 30.0
    ) -> tuple[Attempts, Attempts]:
        """End both when rmqd has committed the topics and Java was handed as much; neither may leave anything over.

        With `retries`, the groups' retry topics count too. Java commits for the first time 10 s after its start, or at
        its end.
        """
        await self.handled(attempts, timeout_seconds)
        await self._committed(self.rmqd.group, topics, retries)
        await eventually(lambda: len(self.java.attempts) >= len(self.rmqd.attempts), "Java was handed as many")
        java, rmqd = await self.stop()
        await self._committed(self.java.group, topics, retries)
        return java, rmqd

    async def _committed(self, group: str, topics: Sequence[str], retries: bool) -> None:
        for topic in [*topics, *([f"%RETRY%{group}"] if retries else [])]:
            await eventually(
                lambda: offsets.lag(self.cluster, group, topic) == 0,  # noqa: B023 awaited in the loop
                f"{group} commits {topic}",
            )

    async def stop(self) -> tuple[Attempts, Attempts]:
        """End both in order; what each was handed, Java's first."""
        await self.rmqd.member.stop()
        if isinstance(self.java, JavaSide):
            await asyncio.to_thread(self.java.peer.stop)
        return self.java.attempts, self.rmqd.attempts


@contextlib.asynccontextmanager
async def both(
    cluster: RealCluster,
    group: str,
    directory: Path,
    subscriptions: list[str] | Mapping[str, str | Subscription],
    java: Mapping[str, object] | None = None,
    names: tuple[str, str] | None = None,
    nameserver: str = "",
    **rmqd: Any,
) -> AsyncIterator[Both]:
    """Run both for the length of the block; `java` has options of ScriptedConsumer, `rmqd` of ConsumerOptions.

    `names` are the two groups', Java's first; otherwise they are made from `group`. Where `nameserver` is given, both
    take it in place of the cluster's, as they do a proxy.
    """
    directory.mkdir(exist_ok=True)
    handler = ScriptedHandler()
    path = directory / f"{group}.attempts"
    options = {
        "attempts": path,
        "subscriptions": _lines(subscriptions),
        "persist_millis": PERSIST_MILLIS,
        **(java or {}),
    }
    persist = {"persist_consumer_offset_interval_seconds": PERSIST_MILLIS / 1000}
    names = names or (f"{group}_java", f"{group}_rmqd")
    nameserver = nameserver or cluster.nameserver
    async with contextlib.AsyncExitStack() as stack:
        java_side = None
        if not (cluster.spec.version == release.EMBEDDED and release.is_without_java()):
            started = await asyncio.to_thread(start_scripted, nameserver, names[0], directory, **options)
            java_side = JavaSide(names[0], path, stack.enter_context(started))
        running = member(nameserver, handler, group=names[1], subscriptions=subscriptions, **{**persist, **rmqd})
        rmqd_side = RmqdSide(names[1], handler, await stack.enter_async_context(running))
        yield Both(cluster, java_side or rmqd_side, rmqd_side)


def _lines(subscriptions: list[str] | Mapping[str, str | Subscription]) -> str:
    wanted = dict.fromkeys(subscriptions, "*") if isinstance(subscriptions, list) else subscriptions
    lines = []
    for topic, value in wanted.items():
        one = value if isinstance(value, Subscription) else Subscription(value, "TAG")
        lines.append(f"{topic}={one.kind}={one.expression}")
    return "\n".join(lines)
