"""Runs a part of a history that ends with kill -9, in a separate process that dies in its last call.

The handler's writes to other systems stay, and its memory is lost: the next part runs in a new process without that
memory. This catches handlers that repeat work that was done before the death, and handlers that remember a message as
done before they have done the work.
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

from rmqd.config.model.group_model import GroupConfig
from rmqd.consumer.consumer_options import ConsumerOptions
from rmqd.runtime.plain_text import describe
from rmqd.testing.chaos.chaos_history import ChaosDelivery
from rmqd.testing.test_group import GroupToRun
from rmqd.wire.messages.message import Message

MODULE: Final = "rmqd.testing.chaos.killed_main"
BEHIND_ITS_END: Final = 0  # kill after the handler's last line, before the offset is committed
LIFE_SECONDS: Final = 60.0  # limit for the start of a process, which is slow on a busy machine, and its calls
SIZE_BYTES: Final = 4  # size of the length field before each answer


class NoProcessError(Exception):
    """The handler cannot be called in a separate process. The text gives the reason, as the end of a sentence."""


@dataclass(frozen=True, slots=True)
class KillSpec:
    """The task of a process. Picklable if the handler's options are."""

    name: str
    settings: GroupConfig
    state_dir: str
    package: str
    messages: Sequence[Message]
    deliveries: Sequence[ChaosDelivery]
    moment: int | None
    """The line of the last call before which it dies, from 1; BEHIND_ITS_END; None: it does not die."""
    patience_seconds: float


@dataclass(frozen=True, slots=True)
class KilledCall:
    """The outcome of a delivery, and the outcomes of the messages so far, by their index."""

    outcome: str
    fates: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class Died:
    """The location at which the process is about to die."""

    place: str
    lines: int
    """The number of the author's lines that the call has run."""


@dataclass(slots=True)
class Ended:
    """The results of a process before it ended."""

    outcomes: list[str] = field(default_factory=list)
    states: list[Any] = field(default_factory=list)
    fates: dict[int, str] = field(default_factory=dict)
    lines: int = 0


@dataclass(frozen=True, slots=True)
class OtherProcesses:
    """Calls a group's handler in separate processes."""

    group: GroupToRun
    options: ConsumerOptions
    package: str

    def run(
        self,
        messages: Sequence[Message],
        deliveries: Sequence[ChaosDelivery],
        look: Callable[[], Any],
        patience_seconds: float,
    ) -> Ended:
        """Make these deliveries in a process; a delivery with `how` "killed" is the last. `look` is called after each.

        Raises NoProcessError if no process can be used, or it fails.
        """
        if not _can_be_found(self.group):
            raise NoProcessError(
                "another process cannot import it; use a handler's name, or a function or class at the top of a module"
            )
        last = deliveries[-1]
        moment = last.cut_at if last.how == "killed" else None
        whole = [ChaosDelivery(one.part) for one in deliveries]
        state_dir = str(Path(self.options.local_offsets_directory).parent)
        spec = KillSpec(
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
        with contextlib.closing(_answers(_pickled(spec))) as answers:  # also ends the process if `look` raises
            for answer in answers:
                if isinstance(answer, Died):
                    ended.outcomes.append(f"killed (kill -9) {answer.place}")
                    ended.lines = answer.lines
                elif isinstance(answer, KilledCall):
                    ended.outcomes.append(answer.outcome)
                    ended.fates.update(answer.fates)
                ended.states.append(look())
        if len(ended.outcomes) < len(deliveries):
            raise NoProcessError(f"it ended unexpectedly, or did not end within {LIFE_SECONDS:.0f} s")
        return ended


def _pickled(spec: KillSpec) -> bytes:
    """Return the import path, followed by the order, whose values may need modules on that path."""
    try:
        return pickle.dumps(tuple(sys.path)) + pickle.dumps(spec)
    except Exception as error:  # any exception of a value's own pickling
        raise NoProcessError(f"its options cannot be sent to another process: {describe(error)}") from error


def _answers(spec: bytes) -> Generator[KilledCall | Died, None, None]:
    """Yield the answers of a process until it ends. It continues when the next answer is requested.

    It has its own session, so that processes forked by the handler end with it.
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
        timer = threading.Timer(LIFE_SECONDS, _kill, (process,))  # also ends a write to stdin that blocks
        timer.start()
        try:
            assert process.stdin is not None
            process.stdin.write(spec)
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
            return  # the process has ended, or is ended here
        finally:
            timer.cancel()
            _kill(process)
            if process.stdin is not None:
                with contextlib.suppress(OSError):
                    process.stdin.close()
            process.wait()


def _answer(answers: FileIO, deadline: float) -> KilledCall | Died | None:
    """Return the next answer. Raises EOFError if there is none before the deadline."""
    size = int.from_bytes(_read(answers, SIZE_BYTES, deadline))
    answer: KilledCall | Died | None = pickle.loads(_read(answers, size, deadline))
    return answer


def _read(answers: FileIO, size: int, deadline: float) -> bytes:
    """Return this number of bytes. Never block: a process that left the session may keep the other end open forever."""
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
    """Kill the process, and processes that it has forked."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS: PermissionError if all are dead
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
