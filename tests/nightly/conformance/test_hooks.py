"""Hooks of a Java consumer and of rmqd around one script."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rmqd import Batch, Message
from rmqd.consumer.hooks import Hook, HookContext
from tests.conformance import behaviour
from tests.conformance.scripted import both
from tests.rocketmq import RealCluster
from tests.rocketmq.fixtures import fresh_name
from tests.rocketmq.producer import Producer


class Recording:
    """rmqd's counterpart of ScriptedHooks."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def before(self, batch: Batch, context: HookContext) -> None:
        """Record a line for each message."""
        self.lines += [f"before {message.keys}" for message in batch]

    def after(self, batch: Batch, context: HookContext) -> None:
        """Record the outcome. For Java every outcome except success is a failure."""
        outcome = "success" if context.outcome == "success" else "failed"
        self.lines += [f"after {message.keys} {outcome}" for message in batch]

    def wants(self, message: Message, context: HookContext) -> bool:
        """Skip messages with the property `unwanted`."""
        return "unwanted" not in message.properties


def of(key: str, lines: Sequence[str]) -> list[str]:
    """The lines about one message."""
    return [line for line in lines if line.split()[1] == key]


@behaviour(
    "hooks",
    "One hook sees each batch before and after, with its outcome; another filters messages out",
    java="ConsumeMessageHook, FilterMessageHook; an outcome is success or not",
    rmqd="before_batch, after_batch and wants of an entry point of rmqd.hooks; four outcomes",
    checked=("compared with a Java consumer with such hooks: the calls for each message, and both groups' offsets"),
)
async def test_hooks_are_called_as_in_java(rocketmq: RealCluster, group: str, tmp_path: Path) -> None:
    """Called for success and failure. Skipped messages do not count as lag."""
    topic = rocketmq.create_topic(fresh_name(group, "topic"), 1)
    with Producer(rocketmq.broker.address, topic, 1) as producer:
        producer.send(key="good")
        producer.send(key="bad", properties={"script": "later:18"})
        producer.send(key="left", properties={"unwanted": "yes"})
        producer.send(key="last")
    recording = Recording()
    hook = Hook("recording", recording.before, recording.after, recording.wants)
    path = tmp_path / "hooks"
    async with both(
        rocketmq, group, tmp_path, [topic], java={"hooks": path}, hooks=[hook], consume_from_where="first_offset"
    ) as sides:
        seen_by_java, seen_by_rmqd = await sides.finish(topic, attempts=3)

    assert set(seen_by_rmqd.keys) == set(seen_by_java.keys) == {"good", "bad", "last"}
    by_java = path.read_text().splitlines() if sides.is_beside_java else recording.lines
    for key in ("good", "bad", "left", "last"):
        assert of(key, recording.lines)[:2] == of(key, by_java)[:2], key
    assert of("bad", recording.lines)[:2] == ["before bad", "after bad failed"]
    assert of("left", recording.lines) == []
