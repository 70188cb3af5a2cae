"""What came of a handler's run: every attempt, and what became of the messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

from rmqd.consumer.handling.settlement import default_decision
from rmqd.consumer.hooks import Hook, HookContext
from rmqd.handler import Batch
from rmqd.handler import Outcome as Decided
from rmqd.wire.messages.message import Message

Outcome = Literal["acked", "retried", "dead_lettered", "dropped"]
"""`dropped` is what fails in a broadcasting group: there is no second attempt."""
_RETRIED: Final[Outcome] = "retried"
_DROPPED: Final[Outcome] = "dropped"


@dataclass(frozen=True, slots=True)
class Attempt:
    """One message in one call of the handler. `at` is when, in seconds since 1970 by the broker's clock."""

    message: Message
    number: int
    """1 the first time that the message was delivered, as its `reconsume_times` say."""
    outcome: Outcome
    error: BaseException | None
    """What the handler raised, a Retry or a DeadLetter too."""
    at: float


@dataclass(frozen=True, slots=True)
class RunResult:
    """What one `run_handler` did."""

    attempts: tuple[Attempt, ...]
    """In the order in which the handler was called."""
    dead_letters: tuple[Message, ...]
    """As they are in the dead letters now, the reason in their property RMQD_REASON."""
    elapsed_seconds: float
    """How long it took by the broker's clock: what nobody waited for, retries and delays, is in it."""

    @property
    def acked(self) -> list[Message]:
        """The messages that the handler is done with."""
        return [attempt.message for attempt in self.attempts if attempt.outcome == "acked"]

    @property
    def retried(self) -> list[Message]:
        """A message for each time that it was to come again: one that failed twice stands here twice."""
        return [attempt.message for attempt in self.attempts if attempt.outcome == "retried"]

    @property
    def errors(self) -> list[BaseException]:
        """What the handler raised, once for each attempt of a message."""
        return [attempt.error for attempt in self.attempts if attempt.error is not None]

    def attempts_of(self, message: str) -> list[Attempt]:
        """The attempts of one message, by its `keys` or its `msg_id`."""
        return [one for one in self.attempts if message in (one.message.keys, one.message.msg_id)]

    def __repr__(self) -> str:
        counts = Counter(attempt.outcome for attempt in self.attempts)
        usual: tuple[Outcome, ...] = ("acked", "retried", "dead_lettered")
        shown = ", ".join(f"{counts[kind]} {kind}" for kind in get_args(Outcome) if kind in usual or counts[kind])
        return f"<RunResult {shown} in {len(self.attempts)} attempts, {self.elapsed_seconds:.0f} s>"


@dataclass(slots=True)
class _Call:
    message: Message
    number: int
    at: float
    error: BaseException | None = None
    is_acked: bool = False
    """By the handler; what it says of a message that hangs comes too late to matter."""


@dataclass(slots=True)
class Recorder:
    """Takes down each call of a handler, as a hook of its group. Handlers' threads call it side by side."""

    wall: Callable[[], float]
    comes_again: bool
    """Whether what fails in the group is delivered again."""
    calls: list[_Call] = field(default_factory=list)
    handling: dict[int, tuple[Batch, float]] = field(default_factory=dict)
    """The batches that handlers have now, and since when, by the batch's identity."""

    def hook(self) -> Hook:
        """What the consumer is given."""
        return Hook("rmqd.testing", self._before, self._after)

    def result(self, dead_letters: Iterable[Message], elapsed_seconds: float) -> RunResult:
        """What there is at the end. A message's last attempt decided, those before it were retried."""
        dead = tuple(dead_letters)
        dead_ids, last = {message.msg_id for message in dead}, {}
        for index, call in enumerate(self.calls):
            last[call.message.msg_id] = index
        attempts, failed = [], _RETRIED if self.comes_again else _DROPPED
        for index, call in enumerate(self.calls):
            msg_id = call.message.msg_id
            ended: Outcome = "dead_lettered" if msg_id in dead_ids else "acked" if call.is_acked else failed
            outcome = ended if last[msg_id] == index else "retried"
            attempts.append(Attempt(call.message, call.number, outcome, call.error, call.at))
        return RunResult(tuple(attempts), dead, elapsed_seconds)

    def _before(self, batch: Batch, context: HookContext) -> None:
        now = self.wall()
        calls = [_Call(message, message.reconsume_times + 1, now) for message in batch]
        context.values["calls"] = calls
        self.calls.extend(calls)
        self.handling[id(batch)] = (batch, now)

    def _after(self, batch: Batch, context: HookContext) -> None:
        self.handling.pop(id(batch), None)
        calls: Sequence[_Call] = context.values["calls"]
        decisions, rest = batch.decisions(), default_decision(context.exception)
        for index, call in enumerate(calls):
            call.error = context.exception
            call.is_acked = decisions.get(index, rest).outcome is Decided.ACK
