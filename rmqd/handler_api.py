"""What a handler sees: its batch of messages, and the ways to say what becomes of them."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NoReturn, Protocol, overload

from rmqd.decision_values import asked, checked_level, checked_seconds, reason_text

if TYPE_CHECKING:
    from rmqd.wire.message_queue import MessageQueue
    from rmqd.wire.messages.message import Message


class Outcome(enum.Enum):
    """What becomes of one message."""

    ACK = "ack"
    RETRY = "retry"
    DEAD_LETTER = "dead_letter"
    AGAIN = "again"
    """Handed out again as if it had not been: what has to wait behind another message, or for another member."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What a handler decided about one message."""

    outcome: Outcome
    delay_level: int | None = None
    """For a retry: RocketMQ's delay level; None leaves it to the group's `delay_level_when_next_consume`."""
    reason: str = ""
    """For a dead letter: why, in the handler's words."""
    error: BaseException | None = None
    """What was raised for this message alone, while others of its batch went on."""
    seconds: float = 0.0  # for AGAIN: how long it waits before that


ACK = Decision(Outcome.ACK)
AGAIN: Final = Decision(Outcome.AGAIN)
_NOTHING_DECIDED: Mapping[int, Decision] = MappingProxyType({})


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
        is_again = self.decisions().get(index, ACK).outcome is Outcome.RETRY
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

        That takes effect when the handler ends, and includes what this batch acknowledges. The last word counts.
        """
        self._refuse("batch.commit()")

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
            self._positions = {id(own): index for index, own in enumerate(self._messages)}
        index = self._positions.get(id(message))
        if index is None:
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
        self.close(Closing.COMMIT)

    def rollback(self) -> None:
        self.close(Closing.ROLLBACK)

    def close(self, closing: Closing | None) -> None:
        self.closing = closing
        if (whole := getattr(self, "_whole", None)) is not None:
            whole.close(closing)


class Retry(Exception):
    """Raised by a handler: deliver every message again that it did not decide about.

    Raises ValueError for what is no delay level.
    """

    delay_level: int | None = None  # also of a class that inherits, and does not call our __init__

    def __init__(self, delay_level: int | None = None) -> None:
        super().__init__(delay_level)
        self.delay_level = checked_level(delay_level)

    def __str__(self) -> str:
        return "retry" if self.delay_level is None else f"retry at delay level {self.delay_level}"


class DeadLetter(Exception):
    """Raised by a handler: send every message to the dead letters that it did not decide about.

    The reason may be any object, such as an exception: its text is what is told.
    """

    reason: str = ""

    def __init__(self, reason: object = "") -> None:
        super().__init__(reason)
        self.reason = reason_text(reason)


class Suspend(Exception):
    """Raised by a handler of an orderly group: let the queue rest, then hand over the same batch again.

    `seconds` is RocketMQ's suspendCurrentQueueTimeMillis, 0.01 to 30; without it the group's setting holds. Raises
    ValueError for what is no number.
    """

    seconds: float | None = None

    def __init__(self, seconds: float | None = None) -> None:
        super().__init__(seconds)
        self.seconds = checked_seconds(seconds)

    def __str__(self) -> str:
        return "suspend" if self.seconds is None else f"suspend for {self.seconds} s"


class AlreadyHandled(Exception):
    """Raised by `message.once`: the mark of a message stands, so what its handler does was done by an earlier attempt.

    A handler that lets it pass has the message acknowledged. Where its batch has several messages nothing says which of
    the others were handled, so that they come again: catch it around each message there.
    """

    def __init__(self, message: Message) -> None:
        super().__init__(message)
        self.message = message

    def __str__(self) -> str:
        return f"{self.message.msg_id} was handled before"


for _public in (Retry, DeadLetter, Suspend, AlreadyHandled):
    _public.__module__ = "rmqd"  # where authors import them from: so tracebacks and dead letters name them


class InvalidPayloadError(Exception):
    """The body of a message is not what its typed handler takes. The text says why, without values of the body."""


DECISIONS: Final = (Retry, DeadLetter, Suspend, AlreadyHandled)
"""The exceptions by which a handler decides. What else it raises is a failure."""
_BY_STRICTNESS: Final = (Outcome.ACK, Outcome.RETRY, Outcome.DEAD_LETTER)
_inside: Final = BaseExceptionGroup.exceptions.__get__  # a class may hide the attribute


def raise_returned(result: object) -> None:
    """Raise a decision that a handler returned, as an instance or as the class: it means the same as if it was raised.

    Does nothing for other results.
    """
    if isinstance(result, DECISIONS) or (isinstance(result, type) and issubclass(result, DECISIONS)):
        raise result


def leaves_of(error: BaseException) -> list[BaseException]:
    """The exceptions in a group, and in the groups inside of it, as asyncio.TaskGroup raises them.

    An exception that is not a group is its own only leaf.
    """
    found, rest = [], [error]
    while rest:
        one = rest.pop()
        if isinstance(one, BaseExceptionGroup):
            rest.extend(reversed(_inside(one)))
        else:
            found.append(one)
    return found


def is_only(error: BaseException | None, kinds: tuple[type[BaseException], ...]) -> bool:
    """Whether an exception is of these classes; a group, whether all exceptions in it are."""
    return error is not None and all(isinstance(one, kinds) for one in leaves_of(error))


def decision_of(error: BaseException | None) -> Decision:
    """What an exception of a handler means for the messages that it did not decide about.

    A group means the strictest decision in it: a dead letter, else the retry with the longest delay.
    """
    if error is None:
        return ACK
    if isinstance(error, BaseExceptionGroup):
        return max(map(decision_of, leaves_of(error)), key=_strictness)
    # classes that inherit from ours may set the attributes later, to anything
    if isinstance(error, Retry):
        return Decision(Outcome.RETRY, delay_level=asked(error, "delay_level", checked_level))
    if isinstance(error, AlreadyHandled):
        return ACK
    if isinstance(error, DeadLetter):
        return Decision(Outcome.DEAD_LETTER, reason=asked(error, "reason", reason_text) or "")
    return Decision(Outcome.RETRY)


def _strictness(decision: Decision) -> tuple[int, float]:
    level = decision.delay_level or 0
    return _BY_STRICTNESS.index(decision.outcome), float("inf") if level == -1 else level
