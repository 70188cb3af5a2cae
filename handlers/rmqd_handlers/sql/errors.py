"""What an error of a database means for a batch, and what may be told of it: never a value of a body."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable
from typing import Any, Final

from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, OperationalError, StatementError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from rmqd_handlers.postgresql.refusals import is_raised


class Kind(enum.Enum):
    """What an error is about."""

    AWAY = "the database is away, or asks for another attempt"
    STANDBY = "it was the primary, and is none: another connection may lead to the new one"
    ROW = "the row: it can never be written as it is"
    REFERENCE = "the row refers to one that is not there, and may be on its way"
    OTHER = "neither is known"


# SQLSTATE, by class or as a whole; PostgreSQL's, and what the standard has
_STATES: Final = {
    "22": Kind.ROW,
    "23": Kind.ROW,
    "23503": Kind.REFERENCE,
    "44": Kind.ROW,
    "45": Kind.ROW,  # raised by a trigger, as the standard has it
    "54000": Kind.ROW,  # no room, such as a key that is too long for its index
    "P0": Kind.ROW,  # raised by a trigger's function
    "08": Kind.AWAY,
    "25006": Kind.STANDBY,
    "40": Kind.AWAY,
    "53": Kind.AWAY,
    "55": Kind.AWAY,
    "57": Kind.AWAY,
    "58": Kind.AWAY,
}
# MySQL's and MariaDB's numbers, where the driver's class of the error says too little
_ROW_NUMBERS: Final = (1048, 1062, 1265, 1264, 1292, 1364, 1366, 1406, 1411, 1644, 3140, 3819, 4025)
_AWAY_NUMBERS: Final = (
    *(1021, 1037, 1038, 1040, 1041, 1053, 1114, 1158, 1159, 1160, 1161, 1203, 1205, 1206, 1213, 1317, 1927, 1969, 3024),
    1305,  # no such savepoint: the whole transaction was rolled back
)
_NUMBERS: Final = {
    **dict.fromkeys(_ROW_NUMBERS, Kind.ROW),
    **dict.fromkeys(_AWAY_NUMBERS, Kind.AWAY),
    **dict.fromkeys((1216, 1452), Kind.REFERENCE),
    **dict.fromkeys((1290, 1792, 1836), Kind.STANDBY),
}
_SQLITE_AWAY: Final = ("BUSY", "LOCKED", "IOERR", "FULL", "READONLY", "CANTOPEN", "PROTOCOL", "NOMEM")
_QUOTED: Final = re.compile(r"""(['"])(.*?)\1""")


def kind_of(error: Exception) -> Kind:
    """What the error of a statement, or of a connection, is about."""
    if isinstance(error, PoolTimeoutError):
        return Kind.AWAY
    if not isinstance(error, DBAPIError):
        # what SQLAlchemy or the driver cannot make of a value; anything else is a mistake of ours
        return Kind.ROW if isinstance(error, StatementError | ValueError | TypeError | ArithmeticError) else Kind.OTHER
    if error.connection_invalidated:
        return Kind.AWAY
    origin: Any = error.orig
    known = _by_code(origin)
    if known is not None:
        return known
    if isinstance(error, IntegrityError | DataError):
        return Kind.ROW
    return Kind.AWAY if isinstance(error, OperationalError) and not _has_code(origin) else Kind.OTHER


def told(error: Exception, names: Iterable[str], values: Iterable[object]) -> str:
    """The error of a statement in words that have no value of a body.

    What a database quotes may be such a value, so that its text ends before a quote, unless that has one of these
    names. What it does not quote, as in the text of a trigger, is left out where it is one of these values.
    """
    origin = _origin(error)
    text = _until_unknown_quote(_words(origin), frozenset(names))
    for value in {str(value) for value in values if value is not None} - {""}:
        text = re.sub(rf"(?<!\w){re.escape(value)}(?!\w)", "…", text)
    parts = [f"{_title(origin)}: {text}"]
    diagnosis = getattr(origin, "diag", None)
    for what in ("constraint", "column"):
        if name := getattr(diagnosis, f"{what}_name", None):
            parts.append(f"{what} {name}")
    return ", ".join(parts)


def told_of_connecting(error: Exception) -> str:
    """The error of a connection that could not be had: before anything of a body is sent."""
    origin = _origin(error)
    return f"{_title(origin)}: {_words(origin)}"


def _origin(error: Exception) -> Any:
    return error.orig if isinstance(error, StatementError) and error.orig is not None else error


def _title(origin: Any) -> str:
    code = _number(origin) or _state(origin) or getattr(origin, "sqlite_errorname", None)
    return f"{type(origin).__name__}{f' {code}' if code else ''}"


def _by_code(origin: Any) -> Kind | None:
    number, state = _number(origin), _state(origin)
    if number is not None:
        known = Kind.AWAY if 2000 <= number < 3000 else _NUMBERS.get(number)  # the former are of clients
        return known or _STATES.get((state or "")[:2])
    if state is not None:
        return _STATES.get(state, _STATES.get(state[:2], Kind.ROW if is_raised(origin) else None))
    name = getattr(origin, "sqlite_errorname", None)
    if name is not None:
        if name == "SQLITE_CONSTRAINT_FOREIGNKEY":
            return Kind.REFERENCE
        return Kind.AWAY if name.startswith(tuple(f"SQLITE_{one}" for one in _SQLITE_AWAY)) else None
    return None


def _has_code(origin: Any) -> bool:
    return bool(_state(origin) or _number(origin) or getattr(origin, "sqlite_errorname", None))


def _state(origin: Any) -> str | None:
    """SQLSTATE, as psycopg, psycopg2 and pyodbc have it."""
    state = getattr(origin, "sqlstate", None) or getattr(origin, "pgcode", None)
    if state is None and isinstance(first := next(iter(origin.args), None), str):
        state = first if re.fullmatch(r"[0-9A-Z]{5}", first) else None
    return state if isinstance(state, str) else None


def _number(origin: Any) -> int | None:
    """MySQL's number of an error, as its drivers have it."""
    first = next(iter(origin.args), None)
    return first if isinstance(first, int) and len(origin.args) > 1 else None


def _words(origin: Any) -> str:
    primary = getattr(getattr(origin, "diag", None), "message_primary", None)  # without PostgreSQL's DETAIL
    if primary is None:
        primary = next((part for part in reversed(origin.args) if isinstance(part, str)), "")
    return next(iter(str(primary).strip().splitlines()), "")


def _until_unknown_quote(text: str, names: frozenset[str]) -> str:
    for quoted in _QUOTED.finditer(text):
        if quoted[2].rpartition(".")[2] not in names:
            return f"{text[: quoted.start()]}…"
    return text
