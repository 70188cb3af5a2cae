"""Decides the cause of an error: the message, or the state of its counterpart.

The message is the cause only if the counterpart (the system that a handler writes to) rejects values of this message.
The tables below list all such errors. Any other error, even an unforeseen one, is a state of the counterpart, and the
message waits (`away.mark_waiting`). An OSError is a state, such as a full disk. A Redis error is a state too, such as
full memory, a key of another type, or a cluster without a quorum, because streams and lists accept any value.

`error_text` returns the text of a database driver's error without values of a message's body.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final


class ErrorCause(enum.Enum):
    MESSAGE = "the counterpart refuses the values of this message"
    REFERENCE = "the counterpart lacks a row that this message refers to, and which may follow"
    COUNTERPART = "anything else: the message waits"


SQLSTATES: Final[Mapping[str, ErrorCause]] = {  # 2-character classes, and complete codes, which take precedence
    **dict.fromkeys(("22", "23", "44"), ErrorCause.MESSAGE),
    "2200H": ErrorCause.COUNTERPART,  # a sequence, such as a primary key's, has reached its end
    "23503": ErrorCause.REFERENCE,
    "45": ErrorCause.MESSAGE,  # raised by a trigger, according to the standard
    "P0": ErrorCause.MESSAGE,  # raised by a trigger's function
    "P0002": ErrorCause.REFERENCE,  # a trigger's function found no row
    "54000": ErrorCause.MESSAGE,  # a key that is too long for its index
    "54001": ErrorCause.MESSAGE,  # JSON that is nested too deeply
}
MYSQL_NUMBERS: Final[Mapping[int, ErrorCause]] = {  # MariaDB's too; a driver's exception class may be too general
    **dict.fromkeys((1048, 1062, 1118, 1153, 1264, 1265, 1292, 1300, 1365, 1366), ErrorCause.MESSAGE),
    **dict.fromkeys((1406, 1411, 1416, 1644, 1690, 3140, 3141, 3819, 4025), ErrorCause.MESSAGE),
    # JSON that is too large or nested too deeply, or has another type or range than an indexed column
    **dict.fromkeys((3150, 3151, 3155, 3156, 3157), ErrorCause.MESSAGE),
    **dict.fromkeys((1216, 1452, 1526), ErrorCause.REFERENCE),  # the last one: no partition for the row
    1364: ErrorCause.COUNTERPART,  # a column without a default that the statement does not name
}
DB_API_CLASSES: Final = ("DataError", "IntegrityError")
"""The errors that drivers without error codes raise for values (PEP 249)."""
HTTP_STATUSES: Final = (400, 413, 415, 422, 431)
KAFKA_ERRORS: Final = (
    *("MSG_SIZE_TOO_LARGE", "INVALID_MSG_SIZE", "INVALID_TIMESTAMP", "INVALID_RECORD"),
    "_INVALID_DIFFERENT_RECORD",  # not this record is invalid, but another record of the same request
)

UNPREPARED_STATES: Final = ("26000", "42P05", "08P01")
"""SQLSTATEs if a pool in front of PostgreSQL mixes up its clients' prepared statements."""
STANDBY_STATES: Final = ("25006", 1290, 1792, 1836)
"""SQLSTATE and MySQL's error numbers of a former primary that is read-only now. A new connection may help."""
RAISE_ROUTINE: Final = "exec_stmt_raise"
"""The server's function that executes RAISE of PL/pgSQL."""
_OPERATIONAL: Final = ("08", "40", "53", "55", "57", "58")  # states of the server, even if a function raises them


def cause_of(error: Any, written: Collection[str] | None) -> ErrorCause:
    """Return the cause of a database driver's error. `written` are the columns that the handler sets, if known."""
    number, state, column = number_of(error), state_of(error), null_column(error)
    if is_standby(error) or (written is not None and column is not None and column not in written):
        return ErrorCause.COUNTERPART  # a column that the handler does not set cannot be a message's fault
    if number is not None and number in MYSQL_NUMBERS:
        return MYSQL_NUMBERS[number]
    if state == "23514" and getattr(getattr(error, "diag", None), "constraint_name", "") is None:
        return ErrorCause.REFERENCE  # no partition for the row
    if state is not None:
        known = SQLSTATES.get(state, SQLSTATES.get(state[:2]))
        is_raised = getattr(getattr(error, "diag", None), "source_function", None) == RAISE_ROUTINE
        return known or (ErrorCause.MESSAGE if is_raised and state[:2] not in _OPERATIONAL else ErrorCause.COUNTERPART)
    if sqlite_name_of(error) == "SQLITE_CONSTRAINT_FOREIGNKEY":
        return ErrorCause.REFERENCE
    return ErrorCause.MESSAGE if _is_one_of(error, DB_API_CLASSES) else ErrorCause.COUNTERPART


