"""The current stacks of the process, in place of Java's jstack."""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any, Final

MOST_CHARACTERS: Final = 128 * 1024
MOST_FRAMES: Final = 40
MOST_NAMES: Final = 20


def stacks() -> str:
    """Return the stacks of all tasks of the running event loop, and of all threads. Equal stacks are grouped.

    The size is limited; the last line counts the omitted stacks.
    """
    tasks = sorted(asyncio.all_tasks(), key=lambda task: task.get_name())
    named = ((task.get_name(), _lines(_awaiting(task.get_coro()))) for task in tasks)
    frames = sys._current_frames()
    threads = (
        (thread.name, _lines(_calling(frames[thread.ident])))
        for thread in threading.enumerate()
        if thread.ident in frames
    )
    return _bounded([*_together(f"of {len(tasks)} tasks", named), *_together(f"of {len(frames)} threads", threads)])


def _awaiting(coroutine: Any) -> Iterator[tuple[FrameType, int]]:
    """Yield the frames of a coroutine, the outermost first: each one awaits the next."""
    while coroutine is not None:
        for prefix, waits_for in (("cr", "cr_await"), ("gi", "gi_yieldfrom"), ("ag", "ag_await")):
            if hasattr(coroutine, waits_for):
                frame, after = getattr(coroutine, f"{prefix}_frame"), getattr(coroutine, waits_for)
                break
        else:
            return
        if frame is not None:
            yield frame, frame.f_lineno
        coroutine = after


def _calling(frame: FrameType) -> Iterable[tuple[FrameType, int]]:
    return list(traceback.walk_stack(frame))[::-1]


def _lines(frames: Iterable[tuple[FrameType, int]]) -> tuple[str, ...]:
    """Return a stack's lines, the innermost frame first, as in Java."""
    lines = [f"    at {frame.f_code.co_qualname} ({frame.f_code.co_filename}:{line})" for frame, line in frames][::-1]
    left_out = len(lines) - MOST_FRAMES
    return (*lines[:MOST_FRAMES], f"    and {left_out} more") if left_out > 0 else tuple(lines)


def _together(what: str, stacks: Iterable[tuple[str, tuple[str, ...]]]) -> Iterator[str]:
    """Yield one text for each different stack, with the names of all tasks or threads that have it."""
    names: dict[tuple[str, ...], list[str]] = {}
    for name, lines in stacks:
        names.setdefault(lines, []).append(name)
    for lines, same in names.items():
        rest = f" and {len(same) - MOST_NAMES} more" if len(same) > MOST_NAMES else ""
        yield "\n".join([f"{len(same)} {what}: {', '.join(same[:MOST_NAMES])}{rest}", *lines])


def _bounded(texts: list[str]) -> str:
    size = 0
    for number, text in enumerate(texts):
        size += len(text) + 2
        if size > MOST_CHARACTERS:
            return "\n\n".join([*texts[:number], f"{len(texts) - number} more stacks are left out"])
    return "\n\n".join(texts)
