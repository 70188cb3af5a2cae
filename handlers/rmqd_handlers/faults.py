"""Decides the cause of an error: the message, or the state of its counterpart.

An error is the message's fault only if the counterpart rejects the values of this message. The tables below list all
such errors. Any other error, even an unforeseen one, is a state of the counterpart, and the message waits
(`away.mark_waiting`). An OSError is never the message's fault, because a full disk is a state. A Redis error is never
the message's fault either, because streams and lists accept any value. Redis errors are states such as full memory, a
key of another type, or a cluster without a quorum.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping
from typing import Any, Final

from .database_errors import null_column, number_of, sqlite_name_of, state_of


class Fault(enum.Enum):
    """The cause of an error."""

    MESSAGE = "the counterpart refuses the values of this message"
    REFERENCE = "the counterpart lacks a row that this message refers to, and which may follow"
    COUNTERPART = "anything else: the message waits"


SQLSTATES: Final[Mapping[str, Fault]] = {  # classes and complete codes, of PostgreSQL and of the standard
    **dict.fromkeys(("22", "23", "44"), Fault.MESSAGE),
    "23503": Fault.REFERENCE,
    "45": Fault.MESSAGE,  # raised by a trigger, according to the standard
    "P0": Fault.MESSAGE,  # raised by a trigger's function
    "54000": Fault.MESSAGE,  # a key that is too long for its index
    "54001": Fault.MESSAGE,  # JSON that is nested too deeply
}
MYSQL_NUMBERS: Final[Mapping[int, Fault]] = {  # also of MariaDB; needed if the driver's error class is too general
    **dict.fromkeys((1048, 1062, 1118, 1153, 1264, 1265, 1292, 1366), Fault.MESSAGE),
    **dict.fromkeys((1406, 1411, 1644, 1690, 3140, 3819, 4025), Fault.MESSAGE),
    **dict.fromkeys((1216, 1452, 1526), Fault.REFERENCE),  # the last one: no partition for the row
    1364: Fault.COUNTERPART,  # a column without a default that the statement does not name
}
DB_API_CLASSES: Final = ("DataError", "IntegrityError")
"""The errors that drivers without such a code raise for values (PEP 249)."""
HTTP_STATUSES: Final = (400, 406, 410, 413, 415, 422)
KAFKA_ERRORS: Final = (
    *("MSG_SIZE_TOO_LARGE", "INVALID_MSG_SIZE", "INVALID_TIMESTAMP", "INVALID_RECORD"),
    "_INVALID_DIFFERENT_RECORD",  # another record of the same request is invalid
)

UNPREPARED: Final = ("26000", "42P05", "08P01")
"""Codes if a pool in front of PostgreSQL mixes up prepared statements: missing, already there, or another one."""
STANDBY: Final = ("25006", 1290, 1792, 1836)
"""Codes of a former primary that is read-only now. Another connection may lead to the new primary."""
RAISE: Final = "exec_stmt_raise"
"""The server's function that executes RAISE of PL/pgSQL."""
_OPERATIONAL: Final = ("08", "40", "53", "55", "57", "58")  # states of the server, even if a function raises them


def fault_of(error: Any, written: Collection[str] | None) -> Fault:
    """Return the cause of a database driver's error. `written` has the columns that a row sets; None for any column."""
    number, state, column = number_of(error), state_of(error), null_column(error)
    if is_standby(error) or (written is not None and column is not None and column not in written):
        return Fault.COUNTERPART  # a column that the handler does not set cannot be a message's fault
    if number is not None and number in MYSQL_NUMBERS:
        return MYSQL_NUMBERS[number]
    if state == "23514" and getattr(getattr(error, "diag", None), "constraint_name", "") is None:
        return Fault.REFERENCE  # no partition for the row
    if state is not None:
        known = SQLSTATES.get(state, SQLSTATES.get(state[:2]))
        is_raised = getattr(getattr(error, "diag", None), "source_function", None) == RAISE
        return known or (Fault.MESSAGE if is_raised and state[:2] not in _OPERATIONAL else Fault.COUNTERPART)
    if sqlite_name_of(error) == "SQLITE_CONSTRAINT_FOREIGNKEY":
        return Fault.REFERENCE
    return Fault.MESSAGE if _is_one_of(error, DB_API_CLASSES) else Fault.COUNTERPART


def may_pass(error: Any) -> bool:
    """Return whether to retry at once, because an error of a database's state may be temporary."""
    is_operational = _is_one_of(error, ("OperationalError",)) and sqlite_name_of(error) != "SQLITE_ERROR"
    return is_operational or is_standby(error) or is_unprepared(error)


def is_standby(error: Any) -> bool:
    """Return whether the server is a former primary that is read-only now."""
    return (number_of(error) or state_of(error)) in STANDBY


def is_unprepared(error: Any) -> bool:
    """Return whether a prepared statement is not the statement that the driver expects."""
    return state_of(error) in UNPREPARED


def _is_one_of(error: object, names: Collection[str]) -> bool:
    return any(one.__name__ in names for one in type(error).__mro__)
