"""URLs of databases, as options. One is refused whose host would have part of the password, as its driver reads it, and
one that libpq cannot read; no error quotes it."""

from __future__ import annotations

import re
from typing import Annotated, Final

from pydantic import AfterValidator, SecretStr

_LIBPQ: Final = re.compile("postgres(?:ql)?://([^/?#]*)")
_UNREADABLE: Final = (
    "is no connection string; accepted: postgresql://user:password@host:5432/database, or host=... user=... dbname=..."
)
_PROBLEM: Final = "there is more than one @ before the host; accepted: %40 for an @ in the user or the password"


def _read_by_libpq(url: SecretStr) -> SecretStr:
    """For libpq the first @ ends the password; `host=db password=a@b` is no URL."""
    uri = _LIBPQ.match(url.get_secret_value())
    if uri is not None and uri[1].count("@") > 1:
        raise ValueError(_PROBLEM)
    try:
        from psycopg import ProgrammingError
        from psycopg.conninfo import conninfo_to_dict
    except ImportError:  # which the handler tells, with what to install
        return url
    try:
        conninfo_to_dict(url.get_secret_value())
    except ProgrammingError:  # which quotes what it cannot read
        raise ValueError(_UNREADABLE) from None
    return url


def _read_by_sqlalchemy(url: SecretStr) -> SecretStr:
    """For SQLAlchemy the user may have an @, and the first one behind it ends the password."""
    try:
        from sqlalchemy.engine import make_url
        from sqlalchemy.exc import ArgumentError
    except ImportError:  # which the handler tells, with what to install
        return url
    try:
        host = make_url(url.get_secret_value()).host
    except (ArgumentError, ValueError):  # which its start tells
        return url
    if host is not None and "@" in host:
        raise ValueError(_PROBLEM)
    return url


LibpqUrl = Annotated[SecretStr, AfterValidator(_read_by_libpq)]
SqlAlchemyUrl = Annotated[SecretStr, AfterValidator(_read_by_sqlalchemy)]
