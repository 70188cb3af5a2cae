"""What a handler sees: its batch of messages, and the ways to say what becomes of them."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal, NoReturn, Protocol, overload

from rmqd.decisions import (
    ACK,
    DECISIONS,
    AlreadyHandled,
    DeadLetter,
    Decision,
    InvalidPayloadError,
    Outcome,
    Retry,
    Suspend,
    checked_level,
    decision_of,
    is_only,
    leaves_of,
    raise_returned,
    reason_text,
)

__all__ = [
    "ACK",
    "DECISIONS",
    "AlreadyHandled",
    "DeadLetter",
    "Decision",
    "InvalidPayloadError",
    "Outcome",
    "Retry",
    "Suspend",
    "decision_of",
    "is_only",
    "leaves_of",
    "raise_returned",
]

if TYPE_CHECKING:
    from rmqd.wire.message_queue import MessageQueue
    from rmqd.wire.messages.message import Message


AGAIN: Final = Decision(Outcome.AGAIN)
_NOTHING_DECIDED: Mapping[int, Decision] = MappingProxyType({})
_ENDED: Final[dict[int, int]] = {}  # in place of a batch's positions


class Batch(Sequence["Message"]):
    """The messages handed to a handler at once, all from one queue, in the queue's order.

    A handler that returns acknowledges the whole batch, and one that raises has it retried. Where messages differ,
    `ack`, `retry` and `dead_letter` decide about one each; the last word counts, and it stands if the handler raises
    afterwards.
    """

    __slots__ = ("_messages", "_positions", "_whole", "decided", "message_queue")
    _whole: Batch  # which this is a part of; without a value in others

    def __init__(self, messages: list[Message], message_queue: MessageQueue) -> None:
        # With batches of one message this runs for every message: nothing is allocated before a decision needs it.
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
        """Take this message as done, whatever happens to the others. Raises ValueError for a foreign message."""
        self._decide(message, ACK)

    def retry(self, message: Message, delay_level: int | None = None, reason: object = "") -> None:
        """Have this message delivered again, after RocketMQ's `delay_level` (1 is 1 s, 18 is 2 h).

        Without a level the group's `delay_level_when_next_consume` holds; 0 leaves it to the broker, -1 sends it to the
        dead letters, with the reason, as the last attempt does. Raises ValueError for a foreign message or level.
        """
        self._decide(message, Decision(Outcome.RETRY, checked_level(delay_level), reason_text(reason)))

    def dead_letter(self, message: Message, reason: object = "") -> None:
        """Send this message to `%DLQ%group` now, with the reason. Raises ValueError for a foreign message.

        The reason may be any object, such as an exception: its text is what is told.
        """
        self._decide(message, Decision(Outcome.DEAD_LETTER, reason=reason_text(reason)))

    def wait_behind(self, message: Message) -> bool:
        """In an orderly group, have what stands behind this message wait for it. Returns whether it is such a group.

        For a message that is to come again: nothing of its queue may pass it. What stands behind it, and is not decided
        about, is handed out with it as if it had not been, so that no attempt counts. In other groups this does
        nothing, and the handler may go on. Raises ValueError for a foreign message.
        """
        self._index_of(message)
        return False

    def ends_at(self, index: int) -> bool:
        """Whether no call is to follow behind this message, which was called alone; then what stands there waits."""
        is_again = self.decisions().get(index, ACK).outcome in (Outcome.RETRY, Outcome.AGAIN)
        return (is_again or getattr(self, "closing", None) is not None) and self.wait_behind(self._messages[index])

    @property
    def ack_index(self) -> int:
        """RocketMQ's ackIndex: messages up to and including this index are acknowledged, the rest is retried.

        Reading gives the last index before the first message that is to be retried or dead-lettered; -1 for none.
        """
        for index, decision in sorted(self.decisions().items()):
            if decision.outcome is not Outcome.ACK:
                return index - 1
        return len(self._messages) - 1

    @ack_index.setter
    def ack_index(self, index: int) -> None:
        if index < -1:
            raise ValueError(f"ack_index {index} is below -1; -1 acknowledges nothing, 0 the first message, and so on")
        self._refuse_late()
        decided, retry = self.decisions(), Decision(Outcome.RETRY)
        for place in range(len(self._messages)):
            one = decided.get(place, ACK)
            if one.error is None and one.outcome is not Outcome.AGAIN:  # else rmqd has decided it, and it stands
                self.overrule(place, ACK if place <= index else retry)

    def decide(self, index: int, decision: Decision) -> None:
        """Decide about the message at this index, unless the handler has: for what stands around a handler."""
        if index not in self.decisions():
            self.overrule(index, decision)

    def overrule(self, index: int, decision: Decision | None) -> None:
        """Decide about the message at this index, whatever was decided; with None nothing is."""
        if self.decided is None:
            self.decided = {}
        if decision is None:
            self.decided.pop(index, None)
        else:
            self.decided[index] = decision
        if (whole := getattr(self, "_whole", None)) is not None:
            whole.overrule(whole._index_of(self._messages[index]), decision)

    def part(self, indexes: Sequence[int]) -> Batch:
        """A batch of some of these messages, about which nothing is decided yet. What is decided there, is so here."""
        part = self._with([self._messages[index] for index in indexes])
        part._whole = self
        return part

    def undecided(self) -> Batch:
        """The part about which nothing is decided yet; this batch itself where nothing is."""
        decided = self.decisions()
        return self.part([i for i in range(len(self)) if i not in decided]) if decided else self

    def decisions(self) -> Mapping[int, Decision]:
        """The decisions so far, by the message's index in the batch, as the engine reads them."""
        return _NOTHING_DECIDED if self.decided is None else self.decided

    def commit(self) -> None:
        """In an orderly group with `auto_commit: false`: commit what was handled since the last commit.

        That takes effect when the handler ends, and includes what this batch acknowledges. The last word counts. In
        other groups a batch is acknowledged when its handler returns, so this only logs a warning, as in Java.
        """
        self.on_mistake("commit")

    def rollback(self) -> None:
        """In an orderly group with `auto_commit: false`: deliver again what was handled since the last commit.

        That takes effect when the handler ends, after the queue rested, and includes this whole batch. The last word
        counts.
        """
        self._refuse("batch.rollback()")

    @property
    def revoked(self) -> bool:
        """Whether the queue's lock is lost, or about to be given up: another member may handle the batch too.

        Changes while a handler runs, so ask again before each step that must not be done twice; it may be asked in
        threads. Returning still acknowledges: a handler that stops because of it raises, for instance Suspend. Only
        orderly groups hold locks: in the others this is always False.
        """
        return False

    def end(self) -> None:
        """Take no decision any more: the call has ended, or is past its deadline, and its batch is being settled."""
        self._positions = _ENDED

    def on_mistake(self, mistake: Literal["commit", "late decision"]) -> None:
        """Called when a handler does what has no effect. The consumer, which can log, replaces this method."""

    def _refuse_late(self) -> None:
        if self._positions is _ENDED or (self._messages and self._messages[0].finished):
            self.on_mistake("late decision")
            raise RuntimeError(
                "this decision is too late: the handler has returned, or was past consume_timeout, and its batch is "
                "settled; decide before the handler returns: await each task and join each thread that decides"
            )

    def _refuse(self, what: str) -> NoReturn:
        raise RuntimeError(
            f"{what} is for groups with consume_mode: orderly and auto_commit: false; "
            "here, return to acknowledge the batch, or use batch.ack(message) and batch.retry(message)"
        )

    def _with(self, messages: list[Message]) -> Batch:
        return Batch(messages, self.message_queue)

    def _decide(self, message: Message, decision: Decision) -> None:
        self.overrule(self._index_of(message), decision)

    def _index_of(self, message: Message) -> int:
        if self._positions is None:
            self._refuse_late()
            self._positions = {id(own): index for index, own in enumerate(self._messages)}
        index = self._positions.get(id(message))
        if index is None:
            self._refuse_late()
            raise ValueError(f"{message!r} is not a message of this batch of {len(self)} from {self.message_queue}")
        return index


