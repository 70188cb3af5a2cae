"""Changes of a queue's offset by a broker or an operator.

An operator's reset is an order: the cache is dropped, and results of messages in flight are ignored.

The response PULL_OFFSET_MOVED is not an order: it reports where the queue begins or ends at the broker. Messages that
were pulled before are in memory, and no other member can pull them again. So they are handled, retried and
dead-lettered as usual, and the commit offset stays at the first unfinished message. The next pull starts elsewhere:

| the broker offers              | the queue                                                                        |
|--------------------------------|----------------------------------------------------------------------------------|
| a higher offset                | continues there: the messages in between no longer exist at the broker           |
| the same offset                | pulls again after a pause, as after an error                                     |
| a lower one, not below the     | continues there once the cached messages are finished: the broker will reuse the |
| committed offset               | offsets, and the cache holds one message for each offset                         |
| one below the committed offset | the same, after `SUSPECT_SECONDS`; the committed offset is lowered at once        |

A broker that offers a lower offset has lost the end of its queue, or the topic was recreated. Since then it may have
reused some of the offsets for new messages. The offered end is above these messages, and if the queue has grown past
the requested offset, the broker offers nothing. The new messages are recognized by their store time, which is later
than the store time of every pulled message. So if the offset of a queue must be lowered, the queue continues at the
first new message. The same search runs after a new connection, after the queue's topic exists again, and after
`SUSPECT_SECONDS`. Messages of the process's previous ownership count as pulled if no other member has committed since.
A member that has not pulled a message of the queue uses the time at which the broker first accepted its offset, or at
which the offset file was written (broadcasting). If brokers keep the offsets, a member that has just started has no
such time. If its first pull is refused, it continues at the end and reports how many messages precede the end: an
operator knows whether the topic was recreated.

With `on_offset_illegal: stop` a queue whose offset was above its end for `SUSPECT_SECONDS` is held until an operator
resets it, even if the queue has grown past that offset: otherwise the messages below the offset would be skipped.
"""

from __future__ import annotations

from typing import Final

import structlog

from rmqd.client.remoting.connection import RemotingConnection
from rmqd.consumer.context import GroupContext
from rmqd.consumer.pull.pull_request import OPERATOR_RESET_REMARK
from rmqd.consumer.pull.pulled_queue import FOUND_CODE, NOTHING_FOUND_CODES, PulledQueue
from rmqd.errors import ProtocolError, RmqdError
from rmqd.errors.broker_errors import BrokerError
from rmqd.wire.command import RemotingCommand
from rmqd.wire.headers.pull_headers import PullMessageResponseHeader
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.decode import frame_messages

log = structlog.get_logger(__name__)

SUSPECT_SECONDS: Final = 5.0  # longer than it takes to receive a new route


