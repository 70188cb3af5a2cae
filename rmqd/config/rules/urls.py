"""PostgreSQL URLs. libpq reads the first @ as the end of the password."""

from __future__ import annotations

import re
from typing import Final

_URI: Final = re.compile("postgres(?:ql)?://([^/?#]*)")


def url_problem(url: str) -> str | None:
    """Return the problem of a URL whose host would contain a part of the password, without showing its value.

    Other texts are not libpq's URLs: `host=db password=a@b`, or JDBC's, where an @ has no meaning.
    """
    uri = _URI.match(url)
    if uri is None or uri[1].count("@") <= 1:
        return None
    return "more than one @ before the host; expected %40 for an @ in the user or the password"
