"""URLs of databases, of which drivers take the first @ for the end of the password."""

from __future__ import annotations

import re


def url_problem(url: str) -> str | None:
    """What is wrong with a URL whose host would have part of the password; without its value."""
    authority = re.split("[/?#]", url.partition("://")[2], maxsplit=1)[0]
    if authority.count("@") <= 1:
        return None
    return "there is more than one @ before the host; accepted: %40 for an @ in the user or the password"
