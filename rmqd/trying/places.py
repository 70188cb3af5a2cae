"""The handler's source line that raised, hangs or crashed: not a line of rmqd or of a library."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

_OWN_FOLDER: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_STANDARD: Final = tuple(f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "platstdlib"))
_LIBRARIES: Final = re.compile(r"[/\\](?:site|dist)-packages[/\\]")
_FAULT_LINE: Final = re.compile(r'^  File "(.*)", line (\d+) in (.*)$')


class Frame(NamedTuple):
    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


@dataclass(frozen=True, slots=True)
class Author:
    """Recognises the lines of a handler by the folder of its package or module."""

    folder: str

    @classmethod
    def of(cls, function: Callable[..., object]) -> Author:
        """Return the author of a function."""
        while hasattr(function, "func") or hasattr(function, "__wrapped__"):  # functools.partial, and decorators
            function = getattr(function, "func", None) or function.__wrapped__  # type: ignore[attr-defined]
        module = sys.modules.get(getattr(function, "__module__", None) or type(function).__module__)
        top = None if module is None else sys.modules.get(module.__name__.partition(".")[0])
        file = getattr(top, "__file__", None) or getattr(module, "__file__", None) or ""
        return cls(os.path.dirname(os.path.abspath(file)) + os.sep if file else "")

    def place(self, innermost_first: Sequence[Frame]) -> Frame | None:
        """Return the innermost line of the author; if there is none, the innermost line outside rmqd."""
        for is_his in (self.wrote, lambda frame: not frame.file.startswith(_OWN_FOLDER)):
            for frame in innermost_first:
                if is_his(frame):
                    return frame
        return None

    def wrote(self, frame: Frame) -> bool:
        """Return whether a line belongs to the author."""
        file = os.path.abspath(frame.file)
        if not self.folder or not file.startswith(self.folder) or file.startswith(_OWN_FOLDER):
            return False
        inner = file[len(self.folder) - 1 :]  # a project's folder may contain its libraries
        return not _LIBRARIES.search(inner) and not file.startswith(_STANDARD)


def place_of(error: BaseException, author: Author) -> str | None:
    """Return the line where an exception was raised."""
    frames = [Frame(one.filename, one.lineno or 0, one.name) for one in traceback.extract_tb(error.__traceback__)]
    frame = author.place(frames[::-1])
    return None if frame is None else str(frame)


def place_of_fault(stacks: str, author: Author) -> str | None:
    """Return the author's line where a process is, from the stacks of all threads that Python's faulthandler wrote."""
    for stack in re.split(r"\n(?=(?:Current thread|Thread) )", stacks):
        lines = filter(None, map(_FAULT_LINE.match, stack.splitlines()))
        for frame in (Frame(one[1], int(one[2]), one[3]) for one in lines):
            if author.wrote(frame):
                return str(frame)
    return None
