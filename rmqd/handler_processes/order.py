"""The requests to a worker process, and its responses. All of them are picklable."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from rmqd.config.model.group import GroupConfig
from rmqd.handler_api import Batch, Closing, Decision, ManualBatch, OrderlyBatch, leaves_of
from rmqd.handler_processes.told_errors import ToldError, raised, told
from rmqd.process.logs.logs import LogSettings
from rmqd.wire.identity import Identity
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.message import Message
from rmqd.wire.messages.once import running_group

BatchKind = Literal["plain", "orderly", "manual"]


@dataclass(frozen=True, slots=True)
class HandlerOrder:
    """The specification of a handler."""

    name: str
    """The group's key in the configuration."""
    group: str
    """The group's name at the brokers."""
    settings: GroupConfig
    memory_bytes: int
    """The memory limit of the process; -1 means no limit."""
    import_path: tuple[str, ...]
    """The daemon's sys.path: the process must find the same handlers."""
    log: LogSettings
    fault_file: str = ""


@dataclass(frozen=True, slots=True)
class Call:
    """A request to handle a batch."""

    messages: tuple[Message, ...]
    message_queue: MessageQueue
    kind: BatchKind
    is_revoked: bool
    identity: Identity
    """The identity of the group. Its cluster may be unknown when the process starts."""

    @classmethod
    def of(cls, batch: Batch) -> Call:
        """Return the request for this batch."""
        manual = "manual" if isinstance(batch, ManualBatch) else "orderly"
        kind: BatchKind = manual if isinstance(batch, OrderlyBatch) else "plain"  # type: ignore[assignment]
        return cls(tuple(batch), batch.message_queue, kind, batch.revoked, running_group())


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a call, and the handler's decisions."""

    decisions: dict[int, tuple[Decision, ToldError | None]]
    """By index, each without its error, and with a copy of that. Several messages may share one error."""
    error: ToldError | None
    closing: Closing | None
    no_memory: tuple[int, ...]
    """The indexes of the messages over which the process reached its memory limit."""

    @classmethod
    def of(cls, batch: Batch, error: BaseException | None, *, is_limited: bool) -> Answer:
        """Return the response for a batch whose call raised `error`. `is_limited`: the process has a memory limit."""
        errors: dict[int, ToldError] = {}

        def telling(one: BaseException | None) -> ToldError | None:
            return None if one is None else errors.setdefault(id(one), told(one, batch))

        decided = dict(batch.decisions())
        raised_for = {index: decided[index].error if index in decided else error for index in range(len(batch))}
        return cls(
            {index: (replace(one, error=None), telling(one.error)) for index, one in decided.items()},
            telling(error),
            batch.closing if isinstance(batch, ManualBatch) else None,
            tuple(index for index, one in raised_for.items() if is_limited and _has_no_memory(one)),
        )

    def take_over(self, batch: Batch) -> BaseException | None:
        """Apply the handler's decisions to the daemon's batch. Returns the handler's exception."""
        errors: dict[int, BaseException] = {}

        def standing_for(one: ToldError | None) -> BaseException | None:
            if one is None:
                return None
            if id(one) not in errors:
                errors[id(one)] = raised(one, batch)
            return errors[id(one)]

        for index, (one, error) in self.decisions.items():
            batch.decide(index, replace(one, error=standing_for(error)))
        if isinstance(batch, ManualBatch):
            batch.close(self.closing)
        return standing_for(self.error)


def _has_no_memory(error: BaseException | None) -> bool:
    return error is not None and any(isinstance(one, MemoryError) for one in leaves_of(error))