def is_temporary(error: Any) -> bool:
    """Return whether an error of the database may be temporary, so that the batch is retried in place."""
    is_operational = _is_one_of(error, ("OperationalError",)) and sqlite_name_of(error) != "SQLITE_ERROR"
    return is_operational or is_standby(error) or is_unprepared(error)


def is_standby(error: Any) -> bool:
    """Return whether the server is a former primary that is read-only now."""
    return (number_of(error) or state_of(error)) in STANDBY_STATES


def is_unprepared(error: Any) -> bool:
    """Return whether a pool in front of the database has mixed up prepared statements."""
    return state_of(error) in UNPREPARED_STATES


def _is_one_of(error: object, names: Collection[str]) -> bool:
    return any(one.__name__ in names for one in type(error).__mro__)


# an apostrophe after a letter belongs to a word, such as doesn't; an unclosed quote extends to the end
_QUOTED: Final = re.compile(r"""("|(?<![a-zA-Z])')(.*?)(?:\1|\Z)""", re.DOTALL)
_NULL: Final = re.compile(r"(?:NOT NULL constraint failed: |(?:Column|Field) ')([^']+)")


def error_text(error: Any, names: Iterable[str], values: Iterable[object]) -> str:
    """Return the text of a statement's error without values of a message's body.

    A quoted part may be such a value, so the text is cut at the first quoted part that is not one of `names`. Unquoted
    values, such as in the text of a trigger, are removed if they are in `values`. DETAIL and CONTEXT, in which
    PostgreSQL shows rows, are never included.
    """
    error = _of_driver(error)
    text = _first_line(_until_unknown_quote(message_of(error), frozenset(names)))
    known = {str(value) for value in values if value is not None} - {""}
    for value in sorted(known, key=len, reverse=True):  # one value may be the start of another
        if value in text:
            text = re.sub(rf"(?<!\w){re.escape(value)}(?!\w)", "…", text)
    parts = [f"{_title(error)}: {text}"]
    if name := getattr(getattr(error, "diag", None), "constraint_name", None):
        parts.append(f"constraint {name}")
    if name := getattr(getattr(error, "diag", None), "column_name", None) or null_column(error):
        parts.append(f"column {name}")
    return ", ".join(parts)


def connection_error_text(error: Any) -> str:
    """Return the text of a failed connection's error, which cannot contain values of a message's body."""
    error = _of_driver(error)
    return f"{_title(error)}: {_first_line(message_of(error))}"


def _of_driver(error: Any) -> Any:
    return getattr(error, "orig", None) or error  # SQLAlchemy's errors contain the driver's


def state_of(error: Any) -> str | None:
    """Return the SQLSTATE, as psycopg, psycopg2 and pyodbc provide it."""
    state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    if state is None and isinstance(first := next(iter(error.args), None), str):
        state = first if re.fullmatch(r"[0-9A-Z]{5}", first) else None
    return state if isinstance(state, str) else None


def number_of(error: Any) -> int | None:
    """Return MySQL's error number, as its drivers provide it."""
    first = next(iter(error.args), None)
    return first if isinstance(first, int) and len(error.args) > 1 else None


def sqlite_name_of(error: Any) -> str | None:
    """Return SQLite's error name, such as SQLITE_BUSY."""
    name = getattr(error, "sqlite_errorname", None)
    return name if isinstance(name, str) else None


def null_column(error: Any) -> str | None:
    """Return the column that must not be NULL, if a NULL caused the error; None for other errors."""
    if state_of(error) == "23502":
        name = getattr(getattr(error, "diag", None), "column_name", None)
        return name if isinstance(name, str) else None
    if number_of(error) in (1048, 1364) or sqlite_name_of(error) == "SQLITE_CONSTRAINT_NOTNULL":
        found = _NULL.search(message_of(error))
        return found[1].rpartition(".")[2] if found else None
    return None


def _title(error: Any) -> str:
    code = number_of(error) or state_of(error) or sqlite_name_of(error)
    return f"{type(error).__name__}{f' {code}' if code else ''}"


def message_of(error: Any) -> str:
    """Return the database's error text, which may contain values of a message's body."""
    primary = getattr(getattr(error, "diag", None), "message_primary", None)  # without PostgreSQL's DETAIL
    if primary is None:
        primary = next((part for part in reversed(error.args) if isinstance(part, str)), "")
    return str(primary).strip()


def _first_line(text: str) -> str:
    return next(iter(text.splitlines()), "")


def _until_unknown_quote(text: str, names: frozenset[str]) -> str:
    for quoted in _QUOTED.finditer(text):
        if quoted[2].rpartition(".")[2] not in names:
            return f"{text[: quoted.start()]}…"
    return text
