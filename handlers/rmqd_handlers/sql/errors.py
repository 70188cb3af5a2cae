"""What an error of a database means for a batch, and what may be told of it: never a value of a body."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Any, Final

from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, OperationalError, StatementError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from rmqd_handlers import database_errors
from rmqd_handlers.database_errors import number_of, sqlite_name_of, state_of
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
    """The error of a statement in words that have no value of a body."""
    return database_errors.told(_origin(error), names, values)


def told_of_connecting(error: Exception) -> str:
    """The error of a connection that could not be had."""
    return database_errors.told_of_connecting(_origin(error))


def _origin(error: Exception) -> Any:
    return error.orig if isinstance(error, StatementError) and error.orig is not None else error


def _by_code(origin: Any) -> Kind | None:
    number, state = number_of(origin), state_of(origin)
    if number is not None:
        known = Kind.AWAY if 2000 <= number < 3000 else _NUMBERS.get(number)  # the former are of clients
        return known or _STATES.get((state or "")[:2])
    if state is not None:
        return _STATES.get(state, _STATES.get(state[:2], Kind.ROW if is_raised(origin) else None))
    name = sqlite_name_of(origin)
    if name is not None:
        if name == "SQLITE_CONSTRAINT_FOREIGNKEY":
            return Kind.REFERENCE
        return Kind.AWAY if name.startswith(tuple(f"SQLITE_{one}" for one in _SQLITE_AWAY)) else None
    return None


def _has_code(origin: Any) -> bool:
    return bool(state_of(origin) or number_of(origin) or sqlite_name_of(origin))
