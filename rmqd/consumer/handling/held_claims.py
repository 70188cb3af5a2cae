"""The claims of a group in this process, from the request in the store to the confirmation or release.

The key of a message is first reserved in this process, because the store sees all calls of the process as one owner and
would let two of them claim the same key. Only the store knows the claims of other processes. Calls wait while the store
is unavailable. `run` sends releases to the store a moment later, and renews leases.

An abandoned call, which hangs past its deadline, keeps its claim, because the handler may still have its effect. The
claim is not renewed. If the call never ends, its messages can be claimed again when the lease has expired.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import structlog

from rmqd.handler_api.leases.lease_store import ClaimState, ClaimStore, ClaimStoreError, HeldClaim, Key
from rmqd.runtime.clock import Clock, backoff_seconds, wait_within

log = structlog.get_logger(__name__)

LEASE_SECONDS: Final = 30.0
RENEW_INTERVAL_SECONDS: Final = LEASE_SECONDS / 3
PURGE_INTERVAL_SECONDS: Final = 60.0
# pause before a failed request to the store is retried; the pause doubles with each failure
FIRST_RETRY_PAUSE_SECONDS: Final = 0.1
MAX_RETRY_PAUSE_SECONDS: Final = 2.0
MAX_CLOSE_SECONDS: Final = 3.0  # how long the last confirmations and releases may take


@dataclass(slots=True, eq=False)
class Claim:
    """The claims for the messages of one handler call."""

    token: str
    keys: dict[int, Key] = field(default_factory=dict)
    """The keys that are neither confirmed nor released, by index in the batch."""
    former: dict[Key, str] = field(default_factory=dict)
    """For each key, the topic under which rmqd 0.1.0 may have recorded its message; empty for none."""
    is_abandoned: bool = False
    """Whether the call still runs after its deadline, and nothing waits for it."""
    has_ended: bool = False
    """Whether the handler call has ended."""
    is_settled: bool = False
    """Whether the batch is settled."""


class HeldClaims:
    """The claims of a group in this process. `run` renews them. Call `close` after the last handler call."""

    def __init__(self, store: ClaimStore, owner: str, clock: Clock) -> None:
        self.failure = ""
        """Why the store's last request failed; empty if it succeeded."""
        self._waiting = 0  # failed requests that wait for their next attempt
        self._store = store
        self._owner = owner
        self._clock = clock
        self._numbers = itertools.count(1)
        self._claims: dict[Key, Claim] = {}
        self._confirming: dict[Claim, list[int]] = {}  # finished messages that the store has not confirmed yet
        self._released: list[tuple[float, HeldClaim]] = []  # released claims, with the monotonic time
        self._news = asyncio.Event()  # set when `run` must send releases to the store

    def create_claim(self) -> Claim:
        """Return a claim without keys and with a new token."""
        return Claim(f"{self._owner}:{next(self._numbers)}")

    def reserve(self, claim: Claim, index: int, key: Key, former: str = "") -> bool:
        """Add a key to the claim. Returns False if another claim of this process has the key."""
        if key in self._claims:
            return False
        self._claims[key] = claim
        claim.keys[index], claim.former[key] = key, former
        return True

    async def claim_in_store(self, claim: Claim, gives_up: Callable[[], bool]) -> Mapping[int, ClaimState] | None:
        """Claim the keys; retry until the store responds. Returns the states by index; None once `gives_up` is true."""
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
        """Confirm finished messages. Waits for the store. If this wait is cancelled, `close` confirms the messages."""
        indexes = [index for index in indexes if index in claim.keys]
        if not indexes:
            return
        self._confirming[claim] = indexes
        if lost := await self._confirm(claim, indexes):
            log.warning("claim.lost", messages=lost, lease_seconds=LEASE_SECONDS)

    def confirm_at_close(self, claim: Claim, indexes: Iterable[int]) -> None:
        """Let `close` confirm messages of a call that will not be settled, unless `confirm` already waits for them."""
        if claim not in self._confirming and (owed := [index for index in indexes if index in claim.keys]):
            self._confirming[claim] = owed

    async def _confirm(self, claim: Claim, indexes: list[int]) -> int:
        """Confirm messages in the store. Return how many of their claims another owner has obtained meanwhile."""
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
        self.remove_keys(claim, indexes)
        return lost

    def release(self, claim: Claim, indexes: Iterable[int] | None = None) -> None:
        """Release the claims of these messages, or of all messages. `run` notifies the store a moment later."""
        indexes = list(claim.keys if indexes is None else indexes)
        now = self._clock.monotonic()
        self._released += [(now, (claim.keys[index], claim.token)) for index in indexes]
        if indexes:
            self._news.set()
        self.remove_keys(claim, indexes)

    def remove_keys(self, claim: Claim, indexes: Iterable[int]) -> None:
        """Remove these messages from the claim."""
        for index in indexes:
            key = claim.keys.pop(index, None)
            if key is not None and self._claims.get(key) is claim:
                del self._claims[key]

    def abandon(self, claim: Claim) -> None:
        """Stop renewing this claim: its call still runs, and nothing waits for it."""
        claim.is_abandoned = True
        self._clock.call_later(LEASE_SECONDS, self._lapsed, claim)

    def _lapsed(self, claim: Claim) -> None:
        """Called when an abandoned claim's lease has expired. Allows other calls of this process to claim its messages.

        If the abandoned call still finishes messages, they are confirmed anyway.
        """
        for key in claim.keys.values():
            if self._claims.get(key) is claim:
                del self._claims[key]

    async def run(self) -> None:
        """Renew leases, send releases, and purge expired records, until cancelled."""
        renewed = purged = self._clock.monotonic()
        failures = 0
        while True:
            due = max(0.0, renewed + RENEW_INTERVAL_SECONDS - self._clock.monotonic())
            await wait_within(self._clock, due, self._news.wait())
            now = self._clock.monotonic()
            try:
                if (
                    now - renewed >= RENEW_INTERVAL_SECONDS
                ):  # renew first, because a failed release or purge must not prevent the renewal
                    await self._renew()
                    renewed = now
                await self._send_releases()
                if now - purged >= PURGE_INTERVAL_SECONDS:
                    purged = now
                    await self._store.purge()
            except ClaimStoreError as error:
                failures += 1
                await self._wait(error, failures)
            else:
                failures = 0

    async def close(self) -> None:
        """Confirm finished messages, release the claims of ended calls, and close the store.

        Claims that cannot be confirmed in time are not released, so no handler gets their messages until they expire.
        """
        try:
            async with self._clock.timeout(MAX_CLOSE_SECONDS):
                for claim, indexes in list(self._confirming.items()):
                    await self._confirm(claim, indexes)  # a second confirmation cannot show whether the claim was lost
                for claim in {claim for claim in self._claims.values() if claim.has_ended}:
                    self.release(claim)
                await self._send_releases()
        except (ClaimStoreError, TimeoutError) as error:
            left = len(self._released) + sum(map(len, self._confirming.values()))
            reason = str(error) or self.failure
            log.warning("claims.left", messages=left, seconds=LEASE_SECONDS, error=reason)
        await self._store.close()

    async def _wait(self, error: ClaimStoreError, attempt: int) -> None:
        if not self.failure:
            log.warning("claims.store_away", error=str(error))
        self.failure = str(error)
        self._waiting += 1
        try:
            await self._clock.sleep(backoff_seconds(FIRST_RETRY_PAUSE_SECONDS, attempt, MAX_RETRY_PAUSE_SECONDS))
        finally:
            self._waiting -= 1

    def _is_back(self) -> None:
        if self.failure:
            log.info("claims.store_back")
        self.failure = ""

    async def _renew(self) -> None:
        held = [(key, claim.token) for key, claim in self._claims.items() if not claim.is_abandoned]
        if held or self.failure:  # even without claims, a renewal shows whether the store is available again
            await self._store.renew(held)
            if not self._waiting:  # a store with a full disk accepts a renewal that writes nothing, and refuses claims
                self._is_back()

    async def _send_releases(self) -> None:
        self._news.clear()
        over = self._clock.monotonic() - LEASE_SECONDS  # claims that were released before this have expired
        self._released = [(since, held) for since, held in self._released if since > over]
        sent = self._released[:]
        if sent:
            await self._store.release([held for _, held in sent])
            del self._released[: len(sent)]
            self._is_back()
