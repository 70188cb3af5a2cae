"""A part of a history that ends with kill -9: its calls are made in a process of their own, which dies in the last.

What the handler wrote elsewhere by then stays, and what it kept in memory is gone: whatever comes next is made in a
process that knows nothing of it. So a handler is caught that does something twice which it had done before it died, or
that had taken a message and not yet done what is to be done with it.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import Any, Final

from rmqd.config.model.group import GroupConfig
from rmqd.consumer.options import ConsumerOptions
from rmqd.plain_text import describe
from rmqd.testing.chaos.history import Delivery
from rmqd.testing.group import GroupToRun
from rmqd.wire.messages.message import Message

MODULE: Final = "rmqd.testing.chaos.killed_main"
BEHIND_ITS_END: Final = 0  # the moment after the last line, where the offset is not committed yet
LIFE_SECONDS: Final = 60.0  # that a process may take for its start, which is slow on a busy machine, and its calls
SIZE_BYTES: Final = 4  # before each answer


class NoProcessError(Exception):
    """The handler cannot be called in a process of its own: the text says why, as the end of a sentence."""


@dataclass(frozen=True, slots=True)
class KillOrder:
    """What a process is to do. It pickles where the options of the handler do."""

    name: str
    settings: GroupConfig
    state_dir: str
    package: str
    messages: Sequence[Message]
    deliveries: Sequence[Delivery]
    moment: int | None
    """Before which of the lines that the last call runs it dies, from 1; BEHIND_ITS_END; None: not at all."""
    patience_seconds: float


@dataclass(frozen=True, slots=True)
class Called:
    """What came of a delivery, and what became of the messages up to it, by their index."""

    outcome: str
    fates: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class Died:
    """Where the process is about to die."""

    place: str
    lines: int
    """How many of the author's lines the call has run."""


@dataclass(slots=True)
class Ended:
    """What a process did before it ended."""

    outcomes: list[str] = field(default_factory=list)
    states: list[Any] = field(default_factory=list)
    fates: dict[int, str] = field(default_factory=dict)
    lines: int = 0


@dataclass(frozen=True, slots=True)
class OtherProcesses:
    """Calls a group's handler in other processes."""

    group: GroupToRun
    options: ConsumerOptions
    package: str

    def run(
        self,
        messages: Sequence[Message],
        deliveries: Sequence[Delivery],
        look: Callable[[], Any],
        patience_seconds: float,
    ) -> Ended:
        """Make these deliveries in a process; one with `how` "killed" is the last. `look` is asked after each.

        Raises NoProcessError where there can be none, or it does not do what it should.
        """
        if not _can_be_found(self.group):
            raise NoProcessError(
                "no other process can import it; give a handler's name, or a function or class at the top of a module"
            )
        last = deliveries[-1]
        moment = last.cut_at if last.how == "killed" else None
        whole = [Delivery(one.part) for one in deliveries]
        state_dir = str(Path(self.options.local_offsets_directory).parent)
        order = KillOrder(
            self.group.name,
            self.group.settings,
            state_dir,
            self.package,
            messages,
            whole,
            moment,
            patience_seconds,
        )
        ended = Ended()
        with contextlib.closing(_answers(_pickled(order))) as answers:  # ends the process also where `look` raises
            for answer in answers:
                if isinstance(answer, Died):
                    ended.outcomes.append(f"killed (kill -9) {answer.place}")
                    ended.lines = answer.lines
                elif isinstance(answer, Called):
                    ended.outcomes.append(answer.outcome)
                    ended.fates.update(answer.fates)
                ended.states.append(look())
        if len(ended.outcomes) < len(deliveries):
            raise NoProcessError(f"it ended by itself, or did not end within {LIFE_SECONDS:.0f} s")
        return ended


def _pickled(order: KillOrder) -> bytes:
    """The import path, and behind it the order, whose values may be of modules that only that path finds."""
    try:
        return pickle.dumps(tuple(sys.path)) + pickle.dumps(order)
    except Exception as error:  # whatever a value's own way of being pickled raises
        raise NoProcessError(f"its options cannot be sent to another process: {describe(error)}") from error


def _answers(order: bytes) -> Generator[Called | Died, None, None]:
    """What a process tells, until it ends; it goes on when the next answer is asked for.

    It has a session of its own, so that what the handler has forked ends with it.
    """
    deadline = time.monotonic() + LIFE_SECONDS
    ours, theirs = os.pipe()
    with os.fdopen(ours, "rb", buffering=0) as answers:
        try:
            process = subprocess.Popen(
                (sys.executable, "-m", MODULE, str(theirs)),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(theirs,),
                start_new_session=True,
            )
        finally:
            os.close(theirs)
        timer = threading.Timer(LIFE_SECONDS, _kill, (process,))  # it may be writing to the process that is waited for
        timer.start()
        try:
            assert process.stdin is not None
            process.stdin.write(order)
            process.stdin.flush()
            while (answer := _answer(answers, deadline)) is not None:
                if isinstance(answer, Died):
                    _kill(process)
                    yield answer
                    return
                yield answer
                process.stdin.write(b"\n")
                process.stdin.flush()
            process.wait(max(0.0, deadline - time.monotonic()))
        except (EOFError, OSError, subprocess.TimeoutExpired):
            return  # it has ended, or is ended here
        finally:
            timer.cancel()
            _kill(process)
            if process.stdin is not None:
                with contextlib.suppress(OSError):
                    process.stdin.close()
            process.wait()


def _answer(answers: FileIO, deadline: float) -> Called | Died | None:
    """The next answer. Raises EOFError where none comes until the deadline."""
    size = int.from_bytes(_read(answers, SIZE_BYTES, deadline))
    answer: Called | Died | None = pickle.loads(_read(answers, size, deadline))
    return answer


def _read(answers: FileIO, size: int, deadline: float) -> bytes:
    """So many bytes. A process that has left its session may hold the other end open for ever, so no read waits so."""
    found = b""
    with selectors.DefaultSelector() as selector:
        selector.register(answers, selectors.EVENT_READ)
        while len(found) < size:
            if not selector.select(max(0.0, deadline - time.monotonic())):
                raise EOFError
            if not (more := answers.read(size - len(found))):
                raise EOFError
            found += more
    return found


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the process, and what it has forked."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS: the latter where all of them are dead
        os.killpg(process.pid, signal.SIGKILL)


def _can_be_found(group: GroupToRun) -> bool:
    handler = group.settings.handler
    if handler is None:
        return False
    if group.given is None:
        return True
    module, _, attributes = handler.plugin.partition(":")
    found: object = sys.modules.get(module)
    for attribute in attributes.split("."):
        found = getattr(found, attribute, None)
    return found is group.given
