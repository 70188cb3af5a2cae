"""Handlers that run the body of each message, a line of Python. Called in the tests' process or in worker processes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel

import rmqd
from rmqd import AlreadyHandled, Batch, DeadLetter, Depends, Message, Retry, Suspend

SYNC = f"{__name__}:handle"
ASYNC = f"{__name__}:handle_async"
TYPED = f"{__name__}:handle_typed"
NOTING = f"{__name__}:Noting"
OPENED = f"{__name__}:handle_opened"
STARTING = f"{__name__}:Starting"
GATHERING = f"{__name__}:Gathering"
BADLY_GATHERING = f"{__name__}:BadlyGathering"
MIDDLEWARE = f"{__name__}:noting_middleware"


class OwnError(LookupError):
    """An error that pickle restores wrongly: its constructor takes another argument than it passes on."""

    def __init__(self, number: int) -> None:
        super().__init__(f"no {number}")
        self.number = number


class DeeperError(OwnError, TypeError):
    """Inherits from two built-in exceptions."""


class OwnRetry(Retry):
    """Sets its own delay level."""

    delay_level = 5

    def __init__(self) -> None:
        Exception.__init__(self, "own")


DECISIONS = {one.__name__: one for one in (AlreadyHandled, DeadLetter, Retry, Suspend)}
NAMES = {**DECISIONS, "OwnError": OwnError, "DeeperError": DeeperError, "OwnRetry": OwnRetry, "os": os}


def handle(batch: Batch) -> None:
    """Run the line of each message."""
    for message in batch:
        exec(message.body.decode(), NAMES | {"batch": batch, "message": message})


async def handle_async(batch: Batch) -> None:
    """Like `handle`, but in the event loop."""
    handle(batch)


class Line(BaseModel):
    """A body of a typed handler."""

    line: str


@rmqd.handler(json=Line)
def handle_typed(line: Line, message: Message) -> None:
    """Like `handle`, but message by message."""
    exec(line.line, NAMES | {"message": message})


def opened_file() -> str:
    """A dependency that notes the process when it is created."""
    note("opened", "")
    return "open"


def note(event: str, key: str) -> None:
    """Write a line of this process to the file that NOTES names."""
    with Path(os.environ["NOTES"]).open("a") as file:
        file.write(f"{event} {key} {os.getpid()}\n")


def notes(path: Path) -> list[list[str]]:
    """The lines so far: event, key and process of each."""
    return [line.split(" ") for line in path.read_text().splitlines()] if path.exists() else []


class Noting:
    """Runs the line of each message, and notes before and after."""

    async def start(self) -> None:
        """Note the process."""
        note("start", "")

    async def stop(self) -> None:
        """Note the process again."""
        note("stop", "")

    def handle(self, batch: Batch) -> None:
        """Synchronous, so it is called in a thread."""
        for message in batch:
            note("begin", message.keys or "")
            exec(message.body.decode(), NAMES | {"batch": batch, "message": message})
            note("end", message.keys or "")


@rmqd.handler(json=Line)
async def handle_opened(line: Line, opened: Annotated[str, Depends(opened_file)], message: Message) -> None:
    """Has a dependency that is opened once in each process."""
    note(opened, message.keys or "")


class Starting:
    """Does not start while a file exists."""

    class Options(BaseModel):
        """The file."""

        path: Path

    def __init__(self, options: Options) -> None:
        self._path = options.path

    def start(self) -> None:
        """Raises RuntimeError if the file exists."""
        if self._path.exists():
            raise RuntimeError("no database")

    def handle(self, batch: Batch) -> None:
        """Run the line of each message."""
        handle(batch)


class Gathering:
    """Keeps each call open until `end_calls`."""

    def __init__(self) -> None:
        self._end = asyncio.Event()

    async def handle(self, batch: Batch) -> None:
        """Note before and after."""
        for message in batch:
            note("begin", message.keys or "")
        await self._end.wait()
        self._end.clear()
        for message in batch:
            note("end", message.keys or "")

    def end_calls(self) -> None:
        """Note this, and end the call."""
        note("end_calls", "")
        self._end.set()


class BadlyGathering(Gathering):
    """Cannot end its calls."""

    def end_calls(self) -> None:
        """Fail."""
        raise RuntimeError("no file")


def noting_middleware(batch: Batch, call_next: Callable[[Batch], None]) -> None:
    """Note before and after."""
    note("before", "")
    call_next(batch)
    note("after", "")
