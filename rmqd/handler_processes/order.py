"""What a worker process is told, and what it answers. All of it pickles."""

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
    """Which handler to make."""

    name: str
    """The group's key in the configuration."""
    group: str
    """The group as brokers know it."""
    settings: GroupConfig
    memory_bytes: int
    """What the process may take; -1: no limit."""
    import_path: tuple[str, ...]
    """The daemon's sys.path: the process must find the same handlers."""
    log: LogSettings
    fault_file: str = ""


@dataclass(frozen=True, slots=True)
class Call:
    """A batch to be handled."""

    messages: tuple[Message, ...]
    message_queue: MessageQueue
    kind: BatchKind
    is_revoked: bool
    identity: Identity
    """The group's: its cluster may not be known when the process starts."""

    @classmethod
    def of(cls, batch: Batch) -> Call:
        """The call that hands this batch on."""
        manual = "manual" if isinstance(batch, ManualBatch) else "orderly"
        kind: BatchKind = manual if isinstance(batch, OrderlyBatch) else "plain"  # type: ignore[assignment]
        return cls(tuple(batch), batch.message_queue, kind, batch.revoked, running_group())


@dataclass(frozen=True, slots=True)
class Answer:
    """How a call ended, and what the handler decided."""

    decisions: dict[int, tuple[Decision, ToldError | None]]
    """By index, each without its error, and what is told of that. One error may be that of several messages."""
    error: ToldError | None
    closing: Closing | None
    no_memory: tuple[int, ...]
    """The messages over which the process used up its memory limit, by index."""

    @classmethod
    def of(cls, batch: Batch, error: BaseException | None, *, is_limited: bool) -> Answer:
        """What to answer about a batch whose call raised `error`; `is_limited`: the process has a memory limit."""
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
        """Decide about the messages of the daemon's batch as the handler did. Returns what it raised."""
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
