"""Bugs in pops, and in acknowledgements and retries of popped messages."""

from __future__ import annotations

from typing import Any

import pytest

from rmqd.broker.pop.revive import HiddenPop, PopReviveService
from rmqd.consumer.pop.pop_assignment import PopAssignment
from rmqd.consumer.pop.pop_block import PopBlock
from rmqd.consumer.pop.pop_retries import PopSendBack
from rmqd.consumer.pop.receipts import PopProcessQueue, PopReceipts
from rmqd.wire.messages.message import MessageBlock
from rmqd.wire.receipt_handle import PopHandle
from tests.nightly.simulation.planted.registry import both, breaks, calm, happens, plant, pops, slow
from tests.simulation.plan import Plan


def _briefly_hidden(plan: Plan) -> bool:
    return plan.popping.invisible_seconds <= 10.0


def _swamped(plan: Plan) -> bool:
    """More messages are popped than handlers can handle."""
    return plan.concurrency == 1 and plan.habits.most_seconds > 0.1


def _fails(plan: Plan) -> bool:
    return plan.habits.fails > 0 or plan.habits.verdicts > 0


@plant(needs=both(pops, breaks("kill", "rush", "hang")))
def acknowledged_before_it_is_handled(patch: pytest.MonkeyPatch) -> None:
    """Popped messages are acknowledged at once, so no member gets them again if their member ends."""
    right = PopProcessQueue.put

    def put(self: PopProcessQueue, block: MessageBlock, next_offset: int, held: Any = ()) -> None:
        assert isinstance(block, PopBlock)
        self._receipts.acknowledge(block, block.unsettled_offsets(block.messages), self.stats)
        right(self, block, next_offset, held)

    patch.setattr(PopProcessQueue, "put", put)


@plant(needs=pops)
def never_acknowledged(patch: pytest.MonkeyPatch) -> None:
    """Brokers receive no acknowledgements."""
    patch.setattr(PopReceipts, "acknowledge", lambda self, block, offsets, stats: block.settled.update(offsets))


@plant(needs=pops)
def only_the_first_of_a_block_is_acknowledged(patch: pytest.MonkeyPatch) -> None:
    """Of several messages acknowledged together, only the first is acknowledged."""
    right = PopReceipts.acknowledge

    def acknowledge(self: PopReceipts, block: PopBlock, offsets: list[int], stats: Any) -> None:
        block.settled.update(offsets)
        right(self, block, offsets[:1], stats)

    patch.setattr(PopReceipts, "acknowledge", acknowledge)


@plant(needs=both(pops, breaks("kill", "rush")))
def acknowledged_while_handlers_have_the_rest(patch: pytest.MonkeyPatch) -> None:
    """With the first finished message of a pop, all its messages are acknowledged."""

    def acknowledge_finished(self: PopProcessQueue, block: PopBlock) -> None:
        if any(message.finished for message in block.messages):
            self._receipts.acknowledge(block, block.unsettled_offsets(block.messages), self.stats)

    patch.setattr(PopProcessQueue, "acknowledge_finished", acknowledge_finished)


@plant(needs=pops)
def acknowledged_though_given_back(patch: pytest.MonkeyPatch) -> None:
    """A message that must be retried is hidden, and then acknowledged by its new handle as if it had been handled."""

    async def retry_later(self: PopReceipts, block: PopBlock, offset: int, seconds: float) -> None:
        await self.extend_invisible_time(block, offset, round(seconds * 1000))

    patch.setattr(PopReceipts, "retry_later", retry_later)


@plant(needs=both(pops, calm, slow, _briefly_hidden))
def not_hidden_for_longer(patch: pytest.MonkeyPatch) -> None:
    """Popped messages in handlers are not hidden for longer."""

    async def renew(self: PopAssignment, block: PopBlock, offsets: list[int]) -> None:
        return None

    patch.setattr(PopAssignment, "_renew", renew)


@plant(needs=both(pops, calm, slow, lambda plan: plan.popping.invisible_seconds == 5.0))
def hidden_for_longer_once(patch: pytest.MonkeyPatch) -> None:
    """Popped messages in handlers are hidden for longer once, and not again."""
    right = PopAssignment._renew

    async def renew(self: PopAssignment, block: PopBlock, offsets: list[int]) -> None:
        await right(self, block, offsets)
        block.renew_at = float("inf")

    patch.setattr(PopAssignment, "_renew", renew)