class OffsetMoves:
    """Changes the offset of one queue. The queue's pull loop owns it.

    A broker's report that its queue ends below the committed offset is *suspect* for some seconds (`SUSPECT_SECONDS`).
    After a failover it may come from a replica that lags, or that was the master until a moment ago. If the queue went
    back at once, its messages would be handled again once the replica has caught up.
    """

    def __init__(self, loop: PulledQueue, context: GroupContext, message_queue: MessageQueue) -> None:
        self._loop = loop
        self._context = context
        self._message_queue = message_queue
        # the broker's address, and when it first offered an offset below the committed one (monotonic)
        self._suspect: tuple[str, float] | None = None
        self._lowest: int | None = None  # lowest offset that it offered since then: later the queue may have grown
        self._checked_on: RemotingConnection | None = None  # connection of the last check for a recreated queue
        self._accepted_ms = 0  # when the broker first accepted the queue's offset (Unix milliseconds of our clock)

    @property
    def must_recheck(self) -> bool:
        """Whether pulled offsets may have been reused for other messages since the last check."""
        request = self._loop.request
        return self.lowest_refused_end is not None or (request.connection is not self._checked_on and request.at_master)

    @property
    def lowest_refused_end(self) -> int | None:
        """The queue's lowest end that the broker has reported, if it has refused the next pull's offset; else None."""
        offset, end = self._context.refused_offsets.get(self._message_queue, (None, None))
        return end if offset == self._loop.process_queue.next_offset else None

    def request_recheck(self) -> None:
        """Make the pull loop call `recheck_queue` for the next response: the queue may have been recreated."""
        self._checked_on = None

    async def recheck_queue(self, reply: RemotingCommand) -> bool:
        """Search for new messages at offsets that were pulled before: the topic may have been recreated.

        `reply` is the response to a pull. Returns True if it must be discarded, because the queue continues at another
        offset or is held for an operator. Raises RmqdError.
        """
        if reply.code != FOUND_CODE and reply.code not in NOTHING_FOUND_CODES:
            return False
        loop, connection = self._loop, self._loop.request.connection
        asked, unseen = loop.process_queue.next_offset, self.lowest_refused_end
        if unseen is None:
            since_ms = self._accepted_ms if self._checked_on is None else 0  # 0 after a reconnection: clocks may differ
            unseen = await self._first_unseen(since_ms)
        elif (reset_to := loop.request.reported_reset(asked, reply)) is not None:
            loop.request.reset_to = reset_to
            return True
        if asked != loop.process_queue.next_offset:
            return True
        if unseen is None:
            self._checked_on = connection
            self._accepted_ms = self._accepted_ms or int(self._context.clock.wall() * 1000)
            return False
        if self._context.options.on_offset_illegal == "stop":
            queue = self._message_queue.without(self._context.options.namespace)
            place = f"--broker {queue.broker_name} --queue {queue.queue_id}"
            reset = f"`rmqd offsets reset {{group}} '{queue.topic}' {place} --to {unseen}`"
            other = "`on_offset_illegal: correct` after `rmqd reload`; `--to last` skips all waiting messages"
            step = f"{reset} handles them, as does {other}"
            why = f"was above the queue's end, {unseen}: the messages from {unseen} on may not have been handled"
            await self._stop(asked, unseen, why, step)
        else:
            await self._correct(asked, unseen, "OFFSETS_USED_AGAIN")
        return True

    async def _first_unseen(self, since_ms: int) -> int | None:
        """Return the offset of the first message stored after every pulled one, if it is below the next pull's offset.

        If no message was pulled, `since_ms` is the time to compare (0 if unknown).

        The broker's search result is verified, because some brokers return the last message if no message is as late.
        """
        process_queue, request = self._loop.process_queue, self._loop.request
        since_ms = process_queue.newest_store_timestamp or since_ms
        if not since_ms:
            return None
        try:
            found = await self._context.start_offsets.policy.search_offset(self._message_queue, since_ms + 1)
        except BrokerError as error:  # a missing permission must not end the consumption
            log.debug("offset.not_found_by_time", queue=str(self._message_queue), error=str(error))
            return None
        if found >= process_queue.next_offset:
            return None
        reply = await request.pull(found, 1)
        if (reset_to := request.reported_reset(found, reply)) is not None:
            request.reset_to = reset_to  # a reset is reported only once
        if reply.code != FOUND_CODE:
            return None
        header = PullMessageResponseHeader.from_ext_fields(reply.ext_fields)
        block = frame_messages(reply.payload, self._message_queue, reply.body_start, offset_delta=header.offset_delta)
        for message in block.messages:
            is_later = message.store_timestamp > since_ms
            if is_later and message.queue_offset < process_queue.next_offset:
                return found
        return None

    def forget_suspect_offers(self) -> None:
        """Called when the broker accepts the queue's offset: its earlier offers of lower offsets no longer matter."""
        self._suspect = self._lowest = None

    async def handle_offered_offset(self, reply: RemotingCommand) -> None:
        """Handle PULL_OFFSET_MOVED, or another response with an offset below the requested one. Raises RmqdError.

        The table in the module's docstring has the rules.
        """
        loop, remark = self._loop, reply.remark or ""
        if not loop.request.at_master:
            loop.request.broker_id = 0
            raise BrokerError.of(
                reply.code, "the response is from a slave; the master is asked next", self._message_queue.broker_name
            )
        header = PullMessageResponseHeader.from_ext_fields(reply.ext_fields)
        loop.max_offset = header.max_offset
        asked, offered = loop.process_queue.next_offset, header.next_begin_offset
        if (reset_to := loop.request.reported_reset(asked, reply)) is not None:
            await self.apply_reset(reset_to)
            return
        _check(asked, header)
        if self._is_doubtful(offered):
            self.request_recheck()
            self._context.client.routes.refresh_soon([self._message_queue.topic])
            await loop.wait_after_error()
        elif self._context.options.on_offset_illegal == "stop":
            if offered < asked:
                self._context.refused_offsets[self._message_queue] = asked, self._lowest_of(offered)
            place = f"above the queue's end, {offered}" if offered < asked else f"below its first message, at {offered}"
            await self._stop(asked, offered, f"is {place}")
        else:
            unread = 0
            if offered < asked:
                unseen = await self._first_unseen(self._accepted_ms or self._filed_ms())
                offered = self._lowest_of(offered, unseen)
                if unseen is None and not (self._accepted_ms or loop.process_queue.newest_store_timestamp):
                    unread = max(0, offered - header.min_offset)
            await self._correct(asked, offered, remark, unread)

    def _lowest_of(self, *offered: int | None) -> int:
        """Return the lowest of these offsets and the broker's earlier offers. None counts as no offer."""
        return min(offset for offset in (*offered, self._lowest, self.lowest_refused_end) if offset is not None)

    async def apply_reset(self, offset: int) -> None:
        """Apply an operator's reset that the response to a pull reported. Raises RmqdError."""
        log.warning(
            "offset.corrected",
            queue=str(self._message_queue),
            offset=self._loop.process_queue.next_offset,
            corrected=offset,
            remark=OPERATOR_RESET_REMARK,
        )
        await self.restart_at(offset)

    async def restart_at(self, offset: int) -> None:
        """Drop the cache after an operator's reset, and ignore the results of messages in flight. Raises RmqdError."""
        if offset < self._context.store.committed.get(self._message_queue, 0):
            self._loop.process_queue.stats.falls["operator"] += 1
        self._accepted_ms = 0
        self._context.refused_offsets.pop(self._message_queue, None)
        self._context.problems.end(("unread", self._message_queue))
        self._loop.restart_at(offset, "offset_moved")
        await self._context.store.commit(self._message_queue, offset, downward=True)

    def _filed_ms(self) -> int:
        """Return when the offset was written to a broadcasting group's file (Unix milliseconds); 0 in other groups."""
        is_own = self._context.options.message_model == "broadcasting"
        return int(self._context.store.committed_at.get(self._message_queue, 0.0) * 1000) if is_own else 0

    def _is_doubtful(self, offered: int) -> bool:
        """Return whether `offered` is below the committed offset and must still be confirmed by later responses."""
        committed = self._context.store.committed.get(self._message_queue, 0)
        if offered >= committed:
            return False
        now, address = self._context.clock.monotonic(), self._loop.request.address or ""
        if self._suspect is None or self._suspect[0] != address:
            self._suspect, self._lowest = (address, now), offered
            queue = str(self._message_queue)
            log.warning("offset.doubted", queue=queue, address=address, committed=committed, broker_offers=offered)
        self._lowest = offered if self._lowest is None else min(self._lowest, offered)
        return now - self._suspect[1] < SUSPECT_SECONDS

    async def _stop(self, asked: int, offered: int, why: str, step: str = "") -> None:
        loop = self._loop
        if loop.stuck is None:
            log.error("offset.illegal", queue=str(self._message_queue), offset=asked, broker_offers=offered)
        topic = self._message_queue.topic
        loop.stuck = self._context.make_problem("offset_illegal", f"offset {asked} {why}", topic=topic, step=step)
        await loop.wait_for_operator()

    async def _correct(self, asked: int, offered: int, remark: str, unread: int = 0) -> None:
        if unread:
            queue, topic = self._message_queue, self._message_queue.topic
            evidence = (
                f"offset {asked} of {queue} was beyond the queue's end: {unread} messages before {offered} are not read"
            )
            step = "if the topic was recreated, handle them with `rmqd offsets reset {group} {topic} --to first`"
            self._context.problems.begin(
                ("unread", queue), self._context.make_problem("offset_illegal", evidence, topic=topic, step=step)
            )
        process_queue, store = self._loop.process_queue, self._context.store
        skipped = max(0, offered - asked)
        log.warning(
            "offset.corrected",
            queue=str(self._message_queue),
            offset=asked,
            corrected=offered,
            skipped=skipped,
            unread=unread,
            cached=process_queue.cached_count,
            remark=remark,
        )
        self._loop.stuck = None
        self._context.refused_offsets.pop(self._message_queue, None)
        self.forget_suspect_offers()
        process_queue.continue_at(offered)
        process_queue.stats.lost += skipped
        falls = offered < store.committed.get(self._message_queue, 0)
        if falls:
            process_queue.stats.falls["corrected"] += 1
        try:
            await store.commit(self._message_queue, process_queue.commit_offset(), downward=falls)
        except RmqdError as error:  # the next round of commits retries
            if not error.is_reported:
                log.warning("offset.commit_failed", queue=str(self._message_queue), offset=offered, error=str(error))


def _check(asked: int, header: PullMessageResponseHeader) -> None:
    """Raise ProtocolError if the offered offset contradicts the queue's ends in the same response.

    Brokers refuse two kinds of offsets: below the queue's first offset, which they then offer, and above its last one.
    """
    offered = header.next_begin_offset
    if offered == asked:
        raise ProtocolError(f"the broker refuses offset {asked}, but suggests the same offset")
    if offered > asked and (offered > header.max_offset or asked < header.min_offset != offered):
        ends = f"the queue has offsets {header.min_offset} to {header.max_offset}"
        raise ProtocolError(f"the broker refuses offset {asked} and suggests {offered}, but {ends}")
