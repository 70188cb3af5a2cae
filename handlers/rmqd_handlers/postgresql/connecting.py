"""The libpq parameters of every connection, for `postgresql` and for `sql` with psycopg."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

CONNECT_SECONDS: Final = 5
"""The timeout for connecting to a server."""
PARAMETERS: Final[Mapping[str, Any]] = {
    "connect_timeout": CONNECT_SECONDS,
    "fallback_application_name": "rmqd",
    # a host that fails silently is detected after 25 s, while waiting for a response and while sending
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 25_000,
}
BACKEND: Final = "SELECT pg_backend_pid()"
"""The process that responds. A pool in front of the database, such as PgBouncer, reports another process at the
connection.
"""


def conninfo_of(url: str) -> str:
    """Return the parameters of a URL, with ours as defaults."""
    from psycopg.conninfo import conninfo_to_dict, make_conninfo

    return make_conninfo(**{**PARAMETERS, **conninfo_to_dict(url)})
