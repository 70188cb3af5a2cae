"""One worker process of a handler, as seen by the daemon: its requests, its responses, and its exceptions.

Requests and responses are picklable. Exceptions of the process are sent to the daemon as names, texts and traceback,
not as objects. Unpickling an object in the daemon would import the handler's modules and run their code there, and it
fails for many exceptions. rmqd's reaction to an exception depends on the names of its classes, on its texts, and on the
values of rmqd's own classes (Retry and the others). All of these can be sent. `rebuild_error` makes a stand-in. Its
class has the names of all base classes of the original, and inherits from the first of them that belongs to Python or
rmqd.
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
    ManualBatch,
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
from rmqd.runtime.plain_text import RemoteFailure, text_of, traceback_of
from rmqd.wire.message_queue import Identity, MessageQueue
from rmqd.wire.messages.message import Message, identity_of_running_group

_OWN: Final[tuple[type[BaseException], ...]] = (Retry, DeadLetter, Suspend, AlreadyHandled, InvalidPayloadError)
_KINDS_KEPT: Final = 500

ClassNames = tuple[str, str]
"""The module and the name of a class."""


@dataclass(frozen=True, slots=True)
class RemoteError:
    """The description of an exception."""

    classes: tuple[ClassNames, ...]
    """Its class and all base classes, in Python's order."""
    text: str
    shown: str
    """Its `repr`."""
    traceback: str
    values: dict[str, Any] = field(default_factory=dict)
    """The attributes that rmqd reads from its own classes."""
    about: int | None = None
    """For AlreadyHandled: the index of its message in the batch."""
    leaves: tuple[RemoteError, ...] = ()
    """For a group: the exceptions in it and in its nested groups."""


def describe_error(error: BaseException, batch: Sequence[Message]) -> RemoteError:
    """Return the description of an exception that a call with this batch raised."""
    classes = tuple((str(one.__module__), _name(one)) for one in type(error).__mro__ if issubclass(one, BaseException))
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
        about = next((index for index, one in enumerate(batch) if one is error.message), 0)
    leaves = (
        tuple(describe_error(one, batch) for one in leaf_exceptions(error))
        if isinstance(error, BaseExceptionGroup)
        else ()
    )
    return RemoteError(classes, text_of(error), text_of(error, repr), traceback_of(error), values, about, leaves)


def rebuild_error(what: RemoteError, batch: Sequence[Message]) -> BaseException:
    """Return the stand-in for a description; `batch` is the daemon's batch."""
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
    """Return the class of Python or rmqd with this name, if it can be created without its arguments."""
    module, name = names
    if own := next((one for one in _OWN if (one.__module__, one.__name__) == names), None):
        return own
    kind = getattr(builtins, name, None) if module == "builtins" else None
    return kind if isinstance(kind, type) and issubclass(kind, BaseException) else None


def _name(kind: type) -> str:
    return str(type.__dict__["__name__"].__get__(kind))  # a metaclass may define any __name__


@dataclass(frozen=True, slots=True)
class WorkerHandlerSpec:
    name: str
    """The group's key in the configuration."""
    group: str
    """The group's name at the brokers."""
    settings: GroupConfig
    memory_bytes: int
    """The memory limit of the process; -1 means no limit."""
    log: LogSettings


@dataclass(frozen=True, slots=True)
class BatchCall:
    """A request to handle a batch."""

    messages: tuple[Message, ...]
    message_queue: MessageQueue
    kind: type[Batch]
    is_revoked: bool
    identity: Identity
    """The identity of the group. Its cluster may be unknown when the process starts."""

    @classmethod
    def of(cls, batch: Batch) -> BatchCall:
        return cls(tuple(batch), batch.message_queue, type(batch), batch.revoked, identity_of_running_group())


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """The result of a call, and the handler's decisions."""

    decisions: dict[int, tuple[Decision, RemoteError | None]]
    """By index, each without its error, and with a copy of that. Several messages may share one error."""
    error: RemoteError | None
    closing: TransactionEnd | None
    no_memory: tuple[int, ...]
    """The indexes of the messages over which the process reached its memory limit."""

    @classmethod
    def of(cls, batch: Batch, error: BaseException | None, *, is_limited: bool) -> CallOutcome:
        """Return the response for a batch whose call raised `error`. `is_limited`: the process has a memory limit."""
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
            batch.closing if isinstance(batch, ManualBatch) else None,
            tuple(index for index, one in raised_for.items() if is_limited and _has_no_memory(one)),
        )

    def take_over(self, batch: Batch) -> BaseException | None:
        """Apply the handler's decisions to the daemon's batch. Returns the handler's exception."""
        errors: dict[int, BaseException] = {}

        def rebuilt(one: RemoteError | None) -> BaseException | None:
            if one is None:
                return None
            if id(one) not in errors:
                errors[id(one)] = rebuild_error(one, batch)
            return errors[id(one)]

        for index, (one, error) in self.decisions.items():
            batch.decide(index, replace(one, error=rebuilt(error)))
        if isinstance(batch, ManualBatch):
            batch.close(self.closing)
        return rebuilt(self.error)


def _has_no_memory(error: BaseException | None) -> bool:
    return error is not None and any(isinstance(one, MemoryError) for one in leaf_exceptions(error))


MODULE: Final = "rmqd.plugins.worker_processes.handler_main"
PARTIAL_RESULT_SECONDS: Final = 1.0  # for the event loop of a process with a hung call
POLL_SECONDS: Final = 0.2  # how often the lock of an orderly batch is checked during its call


class HandlerProcess(ChildProcess[None]):
    """A running worker process. Created by `build`; then call `start`, any number of `call`, and `end` or `dispose`."""

    keeps_calls_open = False
    """Whether the handler has `end_calls`. A request "end_calls" calls it."""
    _log: LogSettings

    @classmethod
    async def build(cls, spec: WorkerHandlerSpec) -> Self:
        """Start a process that creates the handler. Raises ChildNotUsableError."""
        process = await cls.begin(MODULE)
        process._log = log_settings()
        spec = replace(spec, log=process._log)
        process.keeps_calls_open = await process.ask_to_start("the handler's import", "build", spec)
        return process

    async def start(self) -> None:
        """Call the handler's `start`, which may take any time. Raises ChildNotUsableError."""
        await self.ask_to_start("the handler's start", "start", limit_seconds=None)

    async def call(self, batch: Batch, clock: Clock) -> CallOutcome:
        """Handle a batch. Raises ChildGoneError, UnusableHandlerError."""
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
        """Return the decisions of the running call so far; None if the process's event loop hangs."""
        with suppress(ChildGoneError, TimeoutError):
            async with asyncio.timeout(PARTIAL_RESULT_SECONDS):
                answer: CallOutcome | None = await self.ask("so_far")
                return answer
        return None

    async def _call_under_lock(self, batch: OrderlyBatch, call: BatchCall, clock: Clock) -> CallOutcome:
        """Call the handler, and notify it if the queue's lock is lost meanwhile."""
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
