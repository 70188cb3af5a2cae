"""`deduplicate`: a handler gets no messages that were handled before, or that another handler call has now.

Before a batch is handed to the handler, its messages are claimed in the group's store. Messages with a confirmed record
are acknowledged without a call. Messages with a claim of another process are left out too, and claimed again a little
later: this costs no attempt. They are acknowledged only after the other process has confirmed them. When the batch is
settled, its finished messages are confirmed before they are acknowledged, and the other claims are released. The
settlement decides which messages are finished, because the rules differ by consume mode.

If the store is unavailable, the group waits for it before and after the call: no message is handled without a claim,
and none is acknowledged without confirmation. `consume_timeout` does not include this wait.

docs/deduplication.md describes the claims of a process that died.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from rmqd.consumer.cache.process_queue import ProcessQueue
from rmqd.consumer.consumer_options import ConsumerOptions
from rmqd.consumer.handling.batch_worker import HandlerCall, Worker
from rmqd.consumer.handling.handler_failures import HANDLED_BEFORE_DECISION
from rmqd.consumer.handling.held_claims import LEASE_SECONDS, Claim, HeldClaims
from rmqd.consumer.health.causes import Problem, make_problem
from rmqd.handler_api.batch import Batch, Decision, Outcome
from rmqd.handler_api.leases.lease_opening import create_claim_store
from rmqd.handler_api.leases.lease_store import ClaimState, ClaimTerms, claim_key_of
from rmqd.runtime.clock import Clock
from rmqd.runtime.plain_text import duration
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.properties import value_reader

CLAIM_RETRY_SECONDS: Final = 1.0  # interval between attempts to claim a message that another member has claimed
OWN_CLAIM_RETRY_SECONDS: Final = 0.1  # interval if another call of this process has claimed the message
CLAIM_SEEN_SECONDS: Final = 5.0  # how long a seen claim of another member counts as the reason why a queue waits
BY_MESSAGE_ID: Final = "msg_id"
_WAIT: Final = Decision(Outcome.AGAIN, seconds=CLAIM_RETRY_SECONDS)
_WAIT_HERE: Final = Decision(Outcome.AGAIN, seconds=OWN_CLAIM_RETRY_SECONDS)


class Deduplication:
    """The deduplication of one group in this process."""

    def __init__(self, options: ConsumerOptions, clock: Clock, is_paused: Callable[[], bool]) -> None:
        """`is_paused` returns whether an operator has paused the group."""
        assert options.deduplication is not None
        self.clock = clock
        self._is_paused = is_paused
        self._group = options.group_without_namespace
        self._in_order = options.keeps_queue_order
        owner = secrets.token_hex(8)
        terms = ClaimTerms(options.group, owner, LEASE_SECONDS, options.deduplication.keep_seconds)
        store = create_claim_store(options.deduplication.store, options.deduplication.url, terms)
        self._claims = HeldClaims(store, owner, clock)
        self.run = self._claims.run
        self._is_by_id = options.deduplication.by == BY_MESSAGE_ID
        self._id_of = value_reader(options.deduplication.by)
        self._calls: dict[Batch, Claim] = {}  # calls whose batches are not settled
        self._held_elsewhere: dict[MessageQueue, float] = {}  # when another member's claim was last seen (monotonic)

    async def close(self) -> None:
        """Confirm acknowledged messages of unsettled calls, and close the claims. Call after the last handler call."""
        for batch, claim in self._calls.items():
            if claim.has_ended:
                self._claims.confirm_at_close(claim, self._acknowledged(batch))
        await self._claims.close()

    def explain(self, process_queue: ProcessQueue) -> Problem | None:
        """Return the problem that stops messages of a queue: an unavailable store, or another member's claim."""
        if (problem := self.problem) is not None:
            return problem
        seen = self._held_elsewhere.get(process_queue.message_queue)
        if seen is None or self.clock.monotonic() - seen > CLAIM_SEEN_SECONDS:
            return None
        evidence = "messages are claimed by another member, which may have died; its claims expire after"
        return make_problem("claimed_elsewhere", f"{evidence} {duration(LEASE_SECONDS)}", group=self._group)

    @property
    def problem(self) -> Problem | None:
        """The problem that stops the whole group: an unavailable store."""
        if not self._claims.failure:
            return None
        evidence = f"messages wait for the store of deduplicate: {self._claims.failure}"
        return make_problem("claim_store_away", evidence, group=self._group)

    async def confirm_settled(self, batch: Batch, done: Sequence[int], *, more_follows: bool) -> None:
        """Confirm finished messages, whose indexes are `done`, before they are acknowledged. Waits for the store.

        If `more_follows`, this method will be called again for the batch. Otherwise the claims of the other messages
        are released first, because failed messages need not wait for the store. If an expired call still runs, the
        other claims are released when the call ends.
        """
        if (claim := self._calls.get(batch)) is None:
            return
        if more_follows:
            await self._claims.confirm(claim, done)
            return
        del self._calls[batch]
        if claim.has_ended:
            self._claims.release(claim, set(claim.keys).difference(done))
        await self._claims.confirm(claim, done)
        claim.is_settled = True
        if claim.has_ended:
            self._claims.release(claim)

    def abandon(self, batch: Batch) -> Callable[[], None]:
        """Stop waiting for a call that still runs. The caller must call the returned function when the call ends.

        If the call never ends, its claim expires with the lease.
        """
        claim = self._calls[batch]
        self._claims.abandon(claim)

        def ended() -> None:
            claim.has_ended = True
            # the claims of an unsettled batch are released after its finished messages are confirmed
            if claim.is_settled:
                self._claims.release(claim)

        return ended

    async def claim(self, call: HandlerCall, worker: Worker, batch: Batch) -> object:
        """Claim the batch, and call the handler with the claimed messages. A stage of `HandlerSlots._call_of`."""
        assert worker.process_queue is not None
        worker.batch, worker.is_handler_called = None, False  # the handler has no batch during the store's request
        claim = await worker.wait_unless_replaced(self._claim(batch, worker.process_queue), "claim")
        if claim is None:
            return None
        self._calls[batch] = claim
        if batch.decided is None:
            batch.decided = {}  # not None, or the worker would acknowledge the batch without confirming the claims
        worker.batch, worker.is_handler_called, worker.started = batch, True, self.clock.monotonic()
        try:
            return await call(batch.undecided())
        finally:
            if not claim.is_abandoned:
                claim.has_ended = True

    async def _claim(self, batch: Batch, process_queue: ProcessQueue) -> Claim | None:
        """Claim messages for the handler, and decide about the rest of the batch. None if the handler gets no message.

        A message without an id of the configured kind needs no claim. If no message has an id, the claim is empty.
        """
        claims = self._claims
        claim = claims.create_claim()
        most = self._reserve(batch, claim)

        def gives_up() -> bool:
            return process_queue.is_releasing or process_queue.dropped or batch.revoked

        try:
            standings = await claims.claim_in_store(claim, gives_up)
        except BaseException:
            claims.release(claim)
            raise
        is_held = process_queue.is_paused or self._is_paused()  # may have changed during the store's request
        if standings is None or process_queue.dropped or batch.revoked or is_held:
            claims.release(claim)
            self._leave_out(batch, range(len(batch)), _WAIT)
            return None
        for index, standing in standings.items():
            if index >= most:
                break
            if standing is ClaimState.CONFIRMED:
                self._leave_out(batch, (index,), HANDLED_BEFORE_DECISION)
            elif standing is ClaimState.HELD:
                self._leave_out(batch, (index,), _WAIT)
                if self._in_order:
                    most = index
        if ClaimState.HELD in standings.values():
            now = self.clock.monotonic()
            seen = {queue: at for queue, at in self._held_elsewhere.items() if now - at <= CLAIM_SEEN_SECONDS}
            self._held_elsewhere = {**seen, process_queue.message_queue: now}
        claims.remove_keys(claim, [index for index, standing in standings.items() if standing is not ClaimState.OURS])
        claims.release(claim, [index for index in claim.keys if index >= most])
        if most < len(batch):  # in an orderly queue, no message may overtake a waiting message
            self._leave_out(batch, range(most, len(batch)), _WAIT)
        return claim if len(batch.decisions()) < len(batch) else None

    def _reserve(self, batch: Batch, claim: Claim) -> int:
        """Reserve the keys to claim. Returns how many messages, counted from the first one, need not wait."""
        for index, message in enumerate(batch):
            name = self._id_of(message)
            # `former` is the topic in records of rmqd 0.1.0, which recorded the parent topic of a lite topic. Equal ids
            # of different lite topics would collide there; only message ids are unique.
            former = "" if message.lite_topic and not self._is_by_id else message.topic
            if name and not self._claims.reserve(claim, index, claim_key_of(str(message.identity), name), former):
                # a duplicate within the batch, or in the batch of another worker
                self._leave_out(batch, (index,), _WAIT_HERE)
                if self._in_order:
                    self._leave_out(batch, range(index, len(batch)), _WAIT_HERE)
                    return index
        return len(batch)

    def _acknowledged(self, batch: Batch) -> Iterator[int]:
        """Yield the indexes of the messages that the handler itself has acknowledged.

        In an orderly queue, stop at the first message that is not acknowledged.
        """
        decided = batch.decisions()
        for index in range(len(batch)):
            if index in decided and decided[index].outcome is Outcome.ACK:
                yield index
            elif self._in_order:
                return

    def _leave_out(self, batch: Batch, indexes: Iterable[int], decision: Decision) -> None:
        for index in indexes:
            batch.decide(index, decision)
