"""What the replies to a queue's pulls prove, one after the other: which messages there are, and where to go on.

A commit passes what a reply leaves out, for good. So a bit that was flipped on the way must not make messages
disappear. A reply is believed up to the first place where it contradicts itself or the pull (`ReplyWalk`). From that
place on the queue is asked again, and then at the broker's master: what was only damaged on the way comes right the
second time. What two replies in turn say alike is believed:

- *A record is bad*: it has the same bytes at the same place. What cannot be opened may be most of a reply, and large
  once it is opened: the first reply tells of all such records, so that the second proves them all.
- *There is a gap*: both have nothing there. Without a filter that is true of few queues, such as compacted ones, so
  each reply with gaps costs another pull. With a filter brokers go on behind all that it passed over, and to prove each
  such step would double the pulls. It is believed at once where it ends at the queue's end, or is as long as the step
  before: brokers scan a fixed number of offsets a pull. A wrong bit would have to yield just one of these.
- *Nothing was found*, and the queue is to be asked further on: the same rule with a filter. Without one that is said of
  a hole in the broker's store only, and believed at once, as far as the queue's end; at its end, where queues wait, any
  wrong bit points beyond.

What no second reply shows is a record's offset that is wrong by so little that it stays between its neighbours, in a
queue that is filtered: it is handled and committed under that offset.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import takewhile

import structlog

from rmqd.client.remoting.traffic import Traffic
from rmqd.errors import ProtocolError
from rmqd.wire.headers.pull import PullMessageResponseHeader
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.message import MessageBlock
from rmqd.wire.messages.pull_walk import BadRecord, Doubt, Gap, ReplyWalk, bad_record, is_plain

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Believed:
    """The part of a reply that is believed. The reply's block keeps this part only."""

    next_offset: int
    bad: list[BadRecord] = field(default_factory=list)
    """Records that were bad in two replies. The last one is at `next_offset` if it must not be passed over."""
    doubt: Doubt | None = None
    """Why the queue is pulled again at `next_offset`; None if the whole reply is believed."""


