"""The protocol of all deduplication stores."""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from rmqd.errors import RmqdError

Key = tuple[str, str]
"""How a group identifies a message: the text of its topic's identity, and its id."""
# limit for each part of a key; PostgreSQL indexes at most 2.7 kB of group, topic and id together
MAX_KEY_BYTES: Final = 200
DIGEST_PREFIX: Final = "sha256:"
Held = tuple[Key, str]
"""A claim: its key and its token."""


def claim_key_of(topic: str, name: str) -> Key:
    """Return the key of a message in a form that every store can write. Texts that a store would refuse are replaced by
    digests.

    rmqd 0.1.0 stored the plain topic instead of its identity. Its records are called former ones.
    """
    return _writable(topic), _writable(name)


def _writable(text: str) -> str:
    if text.isprintable() and len(text.encode()) <= MAX_KEY_BYTES:
        return text
    return DIGEST_PREFIX + hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


class ClaimStoreError(RmqdError):
    """The store failed, or its answer was lost. The text has its reason."""


class ClaimState(enum.Enum):
    """The state of one message in the store."""

    OURS = "ours"
    """The claim was free, and now belongs to the caller."""
    HELD = "held"
    """Another owner's claim, whose lease has not expired."""
    CONFIRMED = "confirmed"
    """A handler has handled the message."""


@dataclass(frozen=True, slots=True)
class ClaimTerms:
    """The owner of a store's claims, and how long they last."""

    group: str
    owner: str
    """One run of the group in one process. It may repeat a claim, because the answer may have been lost."""
    lease_seconds: float
    keep_seconds: float


class ClaimStore(Protocol):
    """The claims of one group. Each method raises ClaimStoreError. Stores connect when they are first used."""

    async def claim(self, keys: Sequence[Key], token: str, former: Sequence[str] = ()) -> list[ClaimState]:
        """Claim the keys that are free, whose lease has expired, or that this owner already holds. The token starts
        with the owner.

        `former` has the topic of each key's former record, or an empty text if the key has none.
        """

    async def confirm(self, keys: Sequence[Key], token: str) -> int:
        """Record that these messages are handled. Returns how many of them another owner has claimed meanwhile."""

    async def renew(self, held: Sequence[Held]) -> None:
        """Restart the leases of these claims. Claims that this owner has lost are ignored."""

    async def release(self, held: Sequence[Held]) -> None:
        """Release these claims. Claims that this owner has lost are ignored."""

    async def purge(self) -> None:
        """Delete expired records of all groups."""

    async def close(self) -> None:
        """Close all connections."""
