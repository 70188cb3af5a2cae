"""URLs of PostgreSQL, of which libpq takes the first @ for the end of the password."""

from __future__ import annotations

import re
from typing import Final

_URI: Final = re.compile("postgres(?:ql)?://([^/?#]*)")


def url_problem(url: str) -> str | None:
    """What is wrong with a URL whose host would have part of the password; without its value.

    Other texts are none of libpq's URLs: `host=db password=a@b`, or JDBC's, where an @ has no meaning.
    """
    uri = _URI.match(url)
    if uri is None or uri[1].count("@") <= 1:
        return None
    return "there is more than one @ before the host; accepted: %40 for an @ in the user or the password"
