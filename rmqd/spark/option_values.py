"""How values that more than one set of options has are read. Pure; each raises ValueError with what is accepted."""

from __future__ import annotations

import re
from typing import Final

_HOST_PORT: Final = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}", re.ASCII)


def positive(text: str) -> int:
    """A number above 0."""
    if not text.strip().isdecimal() or int(text) == 0:
        raise ValueError(f"{text!r} is no number above 0")
    return int(text)


def milliseconds(text: str) -> float:
    """Seconds, of a number of milliseconds."""
    if not text.strip().isdecimal():
        raise ValueError(f"{text!r} is no number of milliseconds")
    return int(text) / 1000


def nameservers(text: str) -> str:
    """Addresses `host:port`, separated by `;` or commas, as the client takes them."""
    addresses = [part.strip() for part in re.split("[;,]", text) if part.strip()]
    wrong = [address for address in addresses if not _HOST_PORT.fullmatch(address)]
    if wrong or not addresses:
        raise ValueError(f"{(wrong or [text])[0]!r} is not host:port")
    return ";".join(addresses)
