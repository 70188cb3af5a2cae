"""How one range of a queue is pulled, and what a broker's answers mean for it. Pure: it asks nobody, and never waits.

Two pullers drive it: `fetch`, which blocks, and `handlers.range_pulls` in an event loop. They send and receive; which
offsets are asked for next, from which replica, and whether messages are lost is decided here, so that it is one rule:

- Only the master (broker id 0) knows what the broker has. A slave copies the master's log and may be behind it, so an
  answer of a slave that it does not have an offset says nothing of the message: the answer counts as no answer, and the
  others are asked. So does any refusal by a slave, whose topics, groups and permissions are copies too.
- A route that was learnt while the master was away names slaves alone. It is asked for anew after every failure, and
  the master is asked first once it is there. One that was learnt before another broker became master calls a slave so:
  what a master says is lost counts as lost if it says so again, by a route that was asked for after that.
- Who gets nothing for `patience_seconds` fails, and has lost nothing: the next attempt begins at the same offset.
- A range is lost without the master's word only where no route names the broker any more at the end of that time.

A range is cut into spans, each of which one pull is to bring, so that several pulls are under way at offsets that are
known beforehand. Spans are settled in the queue's order. What the broker filters has one span: where an answer ends is
not known beforehand.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from rmqd.codes import ResponseCode
from rmqd.consumer.pull.request import OPERATOR_RESET
from rmqd.errors import BrokerError, DataLossError, ProtocolError, RemotingError, RmqdError, RouteNotFoundError
from rmqd.spark.queue_range import QueueRange, Replica
from rmqd.wire.command import RemotingCommand
from rmqd.wire.headers.pull import PullMessageResponseHeader

P = TypeVar("P")

FIRST_PAUSE_SECONDS: Final = 0.1  # before the next replica is asked; doubled from pause to pause
LONGEST_PAUSE_SECONDS: Final = 2.0
EMPTY_ANSWERS: Final = 5  # of a master; what it told the end of a queue by may reach its index a moment later

_FOUND: Final = int(ResponseCode.SUCCESS)
_NOTHING: Final = (int(ResponseCode.PULL_NOT_FOUND), int(ResponseCode.PULL_RETRY_IMMEDIATELY))
_MOVED: Final = int(ResponseCode.PULL_OFFSET_MOVED)


class NotOnReplicaError(RemotingError):
    """A slave does not have what is asked for; the master may."""


@dataclass(frozen=True, slots=True)
class Dealt:
    """Offsets from `low` to before `high` are dealt with; `found` is whether the answer has messages of them."""

    low: int
    high: int
    found: bool


@dataclass(frozen=True, slots=True)
class Lost:
    """The broker holds no message from `low` to before `high`; `held` is what it holds, None where it is gone."""

    low: int
    high: int
    held: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class AskAgain:
    """The master has nothing there yet: ask it again after a pause."""

    pause_seconds: float


@dataclass(frozen=True, slots=True)
class ResetByOperator:
    """The broker tells, once, that an operator sent the group to `offset`; the answer says nothing of the range."""

    offset: int


@dataclass(frozen=True, slots=True)
class AskWhoIsMaster:
    """What is known as the master does not have the offset: ask for the route, give it to `confirm`, and ask again."""


Decision = Dealt | Lost | AskAgain | AskWhoIsMaster | ResetByOperator


class Span(Generic[P]):
    """Offsets from `low` to before `high`, which one pull at a time is to bring; `pull` is the one under way."""

    __slots__ = ("high", "low", "pull")

    def __init__(self, low: int, high: int) -> None:
        self.low = low
        self.high = high
        self.pull: P | None = None


class RangePlan(Generic[P]):
    """One range's state. `P` is what its puller notes of a pull under way."""

    def __init__(self, queue_range: QueueRange) -> None:
        self.spans: deque[Span[P]] = deque()
        """The spans whose pulls are under way or have to be repeated, in the queue's order."""
        self.reaches_to = queue_range.start
        """The end of the last span."""
        self.one_by_one = not queue_range.subscription.takes_all or queue_range.pull.in_flight == 1
        self._range = queue_range
        self._replicas: tuple[Replica, ...] = queue_range.replicas
        self._turn = 0
        self._stride = queue_range.pull.batch_size
        self._empty_answers = 0
        self._is_confirmed = False  # whether the route was asked for because of a loss
        self._failing_since: float | None = None
        self._pause = FIRST_PAUSE_SECONDS

    @property
    def more(self) -> bool:
        """Whether a part of the range is not dealt with."""
        return self.reaches_to < self._range.end or bool(self.spans)

    @property
    def is_failing(self) -> bool:
        """Whether the last attempt failed: the route is to be asked for before the next one."""
        return self._failing_since is not None

    @property
    def replica(self) -> Replica | None:
        """The replica to pull from now; None while no address is known."""
        return self._replicas[self._turn % len(self._replicas)] if self._replicas else None

    def extend(self) -> bool:
        """Add a span, unless as many pulls as may be are under way or the range ends; says whether it did."""
        most = 1 if self.one_by_one else self._range.pull.in_flight
        if len(self.spans) >= most or self.reaches_to >= self._range.end:
            return False
        end = self._range.end
        high = end if self.one_by_one else min(self.reaches_to + self._stride, end)
        self.spans.append(Span(self.reaches_to, high))
        self.reaches_to = high
        return True

    def batch_size(self, span: Span[P]) -> int:
        """How many messages a pull of a span is to bring at most."""
        return min(self._range.pull.batch_size, span.high - span.low)

    def answered(self, reply: RemotingCommand, cut_at: int | None = None) -> Decision:
        """Settle the first span by an answer: it ends, or begins later and is to be pulled again.

        What an answer with messages has from the offset `cut_at` on was not taken, as there was no room.
        Raises DataLossError where a loss is to fail the task, and what `may_pass` judges: BrokerError for a refusal,
        ProtocolError, and NotOnReplicaError.
        """
        span, code = self.spans[0], reply.code
        if code != _FOUND and code not in _NOTHING and code != _MOVED:
            raise BrokerError.of(code, reply.remark, self._range.broker_name)
        header = PullMessageResponseHeader.from_ext_fields(reply.ext_fields)
        following = header.next_begin_offset if cut_at is None else cut_at
        if code == _MOVED and reply.remark == OPERATOR_RESET:
            return ResetByOperator(following)
        if code == _FOUND and following > span.low:
            return self._went_on(span, following, found=True)
        self._see_that_master_says_so(header)
        held = header.min_offset, header.max_offset
        if code != _MOVED:
            if following > span.low:
                return self._went_on(span, following, found=False)
            self._empty_answers += 1
            if self._empty_answers < EMPTY_ANSWERS:
                return AskAgain(self._pause)
        if not self._is_confirmed:
            return AskWhoIsMaster()
        return self._lose(span, following if code == _MOVED and following > span.low else self._range.end, held)

    def may_pass(self, error: RmqdError) -> bool:
        """Whether an attempt that ended with this error may succeed later, or at another replica."""
        if isinstance(error, BrokerError):
            return error.retriable or error.stale_route or not self._asks_master
        return isinstance(error, (RemotingError, RouteNotFoundError, ProtocolError))

    def failed(self, now: float) -> float | None:
        """Turn to the next replica, after so many seconds; None where the patience is over. Pulls under way are lost.

        What `answered` settles begins the patience anew.
        """
        for span in self.spans:
            span.pull = None
        if self._failing_since is None:
            self._failing_since = now
        if now - self._failing_since >= self._range.pull.patience_seconds:
            return None
        self._turn += 1
        pause, self._pause = self._pause, min(2 * self._pause, LONGEST_PAUSE_SECONDS)
        return pause

    def learn(self, replicas: Sequence[Replica]) -> None:
        """Take over the replicas of a route. If it names none, keep those that are known: they may still hold."""
        if not replicas:
            return
        if not _with_master(self._replicas) and _with_master(replicas):
            self._turn = 0
        self._replicas = tuple(sorted(replicas))

    def confirm(self, replicas: Sequence[Replica]) -> None:
        """Take over what a route names that was asked for after `AskWhoIsMaster`. Pulls under way are lost."""
        for span in self.spans:
            span.pull = None
        self.learn(replicas)
        self._turn = 0
        self._is_confirmed = True

    def lose_rest(self) -> Lost:
        """No route names the broker, or the topic, any more: the rest of the range is lost. Raises DataLossError."""
        rest: Span[P] = Span(self.spans[0].low if self.spans else self.reaches_to, self._range.end)
        self.spans.clear()
        self.spans.append(rest)
        self.reaches_to = rest.high
        return self._lose(rest, self._range.end, None)

    @property
    def _asks_master(self) -> bool:
        return self.replica is not None and self.replica.is_master

    def _see_that_master_says_so(self, header: PullMessageResponseHeader) -> None:
        """Raise NotOnReplicaError for an answer without messages that does not come from the master.

        By a filter a slave may find nothing as truly as a master, up to where its answer says that it has looked.
        """
        span = self.spans[0]
        if self._asks_master or (not self._range.subscription.takes_all and header.next_begin_offset > span.low):
            return
        replica = self.replica
        name = "a replica of unknown id" if replica is None else f"slave {replica.broker_id} ({replica.address})"
        raise NotOnReplicaError(
            self._range.broker_name, f"{name} does not have offset {span.low} yet; its master has to be asked"
        )

    def _went_on(self, span: Span[P], following: int, *, found: bool) -> Dealt:
        self._recovered()
        if not self.one_by_one:
            # answers are as long as a broker's limits of messages and bytes let them be: spans follow them
            is_full = following >= span.high
            longest = self._range.pull.batch_size
            self._stride = min(2 * self._stride, longest) if is_full else max(1, following - span.low)
        return Dealt(*self._end(span, following), found)

    def _lose(self, span: Span[P], until: int, held: tuple[int, int] | None) -> Lost:
        if self._range.fail_on_data_loss:
            raise DataLossError(self._range.queue, (span.low, min(until, self._range.end)), held)
        self._recovered()
        return Lost(*self._end(span, until), held)

    def _end(self, span: Span[P], offset: int) -> tuple[int, int]:
        """Move a span's begin to `offset`, or end the span. Returns the offsets that are dealt with by that."""
        low, high = span.low, min(offset, span.high)
        if high == span.high:
            self.spans.popleft()
        else:
            span.low = high
        return low, high

    def _recovered(self) -> None:
        self._failing_since = None
        self._empty_answers = 0
        self._pause = FIRST_PAUSE_SECONDS


def _with_master(replicas: Sequence[Replica]) -> bool:
    return any(replica.is_master for replica in replicas)
