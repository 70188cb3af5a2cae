"""`deduplicate`: no handler gets a message that another one has, or that one is done with.

Before a batch is handed to the handler its messages are claimed in the group's store. Those that are confirmed there
are acknowledged, and left out of the batch. Those that somebody else has claimed are left out too, and looked at again
a little later: no attempt counts, and nothing is acknowledged before the other one has confirmed it. When the handler
is done, what it acknowledged is confirmed, before the batch is settled; what failed is released.

A store that does not answer is waited for, on both sides of the call: nothing is handled without a claim, and nothing
is acknowledged without its confirmation. That is no time of the handler's, so `consume_timeout` does not count it.

What a process that dies leaves behind is in docs/deduplication.md.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import structlog

from rmqd.backoff import doubled
from rmqd.claims.opening import open_store
from rmqd.claims.store import ClaimStoreError, Held, Key, Standing, Terms, key_of
from rmqd.clock import Clock, wait_within
from rmqd.consumer.cache.keyed_process_queue import value_by
from rmqd.consumer.cache.process_queue import ProcessQueue
from rmqd.consumer.handling.threads import check_result
from rmqd.consumer.handling.verdict import HANDLED_BEFORE, not_acknowledged
from rmqd.consumer.handling.worker import Worker
from rmqd.consumer.options import ConsumerOptions
from rmqd.diagnosis.causes import Problem, found
from rmqd.handler_api import Batch, Decision, LoadedHandler, Outcome
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.message import Message
from rmqd.wire.topics import unwrap_namespace

log = structlog.get_logger(__name__)

LEASE_SECONDS: Final = 30.0
RENEW_SECONDS: Final = LEASE_SECONDS / 3
PURGE_SECONDS: Final = 60.0
LOOK_AGAIN_SECONDS: Final = 1.0  # at what another member has claimed
LOOK_AGAIN_HERE_SECONDS: Final = 0.1  # at what this process has
SEEN_SECONDS: Final = 5.0  # for which a claim of another member counts as what a queue waits for
FIRST_PAUSE_SECONDS: Final = 0.1  # before a store that did not answer is asked again
LONGEST_PAUSE_SECONDS: Final = 2.0
CLOSE_SECONDS: Final = 3.0  # for the last claims to be released
BY_ID: Final = "msg_id"
_WAIT: Final = Decision(Outcome.AGAIN, seconds=LOOK_AGAIN_SECONDS)
_WAIT_HERE: Final = Decision(Outcome.AGAIN, seconds=LOOK_AGAIN_HERE_SECONDS)

Call = Callable[[Batch], Awaitable[object]]


@dataclass(slots=True)
class _Claim:
    """What is claimed for one call of the handler."""

    token: str
    worker: Worker
    keys: dict[int, Key] = field(default_factory=dict)
    """By index in the batch."""
    was_given_up: bool = False
    """Whether the call may still be running, and nobody waits for it."""

    @property
    def is_lapsing(self) -> bool:
        """Whether its lease is not to be renewed."""
        return self.was_given_up or self.worker.expired or self.worker.replaced


class Deduplication:
    """The claims of one group in this process. `run` keeps them alive; `close` comes after the last call."""

    def __init__(self, options: ConsumerOptions, handler: LoadedHandler, clock: Clock) -> None:
        assert options.deduplication is not None
        self.clock = clock
        self.handler = handler
        self._options = options.deduplication
        self._group = unwrap_namespace(options.group, options.namespace)
        self._in_order = options.consume_mode == "orderly" and not options.order_by
        self._in_place = options.repeats_in_place
        self._owner = secrets.token_hex(8)
        self._numbers = itertools.count(1)
        terms = Terms(options.group, self._owner, LEASE_SECONDS, self._options.keep_seconds)
        self._store = open_store(self._options.store, self._options.url, terms)
        self._id_of = _id_by(self._options.by)
        self._claims: dict[Key, _Claim] = {}
        self._released: list[tuple[float, Held]] = []  # with when that was (monotonic)
        self._news = asyncio.Event()  # something is to be released
        self._failure = ""
        self._held_elsewhere: dict[MessageQueue, float] = {}  # when that was last seen (monotonic)

    def around(self, call: Call, worker: Callable[[], Worker]) -> Call:
        """A call for one worker."""

        async def claimed(batch: Batch) -> object:
            return await _ClaimedCall(self, call, batch, worker()).run()

        return claimed

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
        if not self._failure:
            return None
        return found("claim_store_away", f"nothing is handled without a claim: {self._failure}", group=self._group)

    async def claim(self, batch: Batch, process_queue: ProcessQueue, worker: Worker) -> _Claim | None:
        """Claim what the handler may have, and decide about the rest of the batch; None if that is all of it.

        What has no id of the wanted kind needs no claim, and no message of the batch may have one: an empty claim.
        """
        claim = _Claim(f"{self._owner}:{next(self._numbers)}", worker)
        most = self._reserve(batch, claim)
        try:
            standings = await self._ask(batch, process_queue, claim)
        except BaseException:
            self.release(claim, claim.keys)
            raise
        if standings is None or process_queue.dropped or batch.revoked:
            self.release(claim, claim.keys)
            self._leave_out(batch, range(len(batch)), _WAIT)
            return None
        for index, standing in standings.items():
            if index >= most:
                break
            if standing is Standing.CONFIRMED:
                self._leave_out(batch, (index,), HANDLED_BEFORE)
                process_queue.stats.of(batch[index]).deduplicated += 1
            elif standing is Standing.HELD:
                self._held_elsewhere[process_queue.message_queue] = self.clock.monotonic()
                self._leave_out(batch, (index,), _WAIT)
                if self._in_order:
                    most = index
        self._forget(claim, [index for index, standing in standings.items() if standing is not Standing.OURS])
        self.release(claim, [index for index in claim.keys if index >= most])
        if most < len(batch):  # nothing of the queue may pass what waits
            self._leave_out(batch, range(most, len(batch)), _WAIT)
        return claim if len(batch.decisions()) < len(batch) else None

    async def confirm(self, claim: _Claim, indexes: Sequence[int]) -> None:
        """Note that messages are done with; waits for the store."""
        keys = [claim.keys[index] for index in indexes]
        for attempt in itertools.count(1):
            try:
                lost = await self._store.confirm(keys, claim.token)
            except ClaimStoreError as error:
                await self._wait(error, attempt)
            else:
                break
        self._failure = ""
        self._forget(claim, indexes)
        if lost:
            log.warning("claim.lost", messages=lost, lease_seconds=LEASE_SECONDS)

    def release(self, claim: _Claim, indexes: Iterable[int]) -> None:
        """Give claims up, so that the next attempt may have them. The store hears of it in a moment."""
        indexes = list(indexes)
        now = self.clock.monotonic()
        self._released += [(now, (claim.keys[index], claim.token)) for index in indexes]
        if indexes:
            self._news.set()
        self._forget(claim, indexes)

    def let_lapse(self, claim: _Claim) -> None:
        """Renew these claims no more: the call may still be running, and nobody waits for it."""
        claim.was_given_up = True
        if self._in_place:  # they are repeated here, and not before the call has ended
            self._forget(claim, list(claim.keys))
        else:
            self.clock.call_later(LEASE_SECONDS, self._forget, claim, list(claim.keys))

    async def run(self) -> None:
        """Renew leases, release claims, and delete what is over, until cancelled."""
        renewed = purged = self.clock.monotonic()
        failures = 0
        while True:
            await wait_within(self.clock, max(0.0, renewed + RENEW_SECONDS - self.clock.monotonic()), self._news.wait())
            now = self.clock.monotonic()
            try:
                if now - renewed >= RENEW_SECONDS:  # first: nothing else may keep it from that
                    await self._renew()
                    renewed = now
                await self._send_releases()
                if now - purged >= PURGE_SECONDS:
                    purged = now
                    await self._store.purge()
            except ClaimStoreError as error:
                failures += 1
                await self._wait(error, failures)
            else:
                failures = 0

    async def close(self) -> None:
        """Release what is left, and end the connections."""
        try:
            async with self.clock.timeout(CLOSE_SECONDS):
                await self._send_releases()
        except (ClaimStoreError, TimeoutError) as error:
            log.warning("claims.left", messages=len(self._released), seconds=LEASE_SECONDS, error=str(error))
        await self._store.close()

    def _reserve(self, batch: Batch, claim: _Claim) -> int:
        """Note which claims are to be asked for. Returns the index from which on all must wait."""
        for index, message in enumerate(batch):
            name = self._id_of(message)
            if not name:
                continue
            key = key_of(message.topic, name)
            if key not in self._claims:
                self._claims[key] = claim
                claim.keys[index] = key
            else:  # two of one batch, or with another worker
                self._leave_out(batch, (index,), _WAIT_HERE)
                if self._in_order:
                    self._leave_out(batch, range(index, len(batch)), _WAIT_HERE)
                    return index
        return len(batch)

    async def _ask(self, batch: Batch, process_queue: ProcessQueue, claim: _Claim) -> Mapping[int, Standing] | None:
        """What the store says; waits for it as long as the queue is ours to be handed out. None if it is not."""
        if not claim.keys:
            return {}
        for attempt in itertools.count(1):
            try:
                standings = await self._store.claim(list(claim.keys.values()), claim.token)
            except ClaimStoreError as error:
                if process_queue.leaving or process_queue.dropped or batch.revoked:
                    return None
                await self._wait(error, attempt)
            else:
                break
        self._failure = ""
        return dict(zip(claim.keys, standings, strict=True))

    async def _wait(self, error: ClaimStoreError, attempt: int) -> None:
        self._failure = str(error)
        await self.clock.sleep(doubled(FIRST_PAUSE_SECONDS, attempt, LONGEST_PAUSE_SECONDS))

    async def _renew(self) -> None:
        # a call past its deadline has the lease that it has: should it never end, others are to go on
        held = [(key, one.token) for key, one in self._claims.items() if not one.is_lapsing]
        if held or self._failure:  # without claims, to hear whether the store is back
            await self._store.renew(held)
            self._failure = ""

    async def _send_releases(self) -> None:
        self._news.clear()
        over = self.clock.monotonic() - LEASE_SECONDS  # by then they have ended by themselves
        self._released = [(since, held) for since, held in self._released if since > over]
        sent = self._released[:]
        if sent:
            await self._store.release([held for _, held in sent])
            del self._released[: len(sent)]
            self._failure = ""

    def _forget(self, claim: _Claim, indexes: Iterable[int]) -> None:
        for index in indexes:
            key = claim.keys.pop(index, None)
            if key is not None and self._claims.get(key) is claim:
                del self._claims[key]

    def _leave_out(self, batch: Batch, indexes: Iterable[int], decision: Decision) -> None:
        for index in indexes:
            batch.decide(index, decision)

    def done_with(self, part: Batch, error: BaseException | None) -> list[int]:
        """The indexes of the messages that the engine acknowledges after this call.

        In an orderly group a message that comes behind one that is repeated is repeated as well, unless the handler
        decided about it by itself.
        """
        decided, failed = part.decisions(), not_acknowledged(part, error)
        done: list[int] = []
        is_behind = False
        for index in range(len(part)):
            if index in failed:
                is_behind = is_behind or (self._in_order and failed[index].outcome is not Outcome.DEAD_LETTER)
            elif index in decided or not is_behind:
                done.append(index)
        return done


class _ClaimedCall:
    """One batch, from its claims to what becomes of them."""

    def __init__(self, deduplication: Deduplication, call: Call, batch: Batch, worker: Worker) -> None:
        self._deduplication = deduplication
        self._call = call
        self._batch = batch
        self._worker = worker

    async def run(self) -> object:
        """Call the handler with what it may have. Raises what it raises."""
        own, batch, worker = self._deduplication, self._batch, self._worker
        assert worker.process_queue is not None
        worker.batch = None  # the handler has nothing while the store is asked
        claim = await worker.undisturbed(own.claim(batch, worker.process_queue, worker), "claim")
        if claim is None:
            return None
        decided = batch.decisions()
        indexes = [index for index in range(len(batch)) if index not in decided]
        part = batch if len(indexes) == len(batch) else batch.part(indexes)
        worker.batch, worker.started = batch, own.clock.monotonic()
        error: BaseException | None = None
        try:
            result = await self._call(part)
            check_result(result, own.handler.name)
        except BaseException as raised:  # noqa: BLE001 - whatever a handler raises is its result
            result, error = None, raised
        worker.batch = None
        if part is not batch:
            for place, decision in part.decisions().items():
                batch.decide(indexes[place], decision)
        try:
            await self._end(claim, part, indexes, error)
            if error is not None:
                raise error
            return result
        finally:
            del error  # its traceback refers to this frame, and so would keep the batch alive

    async def _end(self, claim: _Claim, part: Batch, indexes: Sequence[int], error: BaseException | None) -> None:
        own, worker = self._deduplication, self._worker
        if worker.expired or worker.replaced:
            if own.handler.is_async:
                own.release(claim, list(claim.keys))
            else:  # its thread goes on
                own.let_lapse(claim)
            return
        done = [indexes[place] for place in own.done_with(part, error)]
        own.release(claim, [index for index in claim.keys if index not in done])
        if claim.keys:
            await worker.undisturbed(own.confirm(claim, list(claim.keys)), "confirm")


def _id_by(by: str) -> Callable[[Message], str | None]:
    """What returns the id that a message is known by; None or an empty text for one that has none of this kind."""
    return (lambda message: message.lasting_id) if by == BY_ID else value_by(by)
