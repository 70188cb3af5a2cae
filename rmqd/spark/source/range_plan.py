"""How a range of a queue is pulled, what each response of a broker means, and when messages are lost.

A range is the offsets of one queue from `start` to before `end`. Each offset must be settled, in order: its message is
delivered, filtered out by the broker, or lost. `RangePlan` makes these decisions without I/O. Two pullers do the I/O:
`range_fetch` over blocking connections, and `handlers.range_run` in an event loop. Before each pull, a puller pauses
and queries the route if `RangePlan` requires it. The puller sends the pulls of `new_requests`, and reports each
response (`handle_response`) and each failure (`handle_failure`).

A range is divided into spans, with one pull for each span. The offsets of a span are fixed in advance, so several pulls
can be in flight. Spans are settled in the order of their offsets. A range with a broker-side filter has a single span,
because only the response shows how far the broker has filtered.

The meaning of a response for the first span ("failure" is treated like no response, see below):

| response                                      | from the master                   | from a slave                  |
|-----------------------------------------------|-----------------------------------|-------------------------------|
| SUCCESS, nextBeginOffset above the pull's     | settled up to nextBeginOffset     | the same                      |
| SUCCESS with damaged bytes                    | failure                           | failure                       |
| no messages, nextBeginOffset above the pull's:|                                   |                               |
| - in a filtered range                         | settled up to nextBeginOffset     | the same                      |
| - in an unfiltered range                      | asked again, then a loss up to    | failure                       |
|                                               | nextBeginOffset                   |                               |
| nextBeginOffset not above the pull's          | asked again, then a loss up to    | failure                       |
|                                               | the range's end                   |                               |
| PULL_OFFSET_MOVED                             | asked again, then a loss up to    | failure                       |
|                                               | nextBeginOffset                   |                               |
| PULL_OFFSET_MOVED by an operator's reset      | does not affect the range         | the same                      |
| any other code                                | ends the range, unless retriable  | failure                       |
|                                               | or caused by a stale route        |                               |

If a broker skips offsets in an unfiltered range, it no longer has their messages: MESSAGE_WAS_REMOVING (retention
removed the commit log file before the index entries) or OFFSET_FOUND_NULL (an index file is missing). In a filtered
range, such a response looks like a response to a pull whose messages do not match.

Only the master (broker id 0) knows which messages the broker has. A slave copies the master's log and may be behind it;
the slave's topics, groups and permissions may be outdated too. After a failure, the route is queried again, and after a
pause the pull is sent to the next replica. If no offset is settled for `patience_seconds` after the first failure, the
range fails, and no messages are skipped. But if the route no longer names the broker, this is a loss, see below.

Bytes may be damaged on the network, or in the store of one replica. If a response has damaged bytes, the pull is
repeated like a pull without a response. So a puller must find the messages of a response before it reports the
response. The puller also handles corrupt messages, and removes messages without the wanted tags. No checksum protects a
message's offset, so both pullers compare it with the next message's offset, or with nextBeginOffset. In `range_run` a
response with a wrong offset counts as damaged; if a second response has the same message, the message is corrupt.
`range_fetch` compares whole record batches, because a comparison for each response is slow, and a message with a wrong
offset is corrupt.

A range loses messages in two cases, both reported by `_lose`:

- The master reports that it does not have the messages, by PULL_OFFSET_MOVED or by `MAX_EMPTY_RESPONSES` responses
  without progress. Then the route is queried, because an older route may name the previous master after an election.
  The messages are lost if the route's master reports the same. The route is not queried again for later losses, until a
  message is delivered.
- `patience_seconds` are over, and the topic has no route, or its route does not name the broker.

With `fail_on_data_loss` a loss raises DataLossError. Otherwise the range continues after the lost messages.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from rmqd.client.remoting.connection import OPAQUE_NUMBERS
from rmqd.codes import ResponseCode
from rmqd.consumer.pull.pull_request import OPERATOR_RESET_REMARK
from rmqd.errors import DataLossError, ProtocolError, RemotingError, RmqdError, RouteNotFoundError
from rmqd.errors.broker_errors import BrokerError
from rmqd.runtime.clock import backoff_seconds
from rmqd.spark.session.queue_range import QueueRange, Replica
from rmqd.wire.acl import Credentials
from rmqd.wire.command import RemotingCommand
from rmqd.wire.headers.pull_headers import PULL_RESPONSE_CODES, PullMessageResponseHeader
from rmqd.wire.messages.properties import PullSysFlag

FIRST_RETRY_PAUSE_SECONDS: Final = 0.1  # pause before the next replica is tried; doubles each time
MAX_RETRY_PAUSE_SECONDS: Final = 2.0
MAX_RESPONSE_MESSAGES: Final = 32  # messages in a response; the broker's default for maxTransferCountOnMessageInMemory
# number of empty responses before the master is believed: its index may lack the newest messages for a moment
MAX_EMPTY_RESPONSES: Final = 5


class NotOnReplicaError(RemotingError):
    """A slave does not have the requested messages; the master may have them."""


@dataclass(frozen=True, slots=True)
class SettledRange:
    """Settled offsets, from `start` to before `end`. `has_messages` is false if all messages are filtered or lost."""

    start: int
    end: int
    has_messages: bool


@dataclass(frozen=True, slots=True)
class ResetByOperator:
    """An operator's reset of the group to `offset`. The broker reports a reset once, in place of a pull's messages."""

    offset: int


class OffsetSpan:
    """The offsets from `low` to before `high`. `opaque` is the request id of the pull in flight; None without one."""

    __slots__ = ("high", "low", "opaque")

    def __init__(self, low: int, high: int) -> None:
        self.low = low
        self.high = high
        self.opaque: int | None = None


class RangePlan:
    """The state of one range. Pulls are signed if there are `credentials`."""

    def __init__(self, queue_range: QueueRange, credentials: Credentials | None = None) -> None:
        self.spans: deque[OffsetSpan] = deque()
        """The spans that are not settled, in the queue's order. Their pulls are in flight or must be sent."""
        self.planned_end = queue_range.start
        """The exclusive end of the last span, at which the next span starts."""
        self.next_begin_offset = queue_range.start
        """The next begin offset of the last response. All messages of the response are below it."""
        self.lost_messages = 0
        """Number of lost offsets."""
        self.must_query_route = not queue_range.replicas
        """Whether the route must be queried before the next pull; see `use_replicas` and `keep_known_replicas`."""
        self._log = structlog.get_logger(__name__, queue=str(queue_range.queue))
        self._range = queue_range
        self._settings = queue_range.pull
        self._template = queue_range.pull_template(credentials)
        self._is_filtered = not queue_range.subscription.matches_all_messages
        self._one_by_one = self._is_filtered or self._settings.max_in_flight == 1
        self._replicas: tuple[Replica, ...] = queue_range.replicas
        self._turn = 0
        self._stride = self._longest = self._settings.batch_size
        self._empty_answers = 0
        self._doubts_route = False  # a master reported a loss; the next route query must confirm the master
        self._is_confirmed = False  # whether the route was queried after the master's report of a loss
        self._failures = 0  # number of failed attempts since the last settled offset
        self._failing_since = 0.0  # monotonic time of the first of these failures
        self._final_error: RmqdError | None = None
        self._pause_due = 0.0

    @property
    def is_unfinished(self) -> bool:
        return self.planned_end < self._range.end or bool(self.spans)

    @property
    def max_awaited_messages(self) -> int:
        """Maximum number of messages that the pulls of all spans may return."""
        return sum(map(self._batch_size, self.spans))

    @property
    def should_add_spans(self) -> bool:
        """Whether at most half of `max_in_flight` spans are left, so that new pulls should be sent."""
        return len(self.spans) <= self._settings.max_in_flight // 2

    @property
    def address(self) -> str:
        """The address of the replica to pull from. Raises RouteNotFoundError if no replica is known."""
        if not self._replicas:
            missing = f"no address is known for broker {self._range.queue.broker_name}"
            raise RouteNotFoundError(self._range.queue.topic, missing)
        return self._replica.address

    def take_pause_seconds(self) -> float:
        """Return how many seconds to wait before the next pull, and reset this pause to 0."""
        pause, self._pause_due = self._pause_due, 0.0
        return pause

    def add_span(self) -> bool:
        """Add the next span, unless `max_in_flight` is reached or no offsets are left. Return whether one was added."""
        end = self._range.end
        if len(self.spans) >= (1 if self._one_by_one else self._settings.max_in_flight) or self.planned_end >= end:
            return False
        high = end if self._one_by_one else min(self.planned_end + self._stride, end)
        self.spans.append(OffsetSpan(self.planned_end, high))
        self.planned_end = high
        return True

    def new_requests(self) -> Iterator[tuple[int, bytes]]:
        """Yield, for each span without a pull in flight, the opaque and the frame of a new pull."""
        for span in self.spans:
            if span.opaque is None:
                span.opaque = next(OPAQUE_NUMBERS)
                most = self._batch_size(span)
                yield span.opaque, self._template.frame(span.opaque, span.low, 0, PullSysFlag.SUBSCRIPTION, 0, 0, most)

    def handle_response(
        self, reply: RemotingCommand, damage: str | None = None, cut_at: int | None = None
    ) -> SettledRange | ResetByOperator | None:
        """Settle offsets of the first span with the response to its pull.

        `damage` is why the response's bytes are damaged; None if they are not. If `cut_at` is set, the caller had no
        room for the messages from this offset on. Return None if the same offset must be pulled again.

        Raises DataLossError, which is final. Pass other errors to `handle_failure`: BrokerError if the broker refuses
        the pull, ProtocolError, NotOnReplicaError.
        """
        span, code = self.spans[0], reply.code
        is_found, is_moved = code == ResponseCode.SUCCESS, code == ResponseCode.PULL_OFFSET_MOVED
        span.opaque = None
        if code not in PULL_RESPONSE_CODES:
            raise BrokerError.of(code, reply.remark, self._range.queue.broker_name)
        header = PullMessageResponseHeader.from_ext_fields(reply.ext_fields)
        if is_found and damage is not None:
            raise ProtocolError(f"the response to a pull at offset {span.low} is damaged: {damage}")
        following = header.next_begin_offset if cut_at is None else cut_at
        self.next_begin_offset = header.next_begin_offset
        advances = following > span.low
        if is_moved and reply.remark == OPERATOR_RESET_REMARK:
            return ResetByOperator(following)
        if advances and (is_found or (not is_moved and self._is_filtered)):
            return self._advance(span, following, found=is_found)
        if not self._asks_master:
            at = f"slave {self._replica.broker_id} ({self._replica.address})"
            why = f"{at} does not have offset {span.low} yet; the master must be asked"
            raise NotOnReplicaError(self._range.queue.broker_name, why)
        if not is_moved:
            self._empty_answers += 1
            if self._empty_answers < MAX_EMPTY_RESPONSES:
                self._pause_due = FIRST_RETRY_PAUSE_SECONDS
                return None
        if not self._is_confirmed:
            self._forget_pulls()
            self.must_query_route = self._doubts_route = True
            return None
        until, first = (following, following) if advances else (self._range.end, header.min_offset)
        return self._lose(span, until, (first, header.max_offset))

    def handle_failure(self, error: RmqdError, now: float) -> None:
        """Called when a pull failed, at the monotonic time `now`. All pulls are sent again, to the next replica.

        Raises the error if no later attempt can succeed. After `patience_seconds` the error is kept: the next route
        query decides whether the range fails with this error, or its messages are lost.
        """
        if self._final_error is not None or not self._is_temporary(error):
            raise error
        self._forget_pulls()
        self.must_query_route = True
        if not self._failures:
            self._failing_since = now
        if now - self._failing_since >= self._settings.patience_seconds:
            is_damage = isinstance(error, ProtocolError)  # the error does not name the queue
            self._final_error = ProtocolError(f"{self._range.queue}: {error}") if is_damage else error
            return
        self._log.warning("spark.pull_failed", error=str(error))
        self._turn += 1
        self._failures += 1
        self._pause_due = backoff_seconds(FIRST_RETRY_PAUSE_SECONDS, self._failures, MAX_RETRY_PAUSE_SECONDS)

    def use_replicas(self, replicas: Sequence[Replica]) -> None:
        """Use the replicas in the topic's new route. If they differ, the next pulls are sent to the first replica.

        If the route names no replica, the known replicas stay. Raises DataLossError, or the error that `handle_failure`
        has kept.
        """
        self.must_query_route = False
        if self._final_error is not None:
            if replicas:
                raise self._final_error
            self._lose_rest()
            return
        known = tuple(sorted(replicas)) or self._replicas
        if known != self._replicas:
            self._replicas, self._turn = known, 0
        self._is_confirmed |= self._doubts_route
        self._doubts_route = False

    def keep_known_replicas(self, error: RmqdError) -> None:
        """Keep the known replicas, because no name server answered. Raises `error` if they cannot be used."""
        if self._final_error is not None:
            raise self._final_error
        if not self._replicas or self._doubts_route:
            raise error
        self.must_query_route = False

    @property
    def _replica(self) -> Replica:
        return self._replicas[self._turn % len(self._replicas)]

    @property
    def _asks_master(self) -> bool:
        return bool(self._replicas) and self._replica.is_master

    def _batch_size(self, span: OffsetSpan) -> int:
        return min(self._settings.batch_size, span.high - span.low)

    def _is_temporary(self, error: RmqdError) -> bool:
        """Return whether a later attempt, or another replica, may succeed after this error."""
        if isinstance(error, BrokerError):
            return error.retriable or error.stale_route or not self._asks_master
        return isinstance(error, (RemotingError, RouteNotFoundError, ProtocolError))

    def _advance(self, span: OffsetSpan, following: int, *, found: bool) -> SettledRange:
        self._is_confirmed = False
        if not self._one_by_one:
            # the broker limits the messages and bytes of a response, so adapt the length of spans to its responses
            if following >= span.high:
                self._stride = min(2 * self._stride, self._longest)
            else:
                self._stride = max(1, following - span.low)
                # limited by messages, not bytes: longer spans would be cut again
                if self._stride >= MAX_RESPONSE_MESSAGES:
                    self._longest = self._stride
        return self._settle(span, following, found=found)

    def _lose(self, span: OffsetSpan, until: int, held: tuple[int, int] | None) -> SettledRange:
        """Settle the messages from the span's start to before `until` as lost, or raise DataLossError.

        `held` is the broker's first offset and its exclusive end offset; None if the broker is missing.
        """
        low, high = span.low, min(until, self._range.end)
        if self._range.fail_on_data_loss:
            raise DataLossError(self._range.queue, (low, high), held)
        settled = self._settle(span, until, found=False)
        skipped = settled.end - settled.start
        self.lost_messages += skipped
        self._log.warning("spark.data_lost", first=low, skipped=skipped, held=held)
        return settled

    def _lose_rest(self) -> None:
        rest = OffsetSpan(self.spans[0].low if self.spans else self.planned_end, self._range.end)
        self.spans = deque([rest])
        self.planned_end = rest.high
        self._lose(rest, rest.high, None)

    def _settle(self, span: OffsetSpan, offset: int, *, found: bool) -> SettledRange:
        """Move a span's start to `offset`, or remove a finished span. The next failure starts a new time limit."""
        self._failures = self._empty_answers = 0
        settled = SettledRange(span.low, min(offset, span.high), found)
        if settled.end == span.high:
            self.spans.popleft()
        else:
            span.low = settled.end
        return settled

    def _forget_pulls(self) -> None:
        for span in self.spans:
            span.opaque = None