class Lease(Protocol):
    """One holding of a queue's lock."""

    @property
    def valid(self) -> bool:
        """Whether no other member can have the queue. May be asked in any thread."""


class OrderlyBatch(Batch):
    """A batch of an orderly group. It has the lease of the queue's lock under which it was handed out."""

    __slots__ = ("_lease",)

    def __init__(self, lease: Lease, messages: list[Message], message_queue: MessageQueue) -> None:
        Batch.__init__(self, messages, message_queue)
        self._lease = lease

    @property
    def revoked(self) -> bool:
        return not self._lease.valid

    def wait_behind(self, message: Message) -> bool:
        for index in range(self._index_of(message) + 1, len(self)):
            self.decide(index, AGAIN)
        return True

    def _with(self, messages: list[Message]) -> Batch:
        return type(self)(self._lease, messages, self.message_queue)


class Closing(enum.Enum):
    """How a handler ends what it handled since the last commit."""

    COMMIT = "commit"
    ROLLBACK = "rollback"


class ManualBatch(OrderlyBatch):
    """A batch of an orderly group with `auto_commit: false`."""

    __slots__ = ("closing",)

    def __init__(self, lease: Lease, messages: list[Message], message_queue: MessageQueue) -> None:
        OrderlyBatch.__init__(self, lease, messages, message_queue)
        self.decided = {}  # its result is never a plain acknowledgement
        self.closing: Closing | None = None

    def commit(self) -> None:
        self._refuse_late()
        self.close(Closing.COMMIT)

    def rollback(self) -> None:
        self._refuse_late()
        self.close(Closing.ROLLBACK)

    def close(self, closing: Closing | None) -> None:
        self.closing = closing
        if (whole := getattr(self, "_whole", None)) is not None:
            whole.close(closing)
