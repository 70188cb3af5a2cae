"""The daemon's side of one worker process of a handler: its requests, its responses, and its exceptions.

Requests and responses are picklable. Exceptions of the handler are sent to the daemon as names, texts and traceback,
not as objects. Unpickling an exception in the daemon would import the handler's modules and run their code there, and
fails for many exceptions. rmqd's reaction to an exception depends on the names of its classes, on its texts, and on the
attributes of rmqd's exception classes, such as Retry. All of these can be sent. `rebuild_error` creates a stand-in for
the original exception. The stand-in's class has base classes with the names of all base classes of the original, and
inherits from the first of them that belongs to Python or rmqd.
"""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final, Self

from rmqd.config.model.group_model import GroupConfig
from rmqd.consumer.handling.handler_threads import UnusableHandlerError
from rmqd.handler_api.batch import (
    AlreadyHandled,
    Batch,
    DeadLetter,
    Decision,
    InvalidPayloadError,
    ManualCommitBatch,
    OrderlyBatch,
    Retry,
    Suspend,
    TransactionEnd,
    leaf_exceptions,
)
from rmqd.handler_api.decisions import (
    WAIT_ATTRIBUTE,
    checked_field,
    checked_level,
    checked_seconds,
    reason_text,
    wait_seconds,
)
from rmqd.runtime.child_process import ChildGoneError, ChildProcess, ChildRefusedError
from rmqd.runtime.clock import Clock
from rmqd.runtime.logs.log_setup import LogSettings, log_settings
from rmqd.runtime.plain_text import RemoteFailure, name_of_class, text_of, traceback_of
from rmqd.wire.message_queue import Identity, MessageQueue
from rmqd.wire.messages.message import Message, identity_of_running_group

_OWN: Final[tuple[type[BaseException], ...]] = (Retry, DeadLetter, Suspend, AlreadyHandled, InvalidPayloadError)
_KINDS_KEPT: Final = 500

ClassNames = tuple[str, str]
"""The name of a class's module, and the name of the class."""


@dataclass(frozen=True, slots=True)
class RemoteError:
    """The picklable description of an exception that was raised in a worker process."""

    classes: tuple[ClassNames, ...]
    """The exception's class and all base classes, in the method resolution order."""
    text: str
    shown: str
    """The exception's `repr`."""
    traceback: str
    values: dict[str, Any] = field(default_factory=dict)
    """The attributes that rmqd reads from exceptions, such as the `delay_level` of Retry."""
    about: int | None = None
    """For AlreadyHandled: the index of its message in the batch. None for other exceptions and messages."""
    leaves: tuple[RemoteError, ...] = ()
    """The exceptions in an exception group and in its nested groups; empty for other exceptions."""


def describe_error(error: BaseException, batch: Sequence[Message]) -> RemoteError:
    """Return the description of an exception that the handler raised for this batch."""
    classes = tuple(
        (str(one.__module__), str(name_of_class(one))) for one in type(error).__mro__ if issubclass(one, BaseException)
    )
    values: dict[str, Any] = {}
    about = None
    if (seconds := wait_seconds(error)) is not None:
        values[WAIT_ATTRIBUTE] = seconds
    if isinstance(error, Retry):
        values["delay_level"] = checked_field(error, "delay_level", checked_level)
    if isinstance(error, DeadLetter):
        values["reason"] = checked_field(error, "reason", reason_text) or ""
    if isinstance(error, Suspend):
        values["seconds"] = checked_field(error, "seconds", checked_seconds)
    if isinstance(error, AlreadyHandled):
        named = checked_field(error, "message", id)
        about = next((index for index, one in enumerate(batch) if id(one) == named), None)
    leaves = (
        tuple(describe_error(one, batch) for one in leaf_exceptions(error))
        if isinstance(error, BaseExceptionGroup)
        else ()
    )
    return RemoteError(classes, text_of(error), text_of(error, repr), traceback_of(error), values, about, leaves)


def rebuild_error(what: RemoteError, batch: Sequence[Message]) -> BaseException:
    """Return a stand-in for the described exception (see the module). `batch` is the daemon's copy of the batch."""
    kind = _kind(what.classes)
    inside = (what.text, [rebuild_error(one, batch) for one in what.leaves]) if what.leaves else ()
    error: BaseException = kind.__new__(kind, *inside)
    attributes = {"told_text": what.text, "told_shown": what.shown, "told_traceback": what.traceback, **what.values}
    if what.about is not None:
        attributes["message"] = batch[what.about]
    for name, value in attributes.items():
        setattr(error, name, value)
    return error


class _StandIn(RemoteFailure):
    told_text = ""
    told_shown = ""

    def __str__(self) -> str:
        return self.told_text

    def __repr__(self) -> str:
        return self.told_shown


@lru_cache(maxsize=_KINDS_KEPT)
def _kind(classes: tuple[ClassNames, ...]) -> type[BaseException]:
    known = next((one for one in map(_known, classes) if one is not None), BaseException)
    inherited = {(one.__module__, one.__name__) for one in known.__mro__}
    kind: type[BaseException] = known
    for module, name in reversed([one for one in classes if one not in inherited]):
        kind = type(name, (kind,), {"__module__": module})
    module, name = classes[0]
    return type(name, (_StandIn, kind), {"__module__": module})


def _known(names: ClassNames) -> type[BaseException] | None:
    """Return the built-in exception or the exception class of rmqd with these names; None for other classes."""
    module, name = names
    if own := next((one for one in _OWN if (one.__module__, one.__name__) == names), None):
        return own
    kind = getattr(builtins, name, None) if module == "builtins" else None
    return kind if isinstance(kind, type) and issubclass(kind, BaseException) else None