class PullEvidence:
    """Judges the replies to one queue's pulls, in their order."""

    def __init__(self, queue: MessageQueue, traffic: Traffic) -> None:
        self.takes_all = True  # no filter chooses among the messages
        self._queue = queue
        self._traffic = traffic
        self._gaps: dict[int, int] = {}  # that one reply had, as {begin: end}; a second reply has to confirm them
        self._bad: dict[int, BadRecord] = {}  # that one reply had, by place; a second reply has to confirm them
        self._step = 0  # offsets that the last filtered reply passed, of those that do not end at the queue's end
        self._fruitless = 0  # doubtful replies in turn that nothing could be taken from

    def most(self, offset: int, batch_size: int) -> int:
        """How many messages to ask for: one, where the last reply had a record whose end could not be found.

        The broker knows the size of that record, and then sends nothing else in the reply.
        """
        bad = self._bad.get(offset)
        return 1 if bad is not None and bad.takes_rest else batch_size

    def forget(self) -> None:
        """Forget what earlier replies had: the queue is pulled at another place from here on."""
        self._gaps = {}
        self._bad = {}
        self._fruitless = 0

    def is_plain(self, block: MessageBlock, asked: int, header: PullMessageResponseHeader) -> bool:
        """Whether all of a reply is believed, as it nearly always is."""
        if not is_plain(block, asked, header):
            return False
        if self._gaps:
            self._refute(asked)
        return True

    def found(
        self, block: MessageBlock, asked: int, header: PullMessageResponseHeader, *, passes_over: bool
    ) -> Believed:
        """Judge a reply with messages; the block keeps those that are believed. Raises ProtocolError.

        A record that is proven to be bad ends the part that is believed, unless the policy `passes_over` such records.
        """
        if self.is_plain(block, asked, header):  # as one may be that is not opened yet
            return Believed(header.next_begin_offset)
        if header.next_begin_offset <= asked:
            raise ProtocolError(f"a pull at {asked} found messages, and is to go on at {header.next_begin_offset}")
        walk = ReplyWalk(block, asked, header, takes_all=self.takes_all)
        believed = self._walk(walk, header, passes_over=passes_over)
        block.messages, block.corrupt, block.unfinished = walk.messages, [], len(walk.messages)
        return believed

    def opened(self, block: MessageBlock, asked: int, believed: Believed, *, passes_over: bool) -> Believed:
        """Judge the believed messages again once they are opened: one that cannot be opened may have wrong flags."""
        if block.cut_at is not None and block.cut_at < believed.next_offset:
            believed = Believed(block.cut_at, [record for record in believed.bad if record.at < block.cut_at])
        records = [bad_record(block, corrupt, asked) for corrupt in block.corrupt]
        block.corrupt = []
        proven = list(takewhile(lambda record: passes_over and self._is_known(record), records))
        believed.bad = sorted([*believed.bad, *proven], key=lambda record: record.at)
        if len(proven) == len(records):
            return believed
        first = records[len(proven)]
        block.messages = [message for message in block.messages if message.queue_offset < first.at]
        block.unfinished = len(block.messages)
        bad = [record for record in believed.bad if record.at < first.at]
        if self._is_known(first):
            return Believed(first.at, [*bad, first])
        self._tell(first)
        self._bad.update((record.at, record) for record in records[len(proven) :])
        return Believed(first.at, bad, first)

    @property
    def has_bad(self) -> bool:
        """Whether some records were bad in one reply, and a second one has not come."""
        return bool(self._bad)

    def got_further(self, next_offset: int) -> None:
        """Note that the last reply brought the queue forward to `next_offset`."""
        self._fruitless = 0
        if self._bad:
            self._bad = {at: record for at, record in self._bad.items() if at >= next_offset}

    def got_nowhere(self, doubt: Doubt) -> None:
        """Note that nothing of the last reply was believed. Raises ProtocolError at the second such reply in a row."""
        self._fruitless += 1
        if self._fruitless > 1:
            raise ProtocolError(f"the reply to a pull at {doubt.at} cannot be believed: {doubt.reason}")

    def nothing(self, asked: int, header: PullMessageResponseHeader) -> int:
        """Judge a reply without messages. Returns the offset of the next pull. Raises ProtocolError."""
        to = header.next_begin_offset
        if to <= asked:
            return asked
        if to > header.max_offset:
            ends = f"though the queue ends at {header.max_offset}"
            raise ProtocolError(f"a pull at {asked} found nothing and is to go on at {to}, {ends}")
        if self.takes_all or self._is_usual_step(asked, header):
            return to
        known, self._gaps = self._gaps.get(asked, asked), {asked: to}
        return min(known, to)

    def _walk(self, walk: ReplyWalk, header: PullMessageResponseHeader, *, passes_over: bool) -> Believed:
        asked, bad = walk.offset, list[BadRecord]()
        while (doubt := walk.advance()) is not None:
            if isinstance(doubt, Gap):
                is_tail = doubt.to == header.next_begin_offset
                if not self.takes_all and is_tail and walk.messages and self._is_usual_step(asked, header):
                    walk.believe(doubt.to)
                elif (known := self._gaps.get(doubt.at)) is not None:
                    self._tell_gap(doubt.at, min(known, doubt.to))
                    walk.believe(min(known, doubt.to))
                else:
                    self._gaps = walk.gaps()
                    break
            elif isinstance(doubt, BadRecord) and self._is_known(doubt):
                bad.append(doubt)
                if not passes_over:
                    return Believed(walk.offset, bad)
                walk.pass_over(doubt)
            else:
                self._tell(doubt)
                if isinstance(doubt, BadRecord):
                    self._bad[doubt.at] = doubt
                break
        return Believed(walk.offset, bad, doubt)

    def _is_known(self, record: BadRecord) -> bool:
        before = self._bad.get(record.at)
        return before is not None and record.is_as(before)

    def _is_usual_step(self, asked: int, header: PullMessageResponseHeader) -> bool:
        if header.next_begin_offset == header.max_offset:
            return True
        before, self._step = self._step, header.next_begin_offset - asked
        return before == self._step

    def _tell(self, doubt: Doubt) -> None:
        self._traffic.doubted_replies += 1
        log.warning("pull.doubted", queue=str(self._queue), offset=doubt.at, reason=doubt.reason)

    def _tell_gap(self, low: int, high: int) -> None:
        if self.takes_all:
            log.info("queue.gap_found", queue=str(self._queue), offset=low, missing=high - low)

    def _refute(self, offset: int) -> None:
        """Forget the gaps of the last reply, which this one does not confirm; log the one at `offset`."""
        to = self._gaps.get(offset, offset)
        if to > offset and self.takes_all:
            self._tell(Doubt(offset, f"it had no message from {offset} to {to - 1}, and there are some"))
        self._gaps = {}
