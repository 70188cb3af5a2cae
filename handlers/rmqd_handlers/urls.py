"""Database URLs as options. A URL is refused if its host would contain a part of the password, or if libpq cannot parse
it. Errors never quote it.
"""

from __future__ import annotations

import re
from typing import Annotated, Final

from pydantic import AfterValidator, SecretStr

_LIBPQ: Final = re.compile("postgres(?:ql)?://([^/?#]*)")
_UNREADABLE: Final = (
    "not a valid connection string; expected postgresql://user:password@host:5432/database, "
    "or host=... user=... dbname=..."
)
_PROBLEM: Final = "more than one @ before the host; expected %40 for an @ in the user or the password"


def _read_by_libpq(url: SecretStr) -> SecretStr:
    """libpq ends the password at the first @; `host=db password=a@b` is not a URL."""
    uri = _LIBPQ.match(url.get_secret_value())
    if uri is not None and uri[1].count("@") > 1:
        raise ValueError(_PROBLEM)
    try:
        from psycopg import ProgrammingError
        from psycopg.conninfo import conninfo_to_dict
    except ImportError:  # the handler reports it, with the command to install it
        return url
    try:
        conninfo_to_dict(url.get_secret_value())
    except ProgrammingError:  # its text quotes the URL
        raise ValueError(_UNREADABLE) from None
    return url


def _read_by_sqlalchemy(url: SecretStr) -> SecretStr:
    """In SQLAlchemy the user may contain an @, and the first @ after it ends the password."""
    try:
        from sqlalchemy.engine import make_url
        from sqlalchemy.exc import ArgumentError
    except ImportError:  # the handler reports it, with the command to install it
        return url
    try:
        host = make_url(url.get_secret_value()).host
    except (ArgumentError, ValueError):  # the handler's start reports it
        return url
    if host is not None and "@" in host:
        raise ValueError(_PROBLEM)
    return url


LibpqUrl = Annotated[SecretStr, AfterValidator(_read_by_libpq)]
SqlAlchemyUrl = Annotated[SecretStr, AfterValidator(_read_by_sqlalchemy)]
