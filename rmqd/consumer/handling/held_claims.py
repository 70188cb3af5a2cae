"""The claims that a group has in this process: asked for, renewed, confirmed, given up.

A key is reserved here first, so that no two calls of this process ask for it: to the store they are one owner. What
another process has only the store knows. A store that does not answer is waited for; what was given up is told to it in
a moment, by `run`, which also renews leases.

A call that goes on though nobody waits for it (it hangs past its deadline) keeps its claim, as it may still have its
effect. Nobody renews that: should it never end, its messages can be claimed again when the lease is over.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import structlog

from rmqd.backoff import doubled
from rmqd.claims.store import ClaimStore, ClaimStoreError, Held, Key, Standing
from rmqd.clock import Clock, wait_within

log = structlog.get_logger(__name__)

LEASE_SECONDS: Final = 30.0
RENEW_SECONDS: Final = LEASE_SECONDS / 3
PURGE_SECONDS: Final = 60.0
FIRST_PAUSE_SECONDS: Final = 0.1  # before a store that did not answer is asked again
LONGEST_PAUSE_SECONDS: Final = 2.0
CLOSE_SECONDS: Final = 3.0  # for the last claims to be confirmed and released


@dataclass(slots=True, eq=False)
class Claim:
    """What is claimed for one call of the handler."""

    token: str
    keys: dict[int, Key] = field(default_factory=dict)
    """By index in the batch: what is neither confirmed nor given up."""
    former: dict[Key, str] = field(default_factory=dict)
    """The topics in former records of these keys."""
    is_abandoned: bool = False
    """Whether the call goes on, and nobody waits for it."""
    has_ended: bool = False
    """Whether the handler is through with the call."""


class HeldClaims:
    """The claims of one owner. `run` keeps them alive; `close` comes after the last call."""

    def __init__(self, store: ClaimStore, owner: str, clock: Clock) -> None:
        self.failure = ""
        """Why the store did not do what it was asked last; empty while it does."""
        self._store = store
        self._owner = owner
        self._clock = clock
        self._numbers = itertools.count(1)
        self._claims: dict[Key, Claim] = {}
        self._confirming: dict[Claim, list[int]] = {}  # what is done with, and the store has not said that it knows
        self._released: list[tuple[float, Held]] = []  # with when that was (monotonic)
        self._news = asyncio.Event()  # something is to be released

    def new(self) -> Claim:
        """A claim of nothing yet."""
        return Claim(f"{self._owner}:{next(self._numbers)}")

    def reserve(self, claim: Claim, index: int, key: Key, former: str = "") -> bool:
        """Have `ask` ask for this key too. Returns False where another claim of this process has it."""
        if key in self._claims:
            return False
        self._claims[key] = claim
        claim.keys[index], claim.former[key] = key, former
        return True

    async def ask(self, claim: Claim, gives_up: Callable[[], bool]) -> Mapping[int, Standing] | None:
        """What the store says, by index; waits for it until `gives_up`, and returns None then."""
        if not claim.keys:
            return {}
        for attempt in itertools.count(1):
            try:
                keys = list(claim.keys.values())
                standings = await self._store.claim(keys, claim.token, [claim.former[key] for key in keys])
            except ClaimStoreError as error:
                if gives_up():
                    return None
                await self._wait(error, attempt)
            else:
                break
        self._is_back()
        return dict(zip(claim.keys, standings, strict=True))

    async def confirm(self, claim: Claim, indexes: Iterable[int]) -> None:
        """Note that messages are done with; waits for the store. Where that is cancelled, `close` does it."""
        indexes = [index for index in indexes if index in claim.keys]
        if not indexes:
            return
        self._confirming[claim] = indexes
        if lost := await self._confirm(claim, indexes):
            log.warning("claim.lost", messages=lost, lease_seconds=LEASE_SECONDS)

    def owe(self, claim: Claim, indexes: Iterable[int]) -> None:
        """Have `close` confirm messages of a call that nobody settles, unless it is about to confirm some already."""
        if claim not in self._confirming and (owed := [index for index in indexes if index in claim.keys]):
            self._confirming[claim] = owed

    async def _confirm(self, claim: Claim, indexes: list[int]) -> int:
        """Returns how many of these somebody else has claimed since."""
        keys = [claim.keys[index] for index in indexes]
        for attempt in itertools.count(1):
            try:
                lost = await self._store.confirm(keys, claim.token)
            except ClaimStoreError as error:
                await self._wait(error, attempt)
            else:
                break
        self._is_back()
        del self._confirming[claim]
        self.forget(claim, indexes)
        return lost

    def release(self, claim: Claim, indexes: Iterable[int] | None = None) -> None:
        """Give up these messages, or all, so that the next attempt may have them. The store hears of it in a moment."""
        indexes = list(claim.keys if indexes is None else indexes)
        now = self._clock.monotonic()
        self._released += [(now, (claim.keys[index], claim.token)) for index in indexes]
        if indexes:
            self._news.set()
        self.forget(claim, indexes)

    def forget(self, claim: Claim, indexes: Iterable[int]) -> None:
        """Have no part in these messages any more."""
        for index in indexes:
            key = claim.keys.pop(index, None)
            if key is not None and self._claims.get(key) is claim:
                del self._claims[key]

    def abandon(self, claim: Claim) -> None:
        """Renew this claim no more: its call goes on, and nobody waits for it."""
        claim.is_abandoned = True
        self._clock.call_later(LEASE_SECONDS, self._lapsed, claim)

    def _lapsed(self, claim: Claim) -> None:
        """Let other calls have these messages. What the call turns out to be done with is confirmed all the same."""
        for key in claim.keys.values():
            if self._claims.get(key) is claim:
                del self._claims[key]

    async def run(self) -> None:
        """Renew leases, release claims, and delete what is over, until cancelled."""
        renewed = purged = self._clock.monotonic()
        failures = 0
        while True:
            due = max(0.0, renewed + RENEW_SECONDS - self._clock.monotonic())
            await wait_within(self._clock, due, self._news.wait())
            now = self._clock.monotonic()
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
        """Confirm what was about to be, release the rest of what no handler has any more, and end the connections.

        What cannot be confirmed in that time is not released either: until its lease is over it may not be handled.
        """
        try:
            async with self._clock.timeout(CLOSE_SECONDS):
                for claim, indexes in list(self._confirming.items()):
                    await self._confirm(claim, indexes)  # whether it was lost the store cannot tell the second time
                self._release_ended()
                await self._send_releases()
        except (ClaimStoreError, TimeoutError) as error:
            left = len(self._released) + sum(map(len, self._confirming.values()))
            reason = str(error) or self.failure
            log.warning("claims.left", messages=left, seconds=LEASE_SECONDS, error=reason)
        await self._store.close()

    def _release_ended(self) -> None:
        for claim in set(self._claims.values()):
            if claim.has_ended:
                self.release(claim)

    async def _wait(self, error: ClaimStoreError, attempt: int) -> None:
        if not self.failure:
            log.warning("claims.store_away", error=str(error))
        self.failure = str(error)
        await self._clock.sleep(doubled(FIRST_PAUSE_SECONDS, attempt, LONGEST_PAUSE_SECONDS))

    def _is_back(self) -> None:
        if self.failure:
            log.info("claims.store_back")
        self.failure = ""

    async def _renew(self) -> None:
        held = [(key, claim.token) for key, claim in self._claims.items() if not claim.is_abandoned]
        if held or self.failure:  # without claims, to hear whether the store is back
            await self._store.renew(held)
            self._is_back()

    async def _send_releases(self) -> None:
        self._news.clear()
        over = self._clock.monotonic() - LEASE_SECONDS  # by then they have ended by themselves
        self._released = [(since, held) for since, held in self._released if since > over]
        sent = self._released[:]
        if sent:
            await self._store.release([held for _, held in sent])
            del self._released[: len(sent)]
            self._is_back()
