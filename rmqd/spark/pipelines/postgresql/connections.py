"""Connections to a PostgreSQL, by psycopg; and its errors in one line, without passwords."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from rmqd.errors import ConfigError, RmqdError

if TYPE_CHECKING:
    from psycopg import Connection

INSTALL: Final = "pip install 'rmqd[postgresql]'"
CONNECT_SECONDS: Final = 10
# a driver or a task whose machine is gone must not hold locks for longer than it takes to see that
KEEPALIVES: Final = {"keepalives_idle": 20, "keepalives_interval": 5, "keepalives_count": 4}


def conninfo_of(url: str, options: Mapping[str, str], group: str) -> str:
    """What every connection of a group is made by: libpq's parameters. Raises RmqdError, ConfigError."""
    try:
        import psycopg
        from psycopg.conninfo import make_conninfo
    except ImportError as error:
        raise RmqdError(f"sink.format: postgresql needs psycopg, and {error}; {INSTALL}") from error
    ours: dict[str, Any] = {"connect_timeout": CONNECT_SECONDS, "application_name": f"rmqd {group}", **KEEPALIVES}
    try:
        given = psycopg.conninfo.conninfo_to_dict(url, **options)
        return make_conninfo(**{**ours, **given})
    except psycopg.ProgrammingError as error:
        raise ConfigError([f"sink.url or sink.options: {one_line(error)}"]) from None


@contextlib.contextmanager
def connected(conninfo: str, where: str) -> Iterator[Connection[tuple[Any, ...]]]:
    """A connection in autocommit mode. Errors of the database become RmqdErrors that begin with `where`."""
    import psycopg

    try:
        with psycopg.connect(conninfo, autocommit=True) as connection:
            yield connection
    except psycopg.Error as error:
        raise RmqdError(f"sink {where}: {one_line(error)}") from error


def exists(connection: Connection[tuple[Any, ...]], table: str) -> bool:
    """Whether there is a table of a full name."""
    found = connection.execute("SELECT to_regclass(%s) IS NOT NULL", (table,)).fetchone()
    return found is not None and bool(found[0])


def one_line(error: BaseException) -> str:
    """What the database says, with its detail and context."""
    return "; ".join(line.strip() for line in str(error).splitlines() if line.strip())
