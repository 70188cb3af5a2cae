"""Bugs in groups with `order_by`: which messages of a key may be handed out, and the release of a queue."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from rmqd.consumer.cache.keyed_process_queue import KeyedProcessQueue
from rmqd.wire.messages.message import Message
from tests.nightly.simulation.planted.registry import both, by_key, fails, hands_over, plant


@plant(needs=by_key)
def keys_keep_nobody_waiting(patch: pytest.MonkeyPatch) -> None:
    """Messages of one key are handed out in parallel."""

    def add(self: KeyedProcessQueue, messages: Sequence[Message]) -> None:
        self.waiting.extend(messages)

    patch.setattr(KeyedProcessQueue, "_add", add)


@plant(needs=both(by_key, fails))
def key_goes_on_without_one_that_rests(patch: pytest.MonkeyPatch) -> None:
    """While a failed message waits for its retry, the next message of its key is handed out."""
    right = KeyedProcessQueue.postpone

    def postpone(self: KeyedProcessQueue, messages: list[Message]) -> None:
        right(self, messages)
        for message in messages:
            self._release(message)

    patch.setattr(KeyedProcessQueue, "postpone", postpone)


@plant(needs=both(by_key, hands_over))
def left_with_finished_ones_above(patch: pytest.MonkeyPatch) -> None:
    """A queue under release hands out no more messages, though finished messages above them will be handled again."""

    def start_release(self: KeyedProcessQueue) -> None:
        self.is_releasing = True
        self.discard_waiting()

    patch.setattr(KeyedProcessQueue, "start_release", start_release)
