"""How one range of a queue is pulled, what each answer of a broker means for it, and when its messages are lost.

A range is the offsets of one queue from `start` to before `end`. Each offset has to be dealt with, in order: its
message is delivered, or the broker filters it out, or it is lost. `RangePlan` decides all of that, and sends nothing,
receives nothing and never waits. Two pullers do that for it: `source.fetch`, which blocks, and `handlers.range_pulls`,
in an event loop. Both do what `RangePlan` wants done before the next pull (a pause, a question for the route), send the
pulls of `requests`, and report each answer (`answered`) and each failure (`failed`).

A range is cut into spans, one pull each. Their offsets are fixed in advance, so several pulls can be under way at once.
Answers are settled in the queue's order. A range that the broker filters has one span, because only the answer tells up
to which offset the broker has filtered.

What an answer means for the first span ("a failure" is treated like silence, see below):

| answer                                        | of the master                     | of a slave                    |
|-----------------------------------------------|-----------------------------------|-------------------------------|
| SUCCESS, nextBeginOffset above the asked one  | dealt with up to nextBeginOffset  | the same                      |
| SUCCESS, and its bytes are no messages        | a failure                         | a failure                     |
| no messages, nextBeginOffset above it:        |                                   |                               |
| - in a filtered range                         | dealt with up to nextBeginOffset  | the same                      |
| - in another one                              | asked again, then a loss up to    | a failure                     |
|                                               | nextBeginOffset                   |                               |
| no nextBeginOffset above it                   | asked again, then a loss up to    | a failure                     |
|                                               | the range's end                   |                               |
| PULL_OFFSET_MOVED                             | asked again, then a loss up to    | a failure                     |
|                                               | nextBeginOffset                   |                               |
| PULL_OFFSET_MOVED by an operator's reset      | says nothing of the range         | the same                      |
| another code                                  | ends the range, unless it is      | a failure                     |
|                                               | retriable or blames a stale route |                               |

A broker that filters nothing and passes over offsets no longer has their messages: MESSAGE_WAS_REMOVING, retention took
the commit log's file before the index's entries, or OFFSET_FOUND_NULL, a file of the index is gone. In a filtered range
such an answer is not to be told from one whose messages do not match.

Only the master (broker id 0) knows what the broker has. A slave copies the master's log and may be behind it, and so
may its topics, groups and permissions. After a failure the route is asked for anew, and after a pause the next replica
is pulled from. If no offset is dealt with for `patience_seconds` after the first failure, the range fails, unless the
route does not name the broker any more (a loss, see below). That failure skips no messages.

Bytes that are no messages were damaged on the way, or in one replica's store: the pull is repeated, as if no answer had
come. So a puller finds the messages of an answer before it reports the answer. What becomes of a message that is
corrupt, or without the tags that are wanted, is its puller's business.

A range loses messages in two cases, and `_lose` reports both:

- The master says that it does not have them (by PULL_OFFSET_MOVED, or by `EMPTY_ANSWERS`), and says so again as the
  master of a route that was asked for after that. A route that is older than the election of another master still calls
  the former one master. Losses without a message between them are one loss.
- `patience_seconds` are over, and the topic's route does not name the broker, or there is no such route.

With `fail_on_data_loss` a loss is a DataLossError. Otherwise the range goes on behind what is lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from rmqd.backoff import doubled
from rmqd.broker_errors import BrokerError
from rmqd.client.remoting.connection import OPAQUE
from rmqd.codes import ResponseCode
from rmqd.consumer.pull.request import OPERATOR_RESET
from rmqd.errors import DataLossError, ProtocolError, RemotingError, RmqdError, RouteNotFoundError
from rmqd.spark.queue_range import QueueRange, Replica
from rmqd.wire.acl import Credentials
from rmqd.wire.command import RemotingCommand
from rmqd.wire.headers.pull import PULLED, PullMessageResponseHeader
from rmqd.wire.messages.sys_flag import PullSysFlag

FIRST_PAUSE_SECONDS: Final = 0.1  # before the next replica is asked; doubled from pause to pause
LONGEST_PAUSE_SECONDS: Final = 2.0
BROKERS_LIMIT: Final = 32  # messages in an answer, unless a broker's maxTransferCountOnMessageInMemory is another one
EMPTY_ANSWERS: Final = 5  # of a master before they are believed: its index may not have the newest messages yet


class NotOnReplicaError(RemotingError):
    """A slave does not have what is asked for; the master may."""


@dataclass(frozen=True, slots=True)
class Dealt:
    """Offsets from `low` to before `high` are dealt with; `found` is whether the answer has messages of them."""

    low: int
    high: int
    found: bool


@dataclass(frozen=True, slots=True)
class ResetByOperator:
    """An operator sent the group to `offset`. A broker tells that once, in place of an answer."""

    offset: int


class Span:
    """Offsets from `low` to before `high`, which one pull at a time is to bring; `opaque` is that of the pull."""

    __slots__ = ("high", "low", "opaque")

    def __init__(self, low: int, high: int) -> None:
        self.low = low
        self.high = high
        self.opaque: int | None = None


class RangePlan:
    """One range's state; its pulls are signed by `credentials` where there are some."""

    def __init__(self, queue_range: QueueRange, credentials: Credentials | None = None) -> None:
        self.spans: deque[Span] = deque()
        """The spans whose pulls are under way or have to be repeated, in the queue's order."""
        self.reaches_to = queue_range.start
        """The end of the last span."""
        self.lost = 0
        """How many offsets are lost."""
        self.wants_route = not queue_range.replicas
        """Whether the route has to be asked for before the next pull: see `learn` and `learn_nothing`."""
        self._log = structlog.get_logger(__name__, queue=str(queue_range.queue))
        self._range = queue_range
        self._settings = queue_range.pull
        self._template = queue_range.pull_template(credentials)
        self._is_filtered = not queue_range.subscription.takes_all
        self._one_by_one = self._is_filtered or self._settings.in_flight == 1
        self._replicas: tuple[Replica, ...] = queue_range.replicas
        self._turn = 0
        self._stride = self._longest = self._settings.batch_size
        self._empty_answers = 0
        self._doubts_route = False  # whether a master reported a loss, and the route has to confirm that it is master
        self._is_confirmed = False  # whether the route was asked for after that report
        self._failures = 0  # since something was dealt with
        self._failing_since = 0.0  # when the first of them was
        self._given_up_by: RmqdError | None = None
        self._pause_due = 0.0

    @property
    def more(self) -> bool:
        """Whether a part of the range is not dealt with."""
        return self.reaches_to < self._range.end or bool(self.spans)

    @property
    def awaited(self) -> int:
        """How many messages the pulls of all spans may bring."""
        return sum(map(self._batch_size, self.spans))

    @property
    def is_half_answered(self) -> bool:
        """Whether no more than half of the spans are left that there may be."""
        return len(self.spans) <= self._settings.in_flight // 2

    @property
    def address(self) -> str:
        """The replica to pull from. Raises RouteNotFoundError while none is known."""
        if not self._replicas:
            missing = f"no address is known for broker {self._range.broker_name}"
            raise RouteNotFoundError(self._range.topic, missing)
        return self._replica.address

    def take_pause(self) -> float:
        """Seconds to wait before the next pull; told once."""
        pause, self._pause_due = self._pause_due, 0.0
        return pause

    def extend(self) -> bool:
        """Add a span, unless all pulls that may be are under way or the range ends. Returns whether it added one."""
        end = self._range.end
        if len(self.spans) >= (1 if self._one_by_one else self._settings.in_flight) or self.reaches_to >= end:
            return False
        high = end if self._one_by_one else min(self.reaches_to + self._stride, end)
        self.spans.append(Span(self.reaches_to, high))
        self.reaches_to = high
        return True

    def requests(self) -> Iterator[tuple[int, bytes]]:
        """The opaque and the frame of a pull, for each span that has none under way; the span has one from then on."""
        for span in self.spans:
            if span.opaque is None:
                span.opaque = next(OPAQUE)
                most = self._batch_size(span)
                yield span.opaque, self._template.frame(span.opaque, span.low, 0, PullSysFlag.SUBSCRIPTION, 0, 0, most)

    def answered(
        self, reply: RemotingCommand, broken: str | None = None, cut_at: int | None = None
    ) -> Dealt | ResetByOperator | None:
        """Settle the first span by the answer to its pull: it ends, or its start moves up.

        Returns None if the same offset will be pulled again.

        `broken` says why the bytes of an answer are no messages; None if they are. The messages from the offset
        `cut_at` on were not taken, as there was no room.
        Raises DataLossError, which is final, and errors to be passed to `failed`: BrokerError for a refusal,
        ProtocolError, NotOnReplicaError.
        """
        span, code = self.spans[0], reply.code
        is_found, is_moved = code == ResponseCode.SUCCESS, code == ResponseCode.PULL_OFFSET_MOVED
        span.opaque = None
        if code not in PULLED:
            raise BrokerError.of(code, reply.remark, self._range.broker_name)
        header = PullMessageResponseHeader.from_ext_fields(reply.ext_fields)
        if is_found and broken is not None:
            raise ProtocolError(f"the answer to a pull at offset {span.low} is damaged: {broken}")
        following = header.next_begin_offset if cut_at is None else cut_at
        goes_on = following > span.low
        if is_moved and reply.remark == OPERATOR_RESET:
            return ResetByOperator(following)
        if goes_on and (is_found or (not is_moved and self._is_filtered)):
            return self._go_on(span, following, found=is_found)
        if not self._asks_master:
            raise self._not_on_replica(span.low)
        if not is_moved:
            self._empty_answers += 1
            if self._empty_answers < EMPTY_ANSWERS:
                self._pause_due = FIRST_PAUSE_SECONDS
                return None
        if not self._is_confirmed:
            self._forget_pulls()
            self.wants_route = self._doubts_route = True
            return None
        until, first = (following, following) if goes_on else (self._range.end, header.min_offset)
        return self._lose(span, until, (first, header.max_offset))

    def failed(self, error: RmqdError, now: float) -> None:
        """An attempt ended with this error: turn to the next replica after a pause. Pulls under way are forgotten.

        Raises the error if no later attempt may succeed. When the patience is over the error is kept: the next answer
        about the route decides between this error and a loss.
        """
        if self._given_up_by is not None or not self._may_pass(error):
            raise error
        self._forget_pulls()
        self.wants_route = True
        if not self._failures:
            self._failing_since = now
        if now - self._failing_since >= self._settings.patience_seconds:
            is_damage = isinstance(error, ProtocolError)  # which does not name the queue
            self._given_up_by = ProtocolError(f"{self._range.queue}: {error}") if is_damage else error
            return
        self._log.warning("spark.pull_failed", error=str(error))
        self._turn += 1
        self._failures += 1
        self._pause_due = doubled(FIRST_PAUSE_SECONDS, self._failures, LONGEST_PAUSE_SECONDS)

    def learn(self, replicas: Sequence[Replica]) -> None:
        """Use the replicas that the topic's route names; if they changed, begin with the first.

        If the route names none, the known ones are kept. Raises DataLossError, and the error that `failed` has kept.
        """
        self.wants_route = False
        if self._given_up_by is not None:
            if replicas:
                raise self._given_up_by
            self._lose_rest()
            return
        known = tuple(sorted(replicas)) or self._replicas
        if known != self._replicas:
            self._replicas, self._turn = known, 0
        self._is_confirmed |= self._doubts_route
        self._doubts_route = False

    def learn_nothing(self, error: RmqdError) -> None:
        """No name server answered: pull by what is known. Raises the error if that is not enough."""
        if self._given_up_by is not None:
            raise self._given_up_by
        if not self._replicas or self._doubts_route:
            raise error
        self.wants_route = False

    @property
    def _replica(self) -> Replica:
        return self._replicas[self._turn % len(self._replicas)]

    @property
    def _asks_master(self) -> bool:
        return bool(self._replicas) and self._replica.is_master

    def _batch_size(self, span: Span) -> int:
        return min(self._settings.batch_size, span.high - span.low)

    def _may_pass(self, error: RmqdError) -> bool:
        """Whether an attempt that ended with this error may succeed later, or at another replica."""
        if isinstance(error, BrokerError):
            return error.retriable or error.stale_route or not self._asks_master
        return isinstance(error, (RemotingError, RouteNotFoundError, ProtocolError))

    def _not_on_replica(self, offset: int) -> NotOnReplicaError:
        replica = self._replica
        return NotOnReplicaError(
            self._range.broker_name,
            f"slave {replica.broker_id} ({replica.address}) does not have offset {offset} yet; "
            "its master has to be asked",
        )

    def _go_on(self, span: Span, following: int, *, found: bool) -> Dealt:
        self._is_confirmed = False
        if not self._one_by_one:
            # a broker limits the messages and the bytes of an answer: make spans as long as its answers are
            if following >= span.high:
                self._stride = min(2 * self._stride, self._longest)
            else:
                self._stride = max(1, following - span.low)
                if self._stride >= BROKERS_LIMIT:  # of messages, not of bytes: longer spans would be cut again
                    self._longest = self._stride
        return self._settle(span, following, found=found)

    def _lose(self, span: Span, until: int, held: tuple[int, int] | None) -> Dealt:
        """The messages from the span's start to before `until` are lost.

        `held` are the first offset that the broker has and the one behind its last; None if the broker is gone.
        """
        low, high = span.low, min(until, self._range.end)
        if self._range.fail_on_data_loss:
            raise DataLossError(self._range.queue, (low, high), held)
        dealt = self._settle(span, until, found=False)
        skipped = dealt.high - dealt.low
        self.lost += skipped
        self._log.warning("spark.data_lost", first=low, skipped=skipped, held=held)
        return dealt

    def _lose_rest(self) -> None:
        rest = Span(self.spans[0].low if self.spans else self.reaches_to, self._range.end)
        self.spans = deque([rest])
        self.reaches_to = rest.high
        self._lose(rest, rest.high, None)

    def _settle(self, span: Span, offset: int, *, found: bool) -> Dealt:
        """Move a span's start to `offset`, or end the span; the patience begins anew."""
        self._failures = self._empty_answers = 0
        dealt = Dealt(span.low, min(offset, span.high), found)
        if dealt.high == span.high:
            self.spans.popleft()
        else:
            span.low = dealt.high
        return dealt

    def _forget_pulls(self) -> None:
        for span in self.spans:
            span.opaque = None
