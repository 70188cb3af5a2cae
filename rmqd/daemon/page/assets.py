"""The page's own files, which are served below /static/, and the headers that keep everything else out."""

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
# One script, one sheet of styles and one picture, all from here; requests go nowhere else.
PAGE_HEADERS: Final = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}


@cache
def asset(name: str) -> tuple[bytes, str] | None:
    """The content and the type of a file by its name; None for a name that is not one of them."""
    known = {path.name: path for path in FOLDER.iterdir() if path.suffix in TYPES}
    return (known[name].read_bytes(), TYPES[known[name].suffix]) if name in known else None


@cache
def address_of(name: str) -> str:
    """The address of a file, which changes with its content, so that browsers may keep it."""
    found = asset(name)
    assert found is not None
    return f"/static/{name}?{hashlib.sha256(found[0]).hexdigest()[:12]}"
