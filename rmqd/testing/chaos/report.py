"""A history that shows an effect to be not repeatable, as a timeline for a person."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rmqd.testing.chaos.history import Delivery, Part
from rmqd.testing.chaos.state import Path, differences, settled, shown
from rmqd.testing.chaos.trial import Ending, Step
from rmqd.testing.result import RunResult
from rmqd.wire.messages.message import Message

Compared = tuple[Any, Mapping[int, str]]
"""A settled state, and what became of the messages."""


@dataclass(frozen=True, slots=True)
class Found:
    """A history, what it left, and what it should have left."""

    messages: Sequence[Message]
    ending: Ending
    expected: Compared
    got: Compared
    leave_out: Collection[Path]
    on_top: bool = False
    """Whether it came on top of an undisturbed run: what was written cannot be put back."""

    def lines(self) -> list[str]:
        """The report."""
        return [
            f"{'after an undisturbed run' if self.on_top else 'from the beginning'}:",
            *self._timeline(),
            "so it leaves something else than undisturbed:",
            *(f"  {line}" for line in self._differences()),
            *self._advice(),
        ]

    def _timeline(self) -> Iterator[str]:
        seen: dict[Part, Step] = {}
        names = [self._name(step.delivery.part) for step in self.ending.steps]
        width = max(map(len, names), default=0)
        for number, (step, name) in enumerate(zip(self.ending.steps, names, strict=True), start=1):
            part = step.delivery.part
            again = _why_again(seen[part]) if part in seen else "again: " if self.on_top else ""
            yield f"  {number}. {name:<{width}}  {again}{step.outcome}"
            yield f"     {'':<{width}}  leaves {shown(settled(step.state, self.leave_out))}"
            seen[part] = step

    def _differences(self) -> Iterator[str]:
        yield from differences(self.expected[0], self.got[0])
        for index, fate in self.got[1].items():
            expected = self.expected[1].get(index, "handled")
            if fate != expected:
                yield f"{_label(self.messages[index])} is {fate}, in place of {expected}"

    def _advice(self) -> Iterator[str]:
        if any(step.delivery.how == "killed" for step in self.ending.steps):
            yield "What a handler keeps in memory dies with its process: an effect has to be there before it returns."
            yield "And it has to be safe to do again by a process that knows nothing of it, or to be one transaction."
        elif any(step.delivery.how != "whole" for step in self.ending.steps):
            yield "RocketMQ delivers a message again whose handler was cut: what it did before that has to be undone,"
            yield "as by one transaction around all of it, or to be safe to do again."
        elif any(self.ending.steps.count(step) > 1 for step in self.ending.steps) or self._has_repeats():
            yield "RocketMQ delivers at least once. Safe to repeat: an upsert by a key of the message, message.once()."
        else:
            yield "Between queues there is no order: what depends on it needs one queue, or a version in the message."

    def _has_repeats(self) -> bool:
        parts = [step.delivery.part for step in self.ending.steps]
        return self.on_top or len(set(parts)) < len(parts)

    def _name(self, part: Part) -> str:
        topic, queue_id = part.queue
        labels = [_label(self.messages[index]) for index in part.messages]
        told = ", ".join(labels[:3]) + (f" and {len(labels) - 3} more" if len(labels) > 3 else "")
        return f"{told} ({topic} queue {queue_id})"


class NotRepeatableError(AssertionError):
    """The effect of a handler depends on how often, or when, messages come. The text has the shortest history."""

    def __init__(self, found: Found, result: RunResult) -> None:
        super().__init__("\n".join(["the handler's effect is not repeatable", *found.lines()]))
        self.result = result
        """What came of the undisturbed run of the group."""


def _why_again(before: Step) -> str:
    one: Delivery = before.delivery
    if one.how == "whole":
        return "again, as its offset was not committed: "
    return "again: "


def _label(message: Message) -> str:
    return message.keys or f"offset {message.queue_offset}"
