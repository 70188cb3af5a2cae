"""The interface of deduplication stores. A claim says that a group handles, or has handled, a message."""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from rmqd.errors import RmqdError

Key = tuple[str, str]
"""How a group identifies a message: the text of the topic's identity, and the message's id."""
# limit for each part of a key; PostgreSQL indexes at most 2.7 kB of group, topic and id together
MAX_KEY_BYTES: Final = 200
DIGEST_PREFIX: Final = "sha256:"
HeldClaim = tuple[Key, str]
"""A claim: its key, and the token of the call of `claim` that claimed the key."""


def claim_key_of(topic: str, name: str) -> Key:
    """Return the key of a message in a form that every store can write: a digest replaces a text that is too long or
    not printable.

    rmqd 0.1.0 stored the plain topic instead of the topic's identity. These old records are called former records.
    """
    return _writable(topic), _writable(name)


def _writable(text: str) -> str:
    if text.isprintable() and len(text.encode()) <= MAX_KEY_BYTES:
        return text
    return DIGEST_PREFIX + hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


class ClaimStoreError(RmqdError):
    """The store failed, or its response was lost. The text gives the reason."""


class ClaimState(enum.Enum):
    """The state of one message in the store."""

    OURS = "ours"
    """The caller holds the claim now."""
    HELD = "held"
    """Another owner holds the claim, and its lease has not expired."""
    CONFIRMED = "confirmed"
    """A handler has handled the message."""


@dataclass(frozen=True, slots=True)
class ClaimTerms:
    """The owner of a store's claims, and how long they last."""

    group: str
    owner: str
    """Identifies one run of the group in one process. The owner of a claim may repeat it, after a lost response."""
    lease_seconds: float
    keep_seconds: float


class ClaimStore(Protocol):
    """The claims of one group. Each method raises ClaimStoreError. Stores connect when they are first used."""

    async def claim(self, keys: Sequence[Key], token: str, former: Sequence[str] = ()) -> list[ClaimState]:
        """Claim each key that is free, whose lease has expired, or that this owner already holds. Return the states.

        The token must start with `ClaimTerms.owner`. `former` has the topic of each key's former record, "" if none.
        """

    async def confirm(self, keys: Sequence[Key], token: str) -> int:
        """Record that these messages are handled. Returns how many of them another owner has claimed meanwhile."""

    async def renew(self, held: Sequence[HeldClaim]) -> None:
        """Restart the leases of these claims. Claims that this owner has lost are ignored."""

    async def release(self, held: Sequence[HeldClaim]) -> None:
        """Release these claims. Claims that this owner has lost are ignored."""

    async def purge(self) -> None:
        """Delete expired records of all groups."""

    async def close(self) -> None:
        """Close all connections."""
