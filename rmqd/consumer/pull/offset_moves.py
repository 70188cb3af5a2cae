"""What becomes of a queue whose offset a broker or an operator moves.

An operator's reset is an order: what is cached is let go, and what handlers have counts no more.

A broker's word (PULL_OFFSET_MOVED) tells only where its queue begins or ends; what was pulled before is in memory, and
nobody else will ever get it. So it is handled, retried and dead-lettered as if nothing had happened, and the commit
offset stays at the first message that is not finished. Only the next pull begins elsewhere:

| the broker offers              | the queue                                                                        |
|--------------------------------|----------------------------------------------------------------------------------|
| more than was asked            | goes on there: the messages between are gone at the broker                       |
| the same                       | asks again after a while, as after an error                                      |
| less, but all that is committed| goes on there, once what is cached is finished: the broker will give the same    |
|                                | offsets to other messages, and the cache holds one message of an offset          |
| less than what is committed    | the same, after `OffsetDoubt`; what is committed is set back at once             |

A broker that offers less has lost its end, or the topic was made anew, and since then it may have given some of the
asked offsets to other messages: the end that it offers lies behind those, and where it has got as far as before, it
offers nothing. What is stored later than all that was pulled shows them. So a queue that is to go down goes to the
first such message. One is also looked for when a queue is pulled by another connection, exists again, or is doubted no
more. A member that has pulled nothing of the queue goes by the time at which the broker first took its offset, or at
which its own file got it (broadcasting). One that has just started knows no time where brokers keep the offsets. If its
first pull is refused, it goes on at the end, and reports how many messages lie before it: an operator knows whether the
topic was made anew.
"""

from __future__ import annotations

import structlog

from rmqd.broker_errors import BrokerError
from rmqd.client.remoting.connection import RemotingConnection
from rmqd.consumer.context import GroupContext
from rmqd.consumer.pull.offset_doubt import OffsetDoubt
from rmqd.consumer.pull.pulled_queue import FOUND, NOTHING, PulledQueue
from rmqd.consumer.pull.request import OPERATOR_RESET
from rmqd.errors import ProtocolError, RmqdError
from rmqd.wire.command import RemotingCommand
from rmqd.wire.headers.pull import PullMessageResponseHeader
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.decode import frame_messages

log = structlog.get_logger(__name__)


