"""One script for two consumers: a Java listener and a handler of rmqd run the script in each message.

The actions are the same as in `tests/rocketmq/java/ScriptedConsumer.java`. Daily runs have no Java, except tests/smoke:
they compare rmqd only with the expectations of the test itself.
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
        """Record the batch, and run the script of its first message."""
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
            case "throw" | "null":  # Java treats null like an exception; a handler here has no return value
                raise RuntimeError("as the script says")
            case _:
                raise ValueError(f"no action {name!r}")


@dataclass(frozen=True, slots=True)
class JavaSide:
    """The official consumer, in its own group."""

    group: str
    path: Path
    peer: JavaPeer

    @property
    def attempts(self) -> Attempts:
        """The attempts of its listener so far."""
        return Attempts.read(self.path)


@dataclass(frozen=True, slots=True)
class RmqdSide:
    """rmqd's engine in this process, in its own group."""

    group: str
    handler: ScriptedHandler
    member: Member

    @property
    def attempts(self) -> Attempts:
        """The attempts of its handler so far."""
        return self.handler.attempts


@dataclass(frozen=True, slots=True)
class Both:
    """A Java consumer and rmqd over the same topics, in two groups. Without Java, `java` is the same as `rmqd`."""

    cluster: RealCluster
    java: JavaSide | RmqdSide
    rmqd: RmqdSide

    @property
    def is_beside_java(self) -> bool:
        """Whether a Java consumer runs."""
        return isinstance(self.java, JavaSide)

    async def handled(self, attempts: int, timeout_seconds: float = 30.0) -> None:
        """Wait until each side has at least so many attempts."""
        for side in (self.java, self.rmqd):
            await eventually(lambda: len(side.attempts) >= attempts, f"{attempts} attempts", timeout_seconds)  # noqa: B023 awaited in the loop

    async def finish(
        self, *topics: str, attempts: int = 0, retries: bool = False, timeout_seconds: float = 30.0
    ) -> tuple[Attempts, Attempts]:
        """Stop both when rmqd has committed the topics and Java has as many attempts. Neither may have a lag then.

        With `retries`, the groups' retry topics count too. Java's first commit is 10 s after its start, or when it
        stops.
        """
        await self.handled(attempts, timeout_seconds)
        await self._committed(self.rmqd.group, topics, retries)
        await eventually(lambda: len(self.java.attempts) >= len(self.rmqd.attempts), "Java has as many attempts")
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
        """Stop both gracefully, and return their attempts, Java's first."""
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
    """Run both during the block. `java` has options of ScriptedConsumer, `rmqd` has ConsumerOptions.

    `names` are the names of the two groups, Java's first; by default they are made from `group`. If `nameserver` is
    given, for example a proxy, both use it instead of the cluster's.
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
