"""What libpq is told of every connection, for `postgresql` and for `sql` with psycopg."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

CONNECT_SECONDS: Final = 5
"""How long a server may take to accept a connection."""
PARAMETERS: Final[Mapping[str, Any]] = {
    "connect_timeout": CONNECT_SECONDS,
    "fallback_application_name": "rmqd",
    # a host that is gone without a word is missed after 25 s: while it is waited for, and while it is sent to
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 25_000,
}
BACKEND: Final = "SELECT pg_backend_pid()"
"""The process that answers. A pool in front of the database, such as PgBouncer, names another one at the connection."""


def conninfo_of(url: str) -> str:
    """The parameters of a URL, and ours where it says nothing of them."""
    from psycopg.conninfo import conninfo_to_dict, make_conninfo

    return make_conninfo(**{**PARAMETERS, **conninfo_to_dict(url)})