class OffsetMoves:
    """Moves one queue. The queue's pull loop owns it."""

    def __init__(self, loop: PulledQueue, context: GroupContext, message_queue: MessageQueue) -> None:
        self._loop = loop
        self._context = context
        self._message_queue = message_queue
        self._doubt = OffsetDoubt(message_queue, context.clock)
        self._looked_on: RemotingConnection | None = None
        self._accepted_ms = 0  # when the broker first had the queue's offset, by our clock

    @property
    def must_look(self) -> bool:
        """Whether offsets that were pulled may have been given to other messages since it was looked."""
        request = self._loop.request
        return request.connection is not self._looked_on and request.at_master

    def look_again(self) -> None:
        """Have the next answer checked for a queue that was made anew: `look_back`."""
        self._looked_on = None

    async def look_back(self, reply: RemotingCommand) -> bool:
        """Look for messages that have offsets which were pulled before; whether the queue goes back to them.

        `reply` is to a pull, and counts for nothing then. Raises RmqdError.
        """
        if reply.code != FOUND and reply.code not in NOTHING:
            return False
        loop, connection = self._loop, self._loop.request.connection
        since_ms = self._accepted_ms if self._looked_on is None else 0  # clocks differ: not for a connection alone
        asked, unseen = loop.process_queue.next_offset, await self._first_unseen(since_ms)
        if asked != loop.process_queue.next_offset:
            return True
        if unseen is None:
            self._looked_on = connection
            self._accepted_ms = self._accepted_ms or int(self._context.clock.wall() * 1000)
            return False
        if self._context.options.on_offset_illegal == "stop":
            await self._stop(asked, unseen)
        else:
            await self._correct(asked, unseen, "OFFSETS_USED_AGAIN")
        return True

    async def _first_unseen(self, since_ms: int) -> int | None:
        """The first message that is stored later than all that was pulled, if it lies below the next pull.

        Where nothing was pulled, `since_ms` counts (0: not known).

        What the broker finds by the time is looked at: some find the last message where none is as late.
        """
        process_queue, request = self._loop.process_queue, self._loop.request
        since_ms = process_queue.newest_store_timestamp or since_ms
        if not since_ms:
            return None
        try:
            found = await self._context.founding.policy.search(self._message_queue, since_ms + 1)
        except BrokerError as error:  # it may have been forbidden, which must not end the consumption
            log.debug("offset.not_found_by_time", queue=str(self._message_queue), error=str(error))
            return None
        if found >= process_queue.next_offset:
            return None
        reply = await request.ask(found, 0, 0, 1)
        if (reset_to := request.reset_told(found, reply)) is not None:
            request.reset_to = reset_to  # it is told once
        if reply.code != FOUND:
            return None
        header = PullMessageResponseHeader.from_ext_fields(reply.ext_fields)
        block = frame_messages(reply.payload, self._message_queue, reply.body_start, offset_delta=header.offset_delta)
        for message in block.messages:
            is_later = message.store_timestamp > since_ms
            if is_later and message.queue_offset < process_queue.next_offset:
                return found
        return None

    def end_doubt(self) -> None:
        """Note that the broker accepts the queue's offset after all."""
        self._doubt.end()

    async def answered(self, reply: RemotingCommand) -> None:
        """Treat an answer PULL_OFFSET_MOVED, or another one that offers less than was asked, by the table above.

        Raises RmqdError.
        """
        loop, remark = self._loop, reply.remark or ""
        if not loop.request.at_master:
            loop.request.broker_id = 0
            raise BrokerError.of(reply.code, "says a slave; the master is asked", self._message_queue.broker_name)
        header = PullMessageResponseHeader.from_ext_fields(reply.ext_fields)
        loop.max_offset = header.max_offset
        asked, offered = loop.process_queue.next_offset, header.next_begin_offset
        if (reset_to := loop.request.reset_told(asked, reply)) is not None:
            await self.reset(reset_to)
            return
        _check(asked, header)
        if self._is_doubtful(offered):
            self.look_again()
            self._context.client.routes.refresh_soon([self._message_queue.topic])
            await loop.pause()
        elif self._context.options.on_offset_illegal == "stop":
            await self._stop(asked, offered)
        else:
            unread = 0
            if offered < asked:
                unseen = await self._first_unseen(self._accepted_ms or self._filed_ms())
                offered = min(offset for offset in (offered, unseen, self._doubt.lowest) if offset is not None)
                if unseen is None and not (self._accepted_ms or loop.process_queue.newest_store_timestamp):
                    unread = max(0, offered - header.min_offset)
            await self._correct(asked, offered, remark, unread)

    async def reset(self, offset: int) -> None:
        """Go where an operator reset the group, as the answer to a pull told. Raises RmqdError."""
        log.warning(
            "offset.corrected",
            queue=str(self._message_queue),
            offset=self._loop.process_queue.next_offset,
            corrected=offset,
            remark=OPERATOR_RESET,
        )
        await self.begin_at(offset)

    async def begin_at(self, offset: int) -> None:
        """Drop the cache, as an operator moved the queue, and ignore what handlers do now. Raises RmqdError."""
        if offset < self._context.store.committed.get(self._message_queue, 0):
            self._loop.process_queue.stats.falls["operator"] += 1
        self._accepted_ms = 0
        self._context.problems.end(("unread", self._message_queue))
        self._loop.start_again(offset, "offset_moved")
        await self._context.store.commit(self._message_queue, offset, downward=True)

    def _filed_ms(self) -> int:
        """When the offset came into a broadcasting group's own file (Unix milliseconds); 0 in other groups."""
        is_own = self._context.options.message_model == "broadcasting"
        return int(self._context.store.committed_at.get(self._message_queue, 0.0) * 1000) if is_own else 0

    def _is_doubtful(self, offered: int) -> bool:
        """Whether an offer below the committed offset has to be confirmed: one reply of a broker is not enough."""
        committed = self._context.store.committed.get(self._message_queue, 0)
        return offered < committed and not self._doubt.is_over(self._loop.request.address or "", committed, offered)

    async def _stop(self, asked: int, offered: int) -> None:
        loop = self._loop
        if loop.stuck is None:
            log.error("offset.illegal", queue=str(self._message_queue), offset=asked, broker_offers=offered)
        evidence = f"offset {asked} is illegal, the broker offers {offered}"
        loop.stuck = self._context.found("offset_illegal", evidence, topic=self._message_queue.topic)
        await loop.wait_for_operator()

    async def _correct(self, asked: int, offered: int, remark: str, unread: int = 0) -> None:
        if unread:
            queue, topic = self._message_queue, self._message_queue.topic
            evidence = (
                f"the offset {asked} of {queue} was beyond its end: {unread} messages before {offered} are not read"
            )
            step = "if the topic was created again, `rmqd offsets reset {group} {topic} --to first` has them handled"
            self._context.problems.begin(
                ("unread", queue), self._context.found("offset_illegal", evidence, topic=topic, step=step)
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
        self._doubt.end()
        process_queue.continue_at(offered)
        process_queue.stats.lost += skipped
        falls = offered < store.committed.get(self._message_queue, 0)
        if falls:
            process_queue.stats.falls["corrected"] += 1
        try:
            await store.commit(self._message_queue, process_queue.commit_offset(), downward=falls)
        except RmqdError as error:  # the next round of commits has it
            if not error.is_reported:
                log.warning("offset.commit_failed", queue=str(self._message_queue), offset=offered, error=str(error))


def _check(asked: int, header: PullMessageResponseHeader) -> None:
    """Raise ProtocolError where the offer contradicts what the same answer says of the queue's ends.

    An offset is illegal because it is below the queue's first one, which is then what is offered, or above its last.
    """
    offered = header.next_begin_offset
    if offered == asked:
        raise ProtocolError(f"the broker refuses offset {asked}, and offers the same")
    if offered > asked and (offered > header.max_offset or asked < header.min_offset != offered):
        ends = f"its queue has {header.min_offset} to {header.max_offset}"
        raise ProtocolError(f"the broker refuses offset {asked} and offers {offered}, though {ends}")
