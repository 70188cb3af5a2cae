"""Connections to PostgreSQL through psycopg, and its errors in one line, without passwords."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from rmqd.errors import ConfigError, RmqdError

if TYPE_CHECKING:
    import psycopg
    from psycopg import Connection

INSTALL: Final = "pip install 'rmqd[postgresql]'"
CONNECT_SECONDS: Final = 10
# short, because a driver or task on a lost machine holds its locks until the database notices
KEEPALIVES: Final = {"keepalives_idle": 20, "keepalives_interval": 5, "keepalives_count": 4}
# SQLSTATE classes whose texts quote names but no values of a row: connections, privileges, SQL, resources, operators.
# Class 42 may quote a value that is parsed as SQL: a tsquery, a jsonpath, or a name in COPY or a function.
_WITHOUT_VALUES: Final = ("08", "25", "28", "3D", "3F", "40", "42", "53", "54", "55", "57", "58")
_SQL: Final = "42"
_SYNTAX: Final = "42601"
_RAISED: Final = "P0"
_QUOTED: Final = re.compile(r'"([^"]*)(?:"|\Z)')
_COPIED_COLUMN: Final = re.compile(r"^COPY [^,]*, line \d+, column ([^:]+):", re.MULTILINE)


def conninfo_of(url: str, options: Mapping[str, str], group: str) -> str:
    """Return libpq's parameters for all connections of a group. Raises RmqdError, ConfigError."""
    try:
        import psycopg
        from psycopg.conninfo import make_conninfo
    except ImportError as error:
        raise RmqdError(f"sink.format: postgresql needs psycopg, but {error}; run {INSTALL}") from error
    ours: dict[str, Any] = {"connect_timeout": CONNECT_SECONDS, "application_name": f"rmqd {group}", **KEEPALIVES}
    try:
        given = psycopg.conninfo.conninfo_to_dict(url, **options)
        return make_conninfo(**{**ours, **given})
    except psycopg.ProgrammingError as error:
        raise ConfigError([f"sink.url or sink.options: {one_line(error)}"]) from None


@contextlib.contextmanager
def connected(conninfo: str, where: str) -> Iterator[Connection[tuple[Any, ...]]]:
    """Open a connection in autocommit mode. Database errors become RmqdErrors that start with `where`."""
    import psycopg

    try:
        with psycopg.connect(conninfo, autocommit=True) as connection:
            yield connection
    except psycopg.Error as error:
        # no cause, because Spark would log its text, including quoted values
        raise RmqdError(f"sink {where}: {told(error)}") from None


def exists(connection: Connection[tuple[Any, ...]], table: str) -> bool:
    """Return whether a table exists, by its full name."""
    found = connection.execute("SELECT to_regclass(%s) IS NOT NULL", (table,)).fetchone()
    return found is not None and bool(found[0])


def told(error: psycopg.Error) -> str:
    """Return the error of the database without values of a row, which are in its quotes, DETAIL and CONTEXT."""
    import psycopg

    state, diagnosis = error.sqlstate, error.diag
    if state is None:  # an error of psycopg itself, about the connection or a value
        is_of_connection = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
        return one_line(error) if is_of_connection else _until_quote(one_line(error), ())
    text = diagnosis.message_primary or ""
    names = {"table": diagnosis.table_name, "column": diagnosis.column_name, "constraint": diagnosis.constraint_name}
    context = diagnosis.context or ""
    if match := _COPIED_COLUMN.search(context):
        names["column"] = match[1]
    if state.startswith(_RAISED) or "at RAISE" in context:
        text = "a function or trigger refused a row; the log of the database has the message"
    elif not state.startswith(_WITHOUT_VALUES) or state == _SYNTAX or (state.startswith(_SQL) and context):
        text = _until_quote(text, [name for name in names.values() if name])
    parts = [f"{text} ({state})", *(f"{what} {name}" for what, name in names.items() if name)]
    return ", ".join(parts)


def refused_row(error: psycopg.Error, columns: Sequence[str] | None = None) -> bool:
    """Return whether the database refused a row for its values. A null in a column missing in all rows is excluded."""
    import psycopg

    if columns is not None and isinstance(error, psycopg.errors.NotNullViolation):
        return error.diag.column_name in columns
    kinds = (psycopg.DataError, psycopg.IntegrityError)
    others = (psycopg.errors.RaiseException, psycopg.errors.ProgramLimitExceeded)
    return isinstance(error, (*kinds, *others)) or bool(_COPIED_COLUMN.search(error.diag.context or ""))


def _until_quote(text: str, names: Sequence[str]) -> str:
    """Return the text before the first quoted string that is not one of the names."""
    for quoted in _QUOTED.finditer(text):
        if quoted[1] not in names:
            return f"{text[: quoted.start()]}…"
    return text


def one_line(error: BaseException) -> str:
    """Return the error of a connection, or of its parameters, on one line. It cannot contain values of rows."""
    return "; ".join(line.strip() for line in str(error).splitlines() if line.strip())