@plant(needs=both(pops, calm, slow, _briefly_hidden))
def new_handle_lost(patch: pytest.MonkeyPatch) -> None:
    """A message that was hidden for longer is acknowledged with its old handle."""
    patch.setattr(PopBlock, "handle_of", lambda self, offset: self.handle._replace(queue_offset=offset))

    def acknowledge_changed(self: PopReceipts, block: PopBlock, offsets: list[int], stats: Any) -> list[int]:
        return offsets

    patch.setattr(PopReceipts, "_acknowledge_changed", acknowledge_changed)


@plant(needs=pops)
def given_back_by_another_handle(patch: pytest.MonkeyPatch) -> None:
    """The retry of a popped message uses the handle of the first message of its pop."""
    right = PopReceipts.retry_later

    async def retry_later(self: PopReceipts, block: PopBlock, offset: int, seconds: float) -> None:
        block.settled.add(offset)
        await right(self, block, block.messages[0].queue_offset, seconds)

    patch.setattr(PopReceipts, "retry_later", retry_later)


@plant(needs=both(pops, calm, _fails))
def given_back_at_once(patch: pytest.MonkeyPatch) -> None:
    """A failed popped message is shown again without a delay."""
    right = PopReceipts.retry_later

    async def retry_later(self: PopReceipts, block: PopBlock, offset: int, seconds: float) -> None:
        await right(self, block, offset, 0.1)

    patch.setattr(PopReceipts, "retry_later", retry_later)


@plant(needs=both(pops, slow, _briefly_hidden, _swamped))
def handled_when_its_time_is_over(patch: pytest.MonkeyPatch) -> None:
    """A waiting popped message is handled although the member knows that others can see it again."""
    right = PopAssignment._renew_or_discard

    def renew_or_discard(self: PopAssignment, tasks: Any, process_queue: PopProcessQueue, block: PopBlock) -> None:
        if not process_queue.unhandled_offsets(block):
            right(self, tasks, process_queue, block)

    patch.setattr(PopAssignment, "_renew_or_discard", renew_or_discard)


@plant(needs=both(pops, _swamped, happens("leave", "restart", least=2)))
def shown_again_and_handled(patch: pytest.MonkeyPatch) -> None:
    """Waiting popped messages of a leaving member are shown to others, and also handed to its handlers."""

    def show_waiting(self: PopAssignment) -> None:
        for process_queue in self.loop.process_queues:
            for block in process_queue.blocks:
                assert isinstance(block, PopBlock)
                self._receipts.make_visible(block, process_queue.unhandled_offsets(block))

    patch.setattr(PopAssignment, "_show_waiting", show_waiting)


@plant(needs=pops)
def retries_acknowledged_in_the_topic(patch: pytest.MonkeyPatch) -> None:
    """Messages from a pop retry topic are acknowledged as if they were in the topic itself."""
    right = PopReceipts._body

    def body(self: PopReceipts, block: PopBlock, handle: PopHandle, offsets: list[int]) -> Any:
        return right(self, block, handle._replace(retry=handle.retry.NORMAL), offsets)

    patch.setattr(PopReceipts, "_body", body)


@plant(needs=both(pops, calm, happens("leave", "restart", least=3)))
def last_acknowledgements_not_waited_for(patch: pytest.MonkeyPatch) -> None:
    """A leaving member does not wait until its acknowledgements are sent."""

    async def flush(self: PopReceipts, seconds: float) -> None:
        return None

    patch.setattr(PopReceipts, "flush", flush)


@plant(needs=pops)
def popped_again_after_a_dead_letter(patch: pytest.MonkeyPatch) -> None:
    """A dead-lettered message is also made visible again."""
    right = PopSendBack.dead_letter

    async def dead_letter(self: PopSendBack, message: Any, reason: str, error: BaseException | None) -> bool:
        is_sent = await right(self, message, reason, error)
        if isinstance(message.block, PopBlock):
            await self.retry(message, 0)
        return is_sent

    patch.setattr(PopSendBack, "dead_letter", dead_letter)


@plant(needs=pops)
def broker_hides_too_briefly(patch: pytest.MonkeyPatch) -> None:
    """A broker shows popped messages again after half of their invisible time."""
    patch.setattr(HiddenPop, "due_ms", property(lambda self: self.pop_time + self.invisible_time // 2))


@plant(needs=pops)
def broker_forgets_what_it_hid(patch: pytest.MonkeyPatch) -> None:
    """A broker never shows a popped message again."""

    patch.setattr(PopReviveService, "_revive", lambda self, popped: None)
