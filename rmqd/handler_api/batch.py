"""The batch of messages that a handler receives, with its methods to decide about messages.

`LoadedHandler` is a handler that was created with its options, in the form that the engines call.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, Protocol, overload

from rmqd.handler_api.decisions import (
    ACK,
    DECISION_CLASSES,
    AlreadyHandled,
    DeadLetter,
    Decision,
    InvalidPayloadError,
    Outcome,
    Retry,
    Suspend,
    checked_level,
    decision_for_error,
    is_made_of,
    leaf_exceptions,
    raise_returned_decision,
    reason_text,
)

if TYPE_CHECKING:
    from rmqd.wire.message_queue import MessageQueue
    from rmqd.wire.messages.message import Message


__all__ = [
    "ACK",
    "DECISION_CLASSES",
    "AlreadyHandled",
    "DeadLetter",
    "Decision",
    "InvalidPayloadError",
    "Outcome",
    "Retry",
    "Suspend",
    "decision_for_error",
    "is_made_of",
    "leaf_exceptions",
    "raise_returned_decision",
]


AGAIN_DECISION: Final = Decision(Outcome.AGAIN)
_NOTHING_DECIDED: Mapping[int, Decision] = MappingProxyType({})
_ENDED: Final[dict[int, int]] = {}  # the `_positions` of a batch after `end`, which refuses decisions


class Batch(Sequence["Message"]):
    """The messages that a handler receives in one call, from one queue, in the queue's order.

    If the handler returns, the whole batch is acknowledged. If it raises, the batch is retried. To decide about single
    messages, use `ack`, `retry` and `dead_letter`. The last decision about a message counts, even if the handler raises
    afterwards.
    """

    __slots__ = ("_messages", "_positions", "_whole", "decided", "message_queue")
    _whole: Batch  # set only in a part of a batch: the complete batch

    def __init__(self, messages: list[Message], message_queue: MessageQueue) -> None:
        # In batches of one message, this runs for every message. So it allocates nothing before a decision needs it.
        self._messages = messages
        self.message_queue = message_queue
        self.decided: dict[int, Decision] | None = None
        self._positions: dict[int, int] | None = None

    def __len__(self) -> int:
        return len(self._messages)

    def __iter__(self) -> Iterator[Message]:
        return iter(self._messages)

    def __contains__(self, message: object) -> bool:
        return message in self._messages

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> list[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | list[Message]:
        return self._messages[index]

    def __repr__(self) -> str:
        return f"<Batch of {len(self._messages)} from {self.message_queue}>"

    def ack(self, message: Message) -> None:
        """Acknowledge this message, even if the handler raises later. Raises ValueError if it is not in this batch."""
        self._decide(message, ACK)

    def retry(self, message: Message, delay_level: int | None = None, reason: object = "") -> None:
        """Retry this message after RocketMQ's `delay_level` (1 is 1 s, 18 is 2 h).

        None means the group's `delay_level_when_next_consume`. 0 lets the broker choose. -1 dead-letters the message
        with this reason; so does any retry at the last attempt. Raises ValueError for an invalid level, or if the
        message is not in this batch.
        """
        self._decide(message, Decision(Outcome.RETRY, checked_level(delay_level), reason_text(reason)))

    def dead_letter(self, message: Message, reason: object = "") -> None:
        """Send this message to `%DLQ%group` now. Raises ValueError if it is not in this batch.

        The reason may be any object, such as an exception: its text is used.
        """
        self._decide(message, Decision(Outcome.DEAD_LETTER, reason=reason_text(reason)))

    def wait_behind(self, message: Message) -> bool:
        """Make the batch's later messages wait for this one, in an orderly group or a lite topic. Else return False.

        Call it for a message that will be retried, because no later message of its queue may overtake it. Later
        undecided messages are handled again after it, and no attempt is counted for them. In other groups this does
        nothing, and the handler may continue. Raises ValueError if the message is not in this batch.
        """
        self._index_of(message)
        return False

    def ends_at(self, index: int) -> bool:
        """Return whether a handler of single messages must stop after this message, because later messages wait."""
        is_again = self.decisions().get(index, ACK).outcome in (Outcome.RETRY, Outcome.AGAIN)
        return (is_again or getattr(self, "closing", None) is not None) and self.wait_behind(self._messages[index])

    @property
    def ack_index(self) -> int:
        """RocketMQ's ackIndex: messages up to this index are acknowledged, and the later ones retried.

        Reading returns the index before the first message that is not acknowledged: -1 if this is the first message.
        """
        for index, decision in sorted(self.decisions().items()):
            if decision.outcome is not Outcome.ACK:
                return index - 1
        return len(self._messages) - 1

    @ack_index.setter
    def ack_index(self, index: int) -> None:
        if index < -1:
            raise ValueError(
                f"ack_index {index} is below -1; expected -1 to acknowledge nothing, 0 for the first message, and so on"
            )
        self._refuse_late()
        decided, retry = self.decisions(), Decision(Outcome.RETRY)
        for place in range(len(self._messages)):
            one = decided.get(place, ACK)
            # an outcome that rmqd itself decided, such as AGAIN_DECISION, is not changed
            if one.error is None and one.outcome is not Outcome.AGAIN:
                self.replace_decision(place, ACK if place <= index else retry)

    def decide(self, index: int, decision: Decision) -> None:
        """Decide about an undecided message; keep an earlier decision. Called by the code that calls the handler."""
        if index not in self.decisions():
            self.replace_decision(index, decision)

    def replace_decision(self, index: int, decision: Decision | None) -> None:
        """Decide about the message at this index, replacing an earlier decision. None removes the decision."""
        if self.decided is None:
            self.decided = {}
        if decision is None:
            self.decided.pop(index, None)
        else:
            self.decided[index] = decision
        if (whole := getattr(self, "_whole", None)) is not None:
            whole.replace_decision(whole._index_of(self._messages[index]), decision)

    def part(self, indexes: Sequence[int]) -> Batch:
        """Return a new batch of the messages at these indexes, undecided. Decisions in it also apply to this batch."""
        part = self.with_messages([self._messages[index] for index in indexes])
        part._whole = self
        return part

    def undecided(self) -> Batch:
        """Return a part with the undecided messages; this batch itself if no message is decided."""
        decided = self.decisions()
        return self.part([i for i in range(len(self)) if i not in decided]) if decided else self

    def decisions(self) -> Mapping[int, Decision]:
        """Return the decisions so far, by the message's index in the batch."""
        return _NOTHING_DECIDED if self.decided is None else self.decided

    def commit(self) -> None:
        """In an orderly group with `auto_commit: false`: commit everything that was handled since the last commit.

        The commit takes effect when the handler ends, and includes the messages that this batch acknowledges. The last
        call of `commit` or `rollback` counts. In other groups this method only logs a warning, as in Java, because a
        batch is acknowledged when its handler returns.
        """
        self.on_mistake("commit")

    def rollback(self) -> None:
        """In an orderly group with `auto_commit: false`: handle everything since the last commit again.

        When the handler ends, the queue is suspended, and then these messages and this whole batch are handled again.
        The last call of `commit` or `rollback` counts.
        """
        self._refuse("batch.rollback()")

    @property
    def revoked(self) -> bool:
        """Whether the queue's lock is lost or about to be released, so that another member may handle the batch too.

        The value may change while a handler runs, so check it before each step that must not happen twice. Any thread
        may read it. If the handler stops because of `revoked`, it must raise, for example Suspend, because a return
        acknowledges the batch. Always False in groups that are not orderly, because they have no locks.
        """
        return False

    def end(self) -> None:
        """Refuse further decisions. Called when the handler call has ended or expired, before the batch is settled."""
        self._positions = _ENDED

    def on_mistake(self, mistake: Literal["commit", "late decision"]) -> None:
        """Called when a handler's commit or decision has no effect. The consumer replaces this method to log it."""

    def _refuse_late(self) -> None:
        if (whole := getattr(self, "_whole", None)) is not None:
            whole._refuse_late()
        if self._positions is _ENDED or (self._messages and self._messages[0].finished):
            self.on_mistake("late decision")
            raise RuntimeError(
                "this decision is too late: the handler has returned or exceeded consume_timeout, and its batch is "
                "settled; decide before the handler returns: await each task and join each thread that decides"
            )

    def _refuse(self, what: str) -> NoReturn:
        raise RuntimeError(
            f"{what} needs consume_mode: orderly and auto_commit: false; "
            "here, return to acknowledge the batch, or use batch.ack(message) and batch.retry(message)"
        )

    def with_messages(self, messages: list[Message]) -> Batch:
        """Return a batch of the same class and queue with other messages."""
        return Batch(messages, self.message_queue)

    def _decide(self, message: Message, decision: Decision) -> None:
        self.replace_decision(self._index_of(message), decision)

    def _index_of(self, message: Message) -> int:
        self._refuse_late()
        if self._positions is None:
            self._positions = {id(own): index for index, own in enumerate(self._messages)}
        index = self._positions.get(id(message))
        if index is None:
            raise ValueError(f"{message!r} is not a message of this batch of {len(self)} from {self.message_queue}")
        return index