@dataclass(frozen=True, slots=True)
class WorkerHandlerSpec:
    name: str
    """The group's key in the configuration."""
    group: str
    """The group's name at the brokers, including the namespace."""
    settings: GroupConfig
    memory_bytes: int
    """The memory limit of the process; -1 means no limit."""
    log: LogSettings


@dataclass(frozen=True, slots=True)
class BatchCall:
    """A request to a worker process to call the handler with a batch."""

    messages: tuple[Message, ...]
    message_queue: MessageQueue
    kind: type[Batch]
    is_revoked: bool
    identity: Identity
    """The identity of the group. Each call has it, because its cluster may be unknown when the process starts."""

    @classmethod
    def of(cls, batch: Batch) -> BatchCall:
        return cls(tuple(batch), batch.message_queue, type(batch), batch.revoked, identity_of_running_group())


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """The response to a BatchCall: the handler's decisions, and its exception if it raised one."""

    decisions: dict[int, tuple[Decision, RemoteError | None]]
    """By index in the batch: the decision without its error, and the description of the error."""
    error: RemoteError | None
    closing: TransactionEnd | None
    no_memory: tuple[int, ...]
    """The indexes of the messages whose error is a MemoryError, because the process reached its memory limit."""

    @classmethod
    def of(cls, batch: Batch, error: BaseException | None, *, is_limited: bool) -> CallOutcome:
        """Return the response for a batch whose call raised `error`. `is_limited`: whether a memory limit is set."""
        errors: dict[int, RemoteError] = {}

        def described(one: BaseException | None) -> RemoteError | None:
            if one is None:
                return None
            if id(one) not in errors:
                errors[id(one)] = describe_error(one, batch)
            return errors[id(one)]

        decided = dict(batch.decisions())
        raised_for = {index: decided[index].error if index in decided else error for index in range(len(batch))}
        return cls(
            {index: (replace(one, error=None), described(one.error)) for index, one in decided.items()},
            described(error),
            batch.closing if isinstance(batch, ManualCommitBatch) else None,
            tuple(index for index, one in raised_for.items() if is_limited and _has_no_memory(one)),
        )

    def apply_to(self, batch: Batch) -> BaseException | None:
        """Apply the handler's decisions to the daemon's batch. Return the handler's exception; None if none."""
        errors: dict[int, BaseException] = {}

        def rebuilt(one: RemoteError | None) -> BaseException | None:
            if one is None:
                return None
            if id(one) not in errors:
                errors[id(one)] = rebuild_error(one, batch)
            return errors[id(one)]

        for index, (one, error) in self.decisions.items():
            batch.decide(index, replace(one, error=rebuilt(error)))
        if isinstance(batch, ManualCommitBatch):
            batch.close(self.closing)
        return rebuilt(self.error)


def _has_no_memory(error: BaseException | None) -> bool:
    return error is not None and any(isinstance(one, MemoryError) for one in leaf_exceptions(error))


MODULE: Final = "rmqd.plugins.worker_processes.handler_main"
PARTIAL_RESULT_SECONDS: Final = 1.0  # time limit for the decisions of a process whose call hangs
POLL_SECONDS: Final = 0.2  # interval between checks of an orderly queue's lock during a call


class HandlerProcess(ChildProcess[None]):
    """A worker process. Create it with `build`, then use `start`, `call` for each batch, and `end` or `dispose`."""

    keeps_calls_open = False
    """Whether the handler has the method `end_calls`. The request "end_calls" calls it."""
    _log: LogSettings

    @classmethod
    async def build(cls, spec: WorkerHandlerSpec) -> Self:
        """Start a process, and create the handler in it. Raises ChildNotUsableError."""
        process = await cls.begin(MODULE)
        process._log = log_settings()
        spec = replace(spec, log=process._log)
        process.keeps_calls_open = await process.ask_to_start("the handler's import", "build", spec)
        return process

    async def start(self) -> None:
        """Call the handler's `start`, without a time limit. Raises ChildNotUsableError if it fails."""
        await self.ask_to_start("the handler's start", "start", limit_seconds=None)

    async def call(self, batch: Batch, clock: Clock) -> CallOutcome:
        """Call the handler with a batch. Raises ChildGoneError if the process ends, and UnusableHandlerError."""
        if (now := log_settings()) is not self._log:
            self._log = now
            self.post("log", now)
        call = BatchCall.of(batch)
        try:
            if isinstance(batch, OrderlyBatch):
                return await self._call_under_lock(batch, call, clock)
            outcome: CallOutcome = await self.ask("call", call)
        except ChildRefusedError as error:
            raise UnusableHandlerError(str(error)) from None
        return outcome

    async def decisions_so_far(self) -> CallOutcome | None:
        """Return the decisions of the running call so far; None if no call runs, or the process does not answer."""
        with suppress(ChildGoneError, TimeoutError):
            async with asyncio.timeout(PARTIAL_RESULT_SECONDS):
                answer: CallOutcome | None = await self.ask("so_far")
                return answer
        return None

    async def _call_under_lock(self, batch: OrderlyBatch, call: BatchCall, clock: Clock) -> CallOutcome:
        """Call the handler with an orderly batch, and notify the process if the queue's lock is lost meanwhile."""
        asking = asyncio.create_task(self.ask("call", call), name="call in the handler's process")
        is_reported = call.is_revoked
        try:
            while not asking.done():
                await clock.wait((asking,), timeout=POLL_SECONDS)
                if batch.revoked and not is_reported:
                    is_reported = True
                    self.post("revoke")
            outcome: CallOutcome = asking.result()
            return outcome
        finally:
            asking.cancel()
