"""The result of a handler's run: every attempt, and the outcome of each message."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

from rmqd.consumer.handling.verdict import EXPIRED, default_decision
from rmqd.consumer.hooks import Hook, HookContext
from rmqd.handler_api import Batch, Decision
from rmqd.handler_api import Outcome as Decided
from rmqd.wire.messages.message import Message

Outcome = Literal["acked", "retried", "dead_lettered", "dropped"]
"""The outcome of an attempt. A message that fails in a broadcasting group is `dropped`, without a second attempt."""
_RETRIED: Final[Outcome] = "retried"
_DROPPED: Final[Outcome] = "dropped"


@dataclass(frozen=True, slots=True)
class Attempt:
    """One message in one call of the handler. `at` is the time in seconds since 1970 by the broker's clock."""

    message: Message
    number: int
    """The number of the attempt, from 1: one more than the message's `reconsume_times`."""
    outcome: Outcome
    error: BaseException | None
    """The handler's exception, which may be a Retry or a DeadLetter."""
    at: float


@dataclass(frozen=True, slots=True)
class RunResult:
    """The result of one `run_handler`."""

    attempts: tuple[Attempt, ...]
    """All attempts in the order of the handler's calls."""
    dead_letters: tuple[Message, ...]
    """The group's present dead letters. The reason is in their property RMQD_REASON."""
    elapsed_seconds: float
    """The duration of the run by the broker's clock, including skipped delays."""

    @property
    def acked(self) -> list[Message]:
        """The messages that the handler acknowledged."""
        return [attempt.message for attempt in self.attempts if attempt.outcome == "acked"]

    @property
    def retried(self) -> list[Message]:
        """The messages that were retried, once for each retry."""
        return [attempt.message for attempt in self.attempts if attempt.outcome == "retried"]

    @property
    def errors(self) -> list[BaseException]:
        """The handler's exceptions, once for each attempt of a message."""
        return [attempt.error for attempt in self.attempts if attempt.error is not None]

    def attempts_of(self, message: str) -> list[Attempt]:
        """Return the attempts of one message, by its `keys` or its `msg_id`."""
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
    """Whether the handler acknowledged the message. A decision after the call's deadline does not count."""
    is_attempt: bool = True
    """Whether the handler reached the message, and did not stop at an earlier one."""


@dataclass(slots=True)
class Recorder:
    """Records each call of a handler, as a hook of its group. Handlers' threads call it concurrently."""

    wall: Callable[[], float]
    comes_again: bool
    """Whether failed messages of the group are redelivered."""
    calls: list[_Call] = field(default_factory=list)
    handling: dict[int, tuple[Batch, float, Sequence[_Call]]] = field(default_factory=dict)
    """The batches in flight, with the start of the call, by the batch's `id`."""

    def hook(self) -> Hook:
        """Return the hook for the consumer."""
        return Hook("rmqd.testing", self._before, self._after)

    def result(self, dead_letters: Iterable[Message], elapsed_seconds: float) -> RunResult:
        """Return the result. The last attempt of a message decides its outcome; earlier attempts were retried."""
        for batch, _, calls in list(self.handling.values()):  # expired calls that have not returned
            _note(batch, calls, None, default_decision(EXPIRED, batch))
        dead = tuple(dead_letters)
        dead_ids, last = {message.msg_id for message in dead}, {}
        calls = [call for call in self.calls if call.is_attempt]
        for index, call in enumerate(calls):
            last[call.message.msg_id] = index
        attempts, failed = [], _RETRIED if self.comes_again else _DROPPED
        for index, call in enumerate(calls):
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
        self.handling[id(batch)] = (batch, now, calls)

    def _after(self, batch: Batch, context: HookContext) -> None:
        self.handling.pop(id(batch), None)
        _note(batch, context.values["calls"], context.exception, default_decision(context.exception, batch))


def _note(batch: Batch, calls: Sequence[_Call], error: BaseException | None, rest: Decision) -> None:
    decisions = batch.decisions()
    for index, call in enumerate(calls):
        decision = decisions.get(index, rest)
        call.error = decision.error or error
        call.is_acked = decision.outcome is Decided.ACK
        call.is_attempt = decision.outcome is not Decided.AGAIN or index not in decisions
