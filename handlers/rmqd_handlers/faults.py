"""Whose fault an error is: the message's, or the state of its counterpart.

The rule: an error is the message's only if the counterpart says so about the values of this message. The tables below
list all such answers. Any other error is the counterpart's state, also one that nobody thought of: the message waits
(`away.mark_waiting`). No OSError is about a message, because a full disk is a state. No error of Redis is about a
message either, because its streams and lists take any value: full memory, a key of another type, a cluster without a
quorum.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping
from typing import Any, Final

from .database_errors import null_column, number_of, sqlite_name_of, state_of


class Fault(enum.Enum):
    """Whose fault an error is."""

    MESSAGE = "the counterpart refuses the values of this message"
    REFERENCE = "the counterpart lacks a row that this message refers to, and which may follow"
    COUNTERPART = "anything else: the message waits"


SQLSTATES: Final[Mapping[str, Fault]] = {  # by class or as a whole; PostgreSQL's, and the standard's
    **dict.fromkeys(("22", "23", "44"), Fault.MESSAGE),
    "23503": Fault.REFERENCE,
    "45": Fault.MESSAGE,  # raised by a trigger, as the standard has it
    "P0": Fault.MESSAGE,  # raised by a trigger's function
    "54000": Fault.MESSAGE,  # a key that is too long for its index
    "54001": Fault.MESSAGE,  # JSON that is nested too deeply
}
MYSQL_NUMBERS: Final[Mapping[int, Fault]] = {  # also of MariaDB; if the driver's class of an error says too little
    **dict.fromkeys((1048, 1062, 1118, 1153, 1264, 1265, 1292, 1366), Fault.MESSAGE),
    **dict.fromkeys((1406, 1411, 1644, 1690, 3140, 3819, 4025), Fault.MESSAGE),
    **dict.fromkeys((1216, 1452, 1526), Fault.REFERENCE),  # the last one: no partition for the row
    1364: Fault.COUNTERPART,  # a column without a default that the statement does not name
}
DB_API_CLASSES: Final = ("DataError", "IntegrityError")
"""What drivers without such a code raise for values (PEP 249)."""
HTTP_STATUSES: Final = (400, 406, 410, 413, 415, 422)
KAFKA_ERRORS: Final = (
    *("MSG_SIZE_TOO_LARGE", "INVALID_MSG_SIZE", "INVALID_TIMESTAMP", "INVALID_RECORD"),
    "_INVALID_DIFFERENT_RECORD",  # another one of the same request
)

UNPREPARED: Final = ("26000", "42P05", "08P01")
"""How a pool in front of PostgreSQL shows that it mixes up prepared statements: missing, there, of another one."""
STANDBY: Final = ("25006", 1290, 1792, 1836)
"""A former primary that is read-only now: another connection may lead to the new one."""
RAISE: Final = "exec_stmt_raise"
"""The function of the server that carries out RAISE of PL/pgSQL."""
_OPERATIONAL: Final = ("08", "40", "53", "55", "57", "58")  # of the server, even if a function raises them


def fault_of(error: Any, written: Collection[str] | None) -> Fault:
    """Whose fault the error of a database's driver is. `written` has the columns that a row sets; None: any may be."""
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
    """Whether an error of a database's state is worth another try at once, because it may pass by itself."""
    is_operational = _is_one_of(error, ("OperationalError",)) and sqlite_name_of(error) != "SQLITE_ERROR"
    return is_operational or is_standby(error) or is_unprepared(error)


def is_standby(error: Any) -> bool:
    """Whether the server only reads: it was the primary."""
    return (number_of(error) or state_of(error)) in STANDBY


def is_unprepared(error: Any) -> bool:
    """Whether a prepared statement is not the one that the driver takes it for."""
    return state_of(error) in UNPREPARED


def _is_one_of(error: object, names: Collection[str]) -> bool:
    return any(one.__name__ in names for one in type(error).__mro__)
