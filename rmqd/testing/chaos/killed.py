"""Runs a part of a history in a separate process, which is killed with kill -9 during the last call.

The handler's writes to other systems stay, but its memory is lost: the next part of the history runs in a new process.
This finds handlers that repeat work that was done before the kill, and handlers that record a message as done before
its work is done.
"""

from __future__ import annotations

import asyncio
import pickle
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol, Self, TypeVar

from rmqd.consumer.consumer_options import ConsumerOptions
from rmqd.runtime import child_process
from rmqd.runtime.plain_text import describe, duration
from rmqd.testing.chaos.chaos_history import ChaosDelivery
from rmqd.testing.test_group import GroupToRun
from rmqd.wire.messages.message import Message

MODULE: Final = "rmqd.testing.chaos.killed_main"
CALL_SECONDS: Final = 60.0


T = TypeVar("T")


class RunsInLoop(Protocol):
    """Runs a coroutine in the handlers' event loop."""

    def __call__(self, work: Callable[[], Coroutine[Any, Any, T]], timeout_seconds: float, /) -> T: ...


class NoProcessError(Exception):
    """The handler cannot be called in a separate process. The text gives the reason, to be appended to a sentence."""


@dataclass(frozen=True, slots=True)
class KillSpec:
    """The group and messages for a new process. Picklable if the handler's options are picklable."""

    group: GroupToRun
    """The group, without its handler object: the new process imports the handler."""
    state_dir: str
    messages: Sequence[Message]
    patience_seconds: float


@dataclass(frozen=True, slots=True)
class DeliveryOutcome:
    """The outcome of a delivery as text, and the outcome of each message so far, by its index."""

    outcome: str
    fates: Mapping[int, str]
    lines: int
    """The number of the author's lines that the call has run."""


@dataclass(frozen=True, slots=True)
class KillPlace:
    """The location at which the process is about to die."""

    place: str


@dataclass(slots=True)
class ProcessResults:
    """The results that a process reported before it ended, and the state after each delivery."""

    outcomes: list[str] = field(default_factory=list)
    states: list[Any] = field(default_factory=list)
    fates: dict[int, str] = field(default_factory=dict)
    lines: int = 0

    def add(self, result: DeliveryOutcome | KillPlace) -> None:
        if isinstance(result, KillPlace):
            self.outcomes.append(f"killed (kill -9) {result.place}")
        else:
            self.outcomes.append(result.outcome)
            self.fates.update(result.fates)
            self.lines = max(self.lines, result.lines)


class KilledProcess(child_process.ChildProcess[KillPlace]):
    """A process that makes deliveries until it kills itself. Just before, it reports the location as a `KillPlace`."""

    snapshot_type = KillPlace

    @classmethod
    async def build(cls, spec: KillSpec) -> Self:
        """Start a process with the handler. Raises NoProcessError."""
        try:
            process = await cls.begin(MODULE, is_quiet=True)
            await process.ask_to_start("the handler's start", "build", spec)
        except child_process.ChildNotUsableError as error:
            raise NoProcessError(str(error)) from None
        return process

    async def deliver(self, delivery: ChaosDelivery) -> DeliveryOutcome | KillPlace:
        """Make a delivery. Raises NoProcessError if that fails."""
        try:
            async with asyncio.timeout(CALL_SECONDS):
                call: DeliveryOutcome = await self.ask("deliver", delivery)
                return call
        except child_process.ChildRefusedError as error:
            reason = str(error)
        except child_process.ChildGoneError:
            if self.last_snapshot is not None:
                return self.last_snapshot
            reason = f"the process {await self.how()}"
        except TimeoutError:
            reason = f"a call did not end in {duration(CALL_SECONDS)}"
        raise NoProcessError(reason)

    async def stop(self) -> None:
        """Stop the handler and the process. Raises NoProcessError if that fails."""
        if (problem := await self.end()) is not None:
            raise NoProcessError(f"the process {problem}")


@dataclass(frozen=True, slots=True)
class ProcessRunner:
    """Calls a group's handler in separate processes, which are supervised in an event loop."""

    group: GroupToRun
    options: ConsumerOptions
    run_in_loop: RunsInLoop

    def run(
        self,
        messages: Sequence[Message],
        deliveries: Sequence[ChaosDelivery],
        look: Callable[[], Any],
        patience_seconds: float,
    ) -> ProcessResults:
        """Make these deliveries in a new process, and call `look` after each. Only the last delivery may be `killed`.

        Raises NoProcessError if the handler cannot run in another process, or the process fails.
        """
        if not _can_be_found(self.group):
            raise NoProcessError(
                "another process cannot import the handler; use its name, or a function or class at the top of a module"
            )
        state_dir = str(Path(self.options.local_offsets_directory).parent)
        spec = KillSpec(replace(self.group, given=None), state_dir, messages, patience_seconds)
        try:
            pickle.dumps(spec)
        except Exception as error:  # a value's own pickling may raise any exception
            raise NoProcessError(f"the handler's options cannot be sent to a process: {describe(error)}") from error
        ended, limit = ProcessResults(), child_process.START_SECONDS  # each step also has a shorter limit
        process = self.run_in_loop(lambda: KilledProcess.build(spec), limit)
        try:
            for one in deliveries:
                ended.add(self.run_in_loop(partial(process.deliver, one), limit))
                ended.states.append(look())
            if deliveries[-1].how != "killed":
                self.run_in_loop(process.stop, limit)
        finally:
            self.run_in_loop(process.dispose, limit)
        return ended


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
