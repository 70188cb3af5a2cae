"""The report of a history whose effect is not repeatable: a timeline, the differences, and advice."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rmqd.testing.chaos.chaos_history import QueueBatch
from rmqd.testing.chaos.chaos_memory import Path, comparable_state, differences, state_text
from rmqd.testing.chaos.chaos_trial import ChaosStep, HistoryResult
from rmqd.testing.handler_run import RunResult
from rmqd.wire.messages.message import Message

Compared = tuple[Any, Mapping[int, str]]
"""A state from `settled`, and the outcome of each message by its index."""


@dataclass(frozen=True, slots=True)
class FailedHistory:
    """A history whose result differs from the expected result."""

    messages: Sequence[Message]
    ending: HistoryResult
    expected: Compared
    got: Compared
    leave_out: Collection[Path]
    on_top: bool = False
    """Whether the history ran after the group's own run, because the handler's writes could not be undone."""

    def lines(self) -> list[str]:
        return [
            f"{'after an undisturbed run' if self.on_top else 'from the beginning'}:",
            *self._timeline(),
            "the result differs from an undisturbed run:",
            *(f"  {line}" for line in self._differences()),
            *self._advice(),
        ]

    def _timeline(self) -> Iterator[str]:
        seen: dict[QueueBatch, ChaosStep] = {}
        names = [self._name(step.delivery.part) for step in self.ending.steps]
        width = max(map(len, names), default=0)
        for number, (step, name) in enumerate(zip(self.ending.steps, names, strict=True), start=1):
            part = step.delivery.part
            again = "again: " if part in seen or self.on_top else ""
            if part in seen and seen[part].delivery.how == "whole":
                again = "again, because its offset was not committed: "
            yield f"  {number}. {name:<{width}}  {again}{step.outcome}"
            yield f"     {'':<{width}}  leaves {state_text(comparable_state(step.state, self.leave_out))}"
            seen[part] = step

    def _differences(self) -> Iterator[str]:
        yield from differences(self.expected[0], self.got[0])
        for index, fate in self.got[1].items():
            expected = self.expected[1].get(index, "handled")
            if fate != expected:
                yield f"{_label(self.messages[index])} is {fate}, expected {expected}"

    def _advice(self) -> Iterator[str]:
        if any(step.delivery.how == "killed" for step in self.ending.steps):
            yield "A handler's memory is lost with its process: an effect must be complete before the handler returns."
            yield "And it must be safe to repeat in a new process, or be one transaction."
        elif any(step.delivery.how != "whole" for step in self.ending.steps):
            yield "RocketMQ redelivers a message whose handler was cancelled: its partial effect must be undone,"
            yield "for example by one transaction around all of it, or be safe to repeat."
        elif self.on_top or len(self.ending.steps) > len({step.delivery.part for step in self.ending.steps}):
            yield "RocketMQ delivers at least once. Safe to repeat: an upsert by a key of the message, message.once()."
        else:
            yield "Between queues there is no order: use one queue, or a version in the message."

    def _name(self, part: QueueBatch) -> str:
        topic, queue_id = part.queue
        labels = [_label(self.messages[index]) for index in part.messages]
        names = ", ".join(labels[:3]) + (f" and {len(labels) - 3} more" if len(labels) > 3 else "")
        return f"{names} ({topic} queue {queue_id})"


class NotRepeatableError(AssertionError):
    """The effect of a handler depends on how often, or when, messages arrive. The text shows the shortest history."""

    def __init__(self, found: FailedHistory, result: RunResult) -> None:
        super().__init__("\n".join(["the handler's effect is not repeatable", *found.lines()]))
        self.result = result
        """The result of the undisturbed run of the group."""


def _label(message: Message) -> str:
    return message.keys or f"offset {message.queue_offset}"
