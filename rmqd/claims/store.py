"""What every store of claims can do."""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from rmqd.errors import RmqdError

Key = tuple[str, str]
"""What a message is known by, within its group: the text of its topic's identity, and its id."""
MOST_BYTES: Final = 200  # of a name; PostgreSQL indexes 2.7 kB of group, topic and name together
DIGEST: Final = "sha256:"
Held = tuple[Key, str]
"""A claim: whose key it is, and its token."""


def key_of(topic: str, name: str) -> Key:
    """The key of a message, as any store can write it: texts that some store refuses are told by their digests.

    rmqd 0.1.0 had the plain topic in place of the identity. Such records are called former ones.
    """
    return _writable(topic), _writable(name)


def _writable(text: str) -> str:
    if text.isprintable() and len(text.encode()) <= MOST_BYTES:
        return text
    return DIGEST + hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


class ClaimStoreError(RmqdError):
    """The store did not do what it was asked, or did not say that it did. The text has its reason."""


class Standing(enum.Enum):
    """What a store says of one message."""

    OURS = "ours"
    """The claim was free, and is the caller's now."""
    HELD = "held"
    """Another owner has claimed it, and its lease goes on."""
    CONFIRMED = "confirmed"
    """A handler has done its work for it."""


@dataclass(frozen=True, slots=True)
class Terms:
    """Whose claims a store writes, and for how long."""

    group: str
    owner: str
    """One run of the group in one process. It may claim again what it has claimed: the answer may have been lost."""
    lease_seconds: float
    keep_seconds: float


class ClaimStore(Protocol):
    """One group's claims. Each method raises ClaimStoreError; connections are made when they are needed."""

    async def claim(self, keys: Sequence[Key], token: str, former: Sequence[str] = ()) -> list[Standing]:
        """Claim what is free, is the owner's own, or has a lease that is over. The token begins with the owner.

        `former` has the topic in the former record of each key, and an empty text for a key without one.
        """

    async def confirm(self, keys: Sequence[Key], token: str) -> int:
        """Note that these are done with. Returns how many somebody else has claimed since."""

    async def renew(self, held: Sequence[Held]) -> None:
        """Begin the leases of these claims anew, of those that still stand."""

    async def release(self, held: Sequence[Held]) -> None:
        """Give these claims up, those that still stand."""

    async def purge(self) -> None:
        """Delete what is over, of every group."""

    async def close(self) -> None:
        """End the connections."""