class Lease(Protocol):
    """One ownership of a queue's lock."""

    @property
    def valid(self) -> bool:
        """Whether no other member can own the queue. Any thread may read it."""


@dataclass(slots=True)
class KnownLease:
    """A lease with a stored `valid`, for example in a handler's worker process."""

    valid: bool = True


NO_LOCK_LEASE: Final = KnownLease()
"""The lease of a queue without a lock."""


class OrderlyBatch(Batch):
    """A batch of an orderly group. Its lease is the ownership of the queue's lock when the batch was handed out."""

    __slots__ = ("_lease",)

    def __init__(self, lease: Lease, messages: list[Message], message_queue: MessageQueue) -> None:
        Batch.__init__(self, messages, message_queue)
        self._lease = lease

    @property
    def revoked(self) -> bool:
        return not self._lease.valid

    def wait_behind(self, message: Message) -> bool:
        for index in range(self._index_of(message) + 1, len(self)):
            self.decide(index, AGAIN_DECISION)
        return True

    def with_messages(self, messages: list[Message]) -> Batch:
        return type(self)(self._lease, messages, self.message_queue)


class TransactionEnd(enum.Enum):
    """The handler's choice for all messages since the last commit."""

    COMMIT = "commit"
    ROLLBACK = "rollback"


class ManualCommitBatch(OrderlyBatch):
    """A batch of an orderly group with `auto_commit: false`."""

    __slots__ = ("closing",)

    def __init__(self, lease: Lease, messages: list[Message], message_queue: MessageQueue) -> None:
        OrderlyBatch.__init__(self, lease, messages, message_queue)
        self.decided = {}  # not None: with None, the consumer acknowledges the batch without checking `closing`
        self.closing: TransactionEnd | None = None

    def commit(self) -> None:
        self._refuse_late()
        self.close(TransactionEnd.COMMIT)

    def rollback(self) -> None:
        self._refuse_late()
        self.close(TransactionEnd.ROLLBACK)

    def close(self, closing: TransactionEnd | None) -> None:
        self.closing = closing
        if (whole := getattr(self, "_whole", None)) is not None:
            whole.close(closing)


