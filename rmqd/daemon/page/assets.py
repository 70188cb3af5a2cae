"""The page's files, served below /static/, and the headers that block all other sources."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent / "static"
TYPES: Final = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
# One script, one style sheet and one picture, all from this server; the page sends no requests elsewhere.
PAGE_HEADERS: Final = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}


@cache
def asset(name: str) -> tuple[bytes, str] | None:
    """Return the content and the type of a file; None if there is no such file."""
    known = {path.name: path for path in FOLDER.iterdir() if path.suffix in TYPES}
    return (known[name].read_bytes(), TYPES[known[name].suffix]) if name in known else None


@cache
def address_of(name: str) -> str:
    """Return the URL of a file. It changes with the content, so that browsers may cache it."""
    found = asset(name)
    assert found is not None
    return f"/static/{name}?{hashlib.sha256(found[0]).hexdigest()[:12]}"
