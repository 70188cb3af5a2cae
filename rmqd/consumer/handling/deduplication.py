"""`deduplicate`: no handler gets a message that another one has, or that one is done with.

Before a batch is handed to the handler its messages are claimed in the group's store. Those that are confirmed there
are acknowledged, and left out of the batch. Those that somebody else has claimed are left out too, and looked at again
a little later: no attempt counts, and nothing is acknowledged before the other one has confirmed it. When the batch is
settled, what the group is done with is confirmed, before it counts as acknowledged; the rest is released. Which
messages those are the settlement knows, whose rules differ by consume mode.

A store that does not answer is waited for, on both sides of the call: nothing is handled without a claim, and nothing
is acknowledged without its confirmation. That is no time of the handler's, so `consume_timeout` does not count it.

What a process that dies leaves behind is in docs/deduplication.md.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Final

from rmqd.claims.opening import open_store
from rmqd.claims.store import Standing, Terms, key_of
from rmqd.clock import Clock
from rmqd.consumer.cache.keyed_process_queue import value_by
from rmqd.consumer.cache.process_queue import ProcessQueue
from rmqd.consumer.handling.held_claims import LEASE_SECONDS, Claim, HeldClaims
from rmqd.consumer.handling.verdict import HANDLED_BEFORE
from rmqd.consumer.handling.worker import Worker
from rmqd.consumer.options import ConsumerOptions
from rmqd.diagnosis.causes import Problem, found
from rmqd.handler_api import Batch, Decision, Outcome
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.message import Message
from rmqd.wire.topics import unwrap_namespace

LOOK_AGAIN_SECONDS: Final = 1.0  # at what another member has claimed
LOOK_AGAIN_HERE_SECONDS: Final = 0.1  # at what this process has
SEEN_SECONDS: Final = 5.0  # for which a claim of another member counts as what a queue waits for
BY_ID: Final = "msg_id"
_WAIT: Final = Decision(Outcome.AGAIN, seconds=LOOK_AGAIN_SECONDS)
_WAIT_HERE: Final = Decision(Outcome.AGAIN, seconds=LOOK_AGAIN_HERE_SECONDS)

Call = Callable[[Batch], Awaitable[object]]


class Deduplication:
    """What one group does about messages that come again, in this process."""

    def __init__(self, options: ConsumerOptions, clock: Clock, is_paused: Callable[[], bool]) -> None:
        """`is_paused` tells whether an operator wants no calls to begin."""
        assert options.deduplication is not None
        self.clock = clock
        self._is_paused = is_paused
        self._group = unwrap_namespace(options.group, options.namespace)
        self._in_order = options.consume_mode == "orderly" and not options.order_by
        owner = secrets.token_hex(8)
        terms = Terms(options.group, owner, LEASE_SECONDS, options.deduplication.keep_seconds)
        store = open_store(options.deduplication.store, options.deduplication.url, terms)
        self._claims = HeldClaims(store, owner, clock)
        self.run = self._claims.run
        self._is_by_id = options.deduplication.by == BY_ID
        self._id_of = _id_by(options.deduplication.by)
        self._calls: dict[Batch, _ClaimedCall] = {}  # until their batches are settled
        self._held_elsewhere: dict[MessageQueue, float] = {}  # when that was last seen (monotonic)

    def around(self, call: Call, worker: Callable[[], Worker]) -> Call:
        """A call for one worker."""

        async def claimed(batch: Batch) -> object:
            return await self._call(call, batch, worker())

        return claimed

    async def close(self) -> None:
        """Comes after the last call. What handlers have acknowledged of calls that the end cut short is confirmed."""
        for called in self._calls.values():
            if called.claim.has_ended:
                self._claims.owe(called.claim, called.acknowledged(in_order=self._in_order))
        await self._claims.close()

    def explain(self, process_queue: ProcessQueue) -> Problem | None:
        """What keeps messages of a queue from the handler, if that is the store or another member's claim."""
        if (problem := self.problem) is not None:
            return problem
        seen = self._held_elsewhere.get(process_queue.message_queue)
        if seen is None or self.clock.monotonic() - seen > SEEN_SECONDS:
            return None
        evidence = "another member has claimed messages of it, or had when it died; its claims end after"
        return found("claimed_elsewhere", f"{evidence} {LEASE_SECONDS:.0f} s", group=self._group)

    @property
    def problem(self) -> Problem | None:
        """What keeps the whole group from handling: a store that does not answer."""
        if not self._claims.failure:
            return None
        evidence = f"nothing is handled without a claim: {self._claims.failure}"
        return found("claim_store_away", evidence, group=self._group)

    async def confirm_settled(self, batch: Batch, done: Sequence[int], *, more_follows: bool) -> None:
        """Confirm what the group is done with of a batch, by index, before it is acknowledged; waits for the store.

        The rest is given up, unless `more_follows`, when the call has ended, which one past its deadline may not have:
        at once, as what failed need not wait for the store.
        """
        if (called := self._calls.get(batch)) is None:
            return
        if more_follows:
            await self._claims.confirm(called.claim, done)
            return
        del self._calls[batch]
        if called.claim.has_ended:
            self._claims.release(called.claim, set(called.claim.keys).difference(done))
        await self._claims.confirm(called.claim, done)
        called.is_settled = True
        if called.claim.has_ended:
            self._claims.release(called.claim)

    def abandon(self, batch: Batch) -> Callable[[], None]:
        """A call goes on, and nobody waits for it any more.

        Its claim ends with the lease, should it never end. Returns what is to be called when it ends.
        """
        called = self._calls[batch]
        self._claims.abandon(called.claim)

        def ended() -> None:
            called.claim.has_ended = True
            if called.is_settled:  # else the settlement says which of them are done with
                self._claims.release(called.claim)

        return ended

    async def _call(self, call: Call, batch: Batch, worker: Worker) -> object:
        """Call the handler with what it may have. Raises what it raises."""
        assert worker.process_queue is not None
        worker.batch, worker.is_called = None, False  # the handler has nothing while the store is asked
        claim = await worker.undisturbed(self._claim(batch, worker.process_queue), "claim")
        if claim is None:
            return None
        called = self._calls[batch] = _ClaimedCall(batch, claim)
        worker.batch, worker.is_called, worker.started = batch, True, self.clock.monotonic()
        try:
            return await call(called.part)
        finally:
            if not claim.is_abandoned:
                claim.has_ended = True

    async def _claim(self, batch: Batch, process_queue: ProcessQueue) -> Claim | None:
        """Claim what the handler may have, and decide about the rest of the batch; None if that is all of it.

        What has no id of the wanted kind needs no claim, and no message of the batch may have one: an empty claim.
        """
        claims = self._claims
        claim = claims.new()
        most = self._reserve(batch, claim)

        def gives_up() -> bool:
            return process_queue.leaving or process_queue.dropped or batch.revoked

        try:
            standings = await claims.ask(claim, gives_up)
        except BaseException:
            claims.release(claim)
            raise
        is_held = process_queue.is_paused or self._is_paused()  # since the store was asked
        if standings is None or process_queue.dropped or batch.revoked or is_held:
            claims.release(claim)
            self._leave_out(batch, range(len(batch)), _WAIT)
            return None
        for index, standing in standings.items():
            if index >= most:
                break
            if standing is Standing.CONFIRMED:
                self._leave_out(batch, (index,), HANDLED_BEFORE)
            elif standing is Standing.HELD:
                self._leave_out(batch, (index,), _WAIT)
                if self._in_order:
                    most = index
        if Standing.HELD in standings.values():
            self._note_held(process_queue.message_queue)
        claims.forget(claim, [index for index, standing in standings.items() if standing is not Standing.OURS])
        claims.release(claim, [index for index in claim.keys if index >= most])
        if most < len(batch):  # nothing of the queue may pass what waits
            self._leave_out(batch, range(most, len(batch)), _WAIT)
        return claim if len(batch.decisions()) < len(batch) else None

    def _reserve(self, batch: Batch, claim: Claim) -> int:
        """Note which claims are to be asked for. Returns the index from which on all must wait."""
        for index, message in enumerate(batch):
            name = self._id_of(message)
            # a former record names the topic alone, which lite topics share, and a key may come in each of them
            former = "" if message.lite_topic and not self._is_by_id else message.topic
            if name and not self._claims.reserve(claim, index, key_of(str(message.identity), name), former):
                # two of one batch, or with another worker
                self._leave_out(batch, (index,), _WAIT_HERE)
                if self._in_order:
                    self._leave_out(batch, range(index, len(batch)), _WAIT_HERE)
                    return index
        return len(batch)

    def _note_held(self, message_queue: MessageQueue) -> None:
        now = self.clock.monotonic()
        seen = {queue: at for queue, at in self._held_elsewhere.items() if now - at <= SEEN_SECONDS}
        self._held_elsewhere = {**seen, message_queue: now}

    def _leave_out(self, batch: Batch, indexes: Iterable[int], decision: Decision) -> None:
        for index in indexes:
            batch.decide(index, decision)


class _ClaimedCall:
    """One batch that the handler has, or a part of it, until it is settled."""

    def __init__(self, batch: Batch, claim: Claim) -> None:
        self.claim = claim
        self.is_settled = False
        self._batch = batch
        if batch.decided is None:
            batch.decided = {}  # it is never taken for one without claims
        self.part = batch.undecided()
        """What the handler gets."""

    def acknowledged(self, *, in_order: bool) -> Iterator[int]:
        """What the handler has acknowledged by itself.

        In the order of the queue nothing that stands behind something else; with `order_by` no two have one key.
        """
        decided = self._batch.decisions()
        for index in range(len(self._batch)):
            if index in decided and decided[index].outcome is Outcome.ACK:
                yield index
            elif in_order:
                return


def _id_by(by: str) -> Callable[[Message], str | None]:
    """What returns the id that a message is known by; None or an empty text for one that has none of this kind."""
    return (lambda message: message.lasting_id) if by == BY_ID else value_by(by)