PROCESS_LOSS_CAUSES: Final = ("died", "hung", "memory")
"""Why a handler's worker process is replaced: it ended, its call did not end, or it exceeded its memory limit."""


@dataclass(slots=True)
class ProcessCounts:
    """The numbers of running and lost worker processes of a handler."""

    running: int
    lost: dict[str, int]  # keys: PROCESS_LOSS_CAUSES


@dataclass(slots=True, eq=False)
class LoadedHandler:
    """A handler plugin that was created with its options, and can be started."""

    name: str
    """The name in the configuration, for logs and metrics."""
    handle: Callable[[Batch], Any]
    is_async: bool
    """Whether `handle` returns an awaitable. If not, `handle` is called in a thread."""
    start: Callable[[], Any] | None
    """Called once per process before the first message; may return an awaitable."""
    stop: Callable[[], Any] | None
    """Called once per process after the last message; may return an awaitable."""
    ready: Callable[[], Awaitable[None]] | None = None
    """Awaited by a worker slot before it takes a batch. It returns when a call is possible; None: always possible."""
    processes: ProcessCounts | None = None  # None if the handler runs in this process
    end_calls: Callable[[], Any] | None = None
    """Called when the engine waits for calls that the handler keeps open, for example until a file is full, so that the
    handler ends the calls. With worker processes, `end_calls` is None until the processes have started.
    """
    canary: Any = None
    """The group's second handler, a `rmqd.consumer.canary.Canary`; None without one."""
