"""The pull loop of one queue: sends pulls and puts the messages into the cache for the workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import structlog

from rmqd.client.remoting.connection import RemotingConnection
from rmqd.consumer.context import GroupContext
from rmqd.consumer.pull.accept import MessageAcceptor, decompress_pulled
from rmqd.consumer.pull.offset_moves import OffsetMoves
from rmqd.consumer.pull.pull_request import OFFSET_MOVED_CODE, PullBackoff, PullRepeatedError
from rmqd.consumer.pull.pulled_queue import FOUND_CODE, NOTHING_FOUND_CODES, PulledQueue
from rmqd.consumer.pull.response_validation import CorruptMessages, ResponseValidation, TrustedPart
from rmqd.consumer.services import CarriedCommit
from rmqd.errors import ConnectionRenewedError, ProtocolError, RemotingError, RmqdError
from rmqd.errors.broker_errors import BrokerError, FlowControlError, GoAwayError, SystemBusyError, TopicNotExistError
from rmqd.wire.bodies.route_data import is_logical_broker
from rmqd.wire.command import RemotingCommand
from rmqd.wire.headers.pull_headers import PullMessageResponseHeader
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.decode import frame_messages
from rmqd.wire.messages.message import Message
from rmqd.wire.topics import is_retry_topic, topic_of_pop_retry

log = structlog.get_logger(__name__)

BROKER_HOLD_MS: Final = 15_000  # Java: brokerSuspendMaxTimeMillis
COMMIT_PAUSE_SECONDS: Final = 0.005  # minimum pause between commits in pulls; there may be thousands of pulls a second
MIN_HELD_SECONDS: Final = 0.01  # a broker that responds sooner without messages has not held the pull
MAX_EQUAL_CONTRADICTIONS: Final = 5  # equal contradictory responses until the queue counts as stuck


class PullLoop(PulledQueue):
    """One queue's pulls, as long as this member owns the queue."""

    def __init__(self, context: GroupContext, message_queue: MessageQueue, offset: int) -> None:
        super().__init__(context, message_queue, offset)
        self._namespace = context.options.namespace
        self._origin = topic_of_pop_retry(context.options.group, message_queue.topic)
        self._failed_since_success = False  # True from an error until a pull succeeds
        self._alike = 0  # equal contradictory responses in a row
        self._backoff = PullBackoff()
        self._moves = OffsetMoves(self, context, message_queue)
        self._corrupt = CorruptMessages(self, context, message_queue)
        self._acceptor = MessageAcceptor(context.service, context.hooks, context.rate_limit)
        self._validation = ResponseValidation(message_queue, context.client.remoting.traffic)
        self._carried_at = float("-inf")  # when a pull could last carry a commit, monotonic
        self._configure()

    async def run(self) -> None:
        """Pull until cancelled."""
        context, idle = self._context, self._context.idle_queues
        idle.pop(self._message_queue, None)
        while True:
            if self._revision != context.options_revision:
                self._configure()
            if self.request.reset_to is not None:
                await self._take_reset()
            if self._corrupt.held_records:
                await self._corrupt.settle_held()
                continue
            if (reason := self._hold_back()) is not None:
                await self._wait_for_relief(reason)
                continue
            if self.process_queue.next_pull_overlaps_cache():
                await self._wait_while(self.process_queue.next_pull_overlaps_cache)
                continue
            if context.end_offsets and self._is_at_end():
                await self._wait_while(self._is_at_end)
                continue
            if context.rate_limit.per_second:
                await self._wait_for_rate()
            try:
                reply = await self._pull()
                if self._moves.must_recheck and await self._moves.recheck_queue(reply):
                    idle.pop(self._message_queue, None)
                elif reply.code == FOUND_CODE:
                    idle.pop(self._message_queue, None)
                    await self._found(reply)
                else:
                    await self._not_found(reply)
                self.failure, is_found = None, reply.code == FOUND_CODE
                del reply  # otherwise it needs memory until the next response
                if self._interval and is_found:  # not after an empty response, which would delay the next message
                    await context.clock.sleep(self._interval)
            except RmqdError as error:
                idle.pop(self._message_queue, None)
                await self._failed(error)

    async def move_to(self, offset: int) -> None:
        """Drop the cache and continue at `offset` after an operator's reset. Must not be called while `run` runs."""
        log.warning(
            "offset.moved", queue=str(self._message_queue), offset=self.process_queue.next_offset, moved_to=offset
        )
        try:
            await self._moves.restart_at(offset)
        except RmqdError as error:  # the next round of commits retries
            if not error.is_reported:
                log.warning("offset.commit_failed", queue=str(self._message_queue), offset=offset, error=str(error))

    def restart_at(self, offset: int, because: str) -> None:
        super().restart_at(offset, because)
        self._corrupt.held_records.clear()  # the cache of these messages is dropped
        self._validation.forget_responses()

    def apply_options(self) -> int:
        """Apply the group's changed options at once instead of at the next pull.

        If the filter changed, the pull in flight is sent again, because the broker may apply the old filter to messages
        stored later. Returns the number of cached messages that were finished because the new tags do not match them.
        """
        if not self._configure():
            return 0
        self.request.repeat_pull()
        return self._acceptor.discard_unwanted(self.process_queue)

    async def _take_reset(self) -> None:
        offset, self.request.reset_to = self.request.reset_to, None
        assert offset is not None
        try:
            await self._moves.apply_reset(offset)
        except RmqdError as error:
            await self._failed(error)

    def _configure(self) -> bool:
        """Apply the group's current options if they changed. Return whether the filter changed."""
        context, topic = self._context, self._message_queue.topic
        self._revision = context.options_revision
        options, subscription = context.options, context.subscriptions[topic]
        self._interval = options.pull_interval_seconds
        self._validation.has_no_filter = subscription.matches_all_messages
        self._acceptor.select_tags(subscription.tags_set)
        self._batch_size = context.rate_limit.batch_limit(options.pull_batch_size)
        is_other = self.request.set_filter(subscription)
        if is_other:
            self.process_queue.note_skipped_by_broker(int(context.clock.wall() * 1000))
        return is_other

    def _is_at_end(self) -> bool:
        """Return whether the group reads this queue up to an end offset, and has pulled all messages below it."""
        end = self._context.end_offsets.get(self._message_queue)
        return end is not None and self.process_queue.next_offset >= end

    async def _pull(self) -> RemotingCommand:
        self.last_request_at = self._context.clock.monotonic()
        offset = self.process_queue.next_offset
        most, carry = self._validation.batch_limit(offset, self._batch_size), None
        has_news = self.process_queue.commit_offset() != self._context.store.committed.get(self._message_queue)
        if has_news and self.last_request_at - self._carried_at >= COMMIT_PAUSE_SECONDS:
            self._carried_at, carry = self.last_request_at, self._carry
        replica = self.request.address, self.request.at_master
        hold_ms = BROKER_HOLD_MS if self._moves.lowest_refused_end is None else 0  # a held pull would delay a reset
        reply = await self.request.pull(offset, most, hold_ms, carry)
        self.last_response_at = self._context.clock.monotonic()
        if (self.request.address, self.request.at_master) != replica:
            # the stored snapshot of an idle queue contains the previous replica
            self._context.idle_queues.pop(self._message_queue, None)
        return reply

    async def _carry(self, on: RemotingConnection) -> CarriedCommit | None:
        """Prepare a commit of the finished messages in the next pull on this connection; None if not allowed."""
        queue, offset = self._message_queue, self.process_queue.commit_offset()
        return await self._context.store.commit_with_pull(queue, offset, on, self._may_carry)

    def _may_carry(self) -> bool:
        return self.request.reset_to is None and self._context.ownership.holds(self._message_queue)

    async def _found(self, reply: RemotingCommand) -> None:
        header = PullMessageResponseHeader.from_ext_fields(reply.ext_fields)
        self.request.broker_id, self.max_offset = header.suggest_which_broker_id, header.max_offset
        block = frame_messages(
            reply.payload, self._message_queue, reply.body_start, self._namespace, header.offset_delta
        )
        block.origin, block.min_offset, block.max_offset = self._origin, header.min_offset, header.max_offset
        process_queue, asked = self.process_queue, self.process_queue.next_offset
        trusted: TrustedPart | None = None  # None if the whole response is trusted, as almost always
        next_offset, passes_over = header.next_begin_offset, True
        held: Sequence[Message] = ()
        block.is_closed = block.is_closed or len(block.data) > self._context.options.max_body_size_bytes
        if block.is_closed or not self._validation.is_fully_trusted(block, asked, header):
            passes_over = self._corrupt.policy != "stop"
            trusted = self._validation.validate_found(block, asked, header, passes_over=passes_over)
            if block.is_closed:
                if not await decompress_pulled(block, self._context, process_queue):
                    return
                trusted = self._validation.validate_opened(block, asked, trusted, passes_over=passes_over)
            next_offset, held = trusted.next_offset, self._corrupt.hold_records(trusted.bad) if passes_over else ()
        process_queue.stats.count_pull(self.last_response_at - self.last_request_at)
        self._acceptor.accept(block, process_queue, next_offset, held)
        if next_offset > asked:
            self.stuck = None
            if self._failed_since_success:
                self._reset_failures()
        if trusted is not None:
            await self._wait_or_pull_again(trusted, asked, passes_over=passes_over)

    async def _wait_or_pull_again(self, trusted: TrustedPart, asked: int, *, passes_over: bool) -> None:
        """Called if a response is not trusted completely. Stop at a corrupt message, or pull again at the master."""
        if trusted.bad and not passes_over:
            await self._corrupt.wait_at_corrupt(trusted.bad[-1])
        elif trusted.contradiction is not None:
            self.request.broker_id = 0
            self._failed_since_success = True
            if trusted.next_offset == asked:
                self._validation.made_no_progress(trusted.contradiction)

    def _reset_failures(self) -> None:
        """Called when a pull succeeds after failures: forget the failures and suspect offers of the broker."""
        self._backoff.on_success()
        self._moves.forget_suspect_offers()
        self._failed_since_success = self._validation.on_progress(self.process_queue.next_offset)

    async def _not_found(self, reply: RemotingCommand) -> None:
        if reply.code in NOTHING_FOUND_CODES:
            header, before = PullMessageResponseHeader.from_ext_fields(reply.ext_fields), self.request.broker_id
            self.request.broker_id, self.max_offset = header.suggest_which_broker_id, header.max_offset
            asked = self.process_queue.next_offset
            if header.next_begin_offset < asked and is_logical_broker(self._message_queue.broker_name):
                await self.on_offset_moved(reply)  # for logical queues, brokers send this instead of PULL_OFFSET_MOVED
                return
            self.process_queue.continue_at(self._validation.validate_empty(asked, header))
            self.stuck = None
            if self.has_backlog or self.process_queue.next_offset != asked or self.request.broker_id != before:
                self._context.idle_queues.pop(self._message_queue, None)
            if header.next_begin_offset <= asked and self.last_response_at - self.last_request_at < MIN_HELD_SECONDS:
                self._failed_since_success = True
                await self._context.clock.sleep(self._backoff.pause_after_empty())
                return
            if self._failed_since_success:
                self._reset_failures()
        elif reply.code == OFFSET_MOVED_CODE:
            await self.on_offset_moved(reply)
        else:
            raise BrokerError.of(reply.code, reply.remark, self._message_queue.broker_name)

    async def on_offset_moved(self, reply: RemotingCommand) -> None:
        self._failed_since_success = True
        self._context.idle_queues.pop(self._message_queue, None)
        await self._moves.handle_offered_offset(reply)

    async def _failed(self, error: RmqdError) -> None:
        if isinstance(error, PullRepeatedError | ConnectionRenewedError):
            return
        before = self.failure
        self.failure, self._failed_since_success = error, True
        if isinstance(error, ProtocolError):
            self._contradicted(error, before)
        is_again = isinstance(error, SystemBusyError) and isinstance(before, SystemBusyError)
        if not (error.is_reported or is_again or isinstance(error, FlowControlError | GoAwayError)):
            log.warning("pull.failed", queue=str(self._message_queue), error=str(error))
        if isinstance(error, TopicNotExistError):
            self._moves.request_recheck()
            if is_retry_topic(self._message_queue.topic):  # deleted together with the group; a heartbeat recreates both
                self._context.client.heartbeat.send_heartbeats_soon()
        if self._bring_up_to_date(error):
            self.request.broker_id = 0
        if not (isinstance(error, RemotingError) and self.request.has_other_address()):
            await self._context.clock.sleep(self._backoff.pause_after_error(error, at_master=self.request.at_master))

    def _contradicted(self, error: ProtocolError, before: RmqdError | None) -> None:
        """Mark the queue as stuck after several equal contradictory responses."""
        self._alike = self._alike + 1 if before is not None and str(before) == str(error) else 1
        if self._alike >= MAX_EQUAL_CONTRADICTIONS:
            step = "no message is skipped; see the broker's log for the cause"
            self.stuck = self._context.make_problem("pull_failed", str(error), step=step)
