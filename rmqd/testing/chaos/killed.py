"""A part of a history that ends with kill -9: its calls are made in a process of their own, which dies in the last.

What the handler wrote elsewhere by then stays, and what it kept in memory is gone: whatever comes next is made in a
process that knows nothing of it. So a handler is caught that does something twice which it had done before it died, or
that had taken a message and not yet done what is to be done with it.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rmqd.config.model.group import GroupConfig
from rmqd.consumer.options import ConsumerOptions
from rmqd.testing.chaos.history import Delivery
from rmqd.testing.group import GroupToRun
from rmqd.wire.messages.message import Message

MODULE: Final = "rmqd.testing.chaos.killed_main"
BEHIND_ITS_END: Final = 0  # the moment after the last line, where the offset is not committed yet
LIFE_SECONDS: Final = 30.0  # that a process may take for its calls


class NoProcessError(Exception):
    """The handler cannot be called in a process of its own."""


@dataclass(frozen=True, slots=True)
class KillOrder:
    """What a process is to do. All of it pickles."""

    import_path: tuple[str, ...]
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

    @classmethod
    def of(cls, group: GroupToRun, options: ConsumerOptions, package: str) -> OtherProcesses | None:
        """None where another process could not find the handler: a closure, an object, what a test made."""
        return cls(group, options, package) if _can_be_found(group) else None

    def run(
        self,
        messages: Sequence[Message],
        deliveries: Sequence[Delivery],
        look: Callable[[], Any],
        patience_seconds: float,
    ) -> Ended:
        """Make these deliveries in a process; one with `how` "killed" is the last. `look` is asked after each.

        Raises NoProcessError where the process does not do what it should.
        """
        last = deliveries[-1]
        moment = last.cut_at if last.how == "killed" else None
        whole = [Delivery(one.part) for one in deliveries]
        state_dir = str(Path(self.options.local_offsets_directory).parent)
        path = tuple(sys.path)
        order = KillOrder(
            path,
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
        for answer in _answers(pickle.dumps(order)):
            if isinstance(answer, Died):
                ended.outcomes.append(f"killed (kill -9) {answer.place}")
                ended.lines = answer.lines
            elif isinstance(answer, Called):
                ended.outcomes.append(answer.outcome)
                ended.fates.update(answer.fates)
            ended.states.append(look())
        if len(ended.outcomes) < len(deliveries):
            raise NoProcessError
        return ended


def _answers(order: bytes) -> Iterator[object]:
    """What a process tells, until it ends; it goes on when the next answer is asked for."""
    ours, theirs = os.pipe()
    try:
        process = subprocess.Popen(
            (sys.executable, "-m", MODULE, str(theirs)),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(theirs,),
        )
    finally:
        os.close(theirs)
    timer = threading.Timer(LIFE_SECONDS, process.kill)
    timer.start()
    try:
        with os.fdopen(ours, "rb") as answers, process:
            assert process.stdin is not None
            try:
                process.stdin.write(order)
                process.stdin.flush()
                while (answer := pickle.load(answers)) is not None:
                    yield answer
                    if isinstance(answer, Called):
                        process.stdin.write(b"\n")
                        process.stdin.flush()
            except (EOFError, OSError, pickle.UnpicklingError):
                return  # it has ended
    finally:
        timer.cancel()
        process.kill()


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
