"""Invisible times of failed popped messages."""

from __future__ import annotations

from typing import Any, cast

import pytest

from rmqd.consumer.handling.send_back import SendBack
from rmqd.consumer.pop.pop_block import PopBlock
from rmqd.consumer.pop.pop_retries import PopSendBack
from tests.consumer.blocks import block_of
from tests.consumer.groups import GROUP, TOPIC
from tests.consumer.pop.popped import popped

# Java: popDelayLevel
JAVAS_SECONDS = [10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200]


class Receipts:
    """Records the invisible times of messages."""

    def __init__(self) -> None:
        self.hidden: list[float] = []

    async def retry_later(self, block: PopBlock, offset: int, seconds: float) -> None:
        self.hidden.append(seconds)


async def test_each_retry_waits_longer_as_in_java() -> None:
    """The last delay is used for all later retries. A requested level selects from the same list."""
    receipts, [message] = Receipts(), popped([4], 60).messages
    send_back = PopSendBack(cast("Any", None), GROUP, 16, cast("Any", receipts))
    for _ in range(18):
        assert await send_back.retry(message, 0)
        message.count_attempt()
    assert receipts.hidden == [*JAVAS_SECONDS, 7200, 7200]
    receipts.hidden.clear()
    for level in (1, 5, 18):
        assert await send_back.retry(message, level)
    assert receipts.hidden == [30, 240, 7200]


def test_a_pulled_message_has_the_delay_levels_of_other_groups() -> None:
    [message] = block_of([4]).messages
    send_back = PopSendBack(cast("Any", None), GROUP, 16, cast("Any", Receipts()))
    assert [send_back.delay_level(message, asked) for asked in (0, 5, 30)] == [3, 5, 18]


async def test_a_pulled_retry_of_a_popped_message_keeps_its_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    """A send-back would lose the topic, so the group sends a copy. If the copy fails, the message is sent back."""
    ways: list[str] = []

    def way(name: str, *, works: bool) -> Any:
        async def taken(*_: Any) -> bool:
            ways.append(name)
            return works

        return taken

    monkeypatch.setattr(SendBack, "retry", way("by the broker", works=True))
    monkeypatch.setattr(SendBack, "_to_retry_topic", way("by the group", works=False))
    send_back = PopSendBack(cast("Any", None), GROUP, 16, cast("Any", Receipts()))
    [message] = block_of([4]).messages
    assert await send_back.retry(message, 0)
    assert ways == ["by the broker"]
    message.block.origin = TOPIC
    assert await send_back.retry(message, 0)
    assert ways == ["by the broker", "by the group", "by the broker"]
    monkeypatch.setattr(SendBack, "_to_retry_topic", way("by the group", works=True))
    assert await send_back.retry(message, 0)
    assert ways[3:] == ["by the group"]
