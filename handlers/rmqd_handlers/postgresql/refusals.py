"""Which errors of PostgreSQL are about the row that was to be written."""

from __future__ import annotations

from typing import Final

RAISE: Final = "exec_stmt_raise"  # where the server carries out RAISE of PL/pgSQL


def is_of_a_row(error: Exception) -> bool:
    """Whether a row is refused, by its values, a constraint, or the function of a trigger."""
    from psycopg import errors

    # the third is for what has no room, such as a key that is too long for its index; those behind it are raised by a
    # trigger's function
    kinds = (
        errors.DataError,
        errors.IntegrityError,
        errors.ProgramLimitExceeded,
        errors.RaiseException,
        errors.NoDataFound,
        errors.TooManyRows,
        errors.AssertFailure,
    )
    return isinstance(error, kinds) or (is_raised(error) and not isinstance(error, errors.OperationalError))


def is_raised(error: object) -> bool:
    """Whether a function says so by RAISE, with whatever ERRCODE: the server tells where in it an error is from."""
    return getattr(getattr(error, "diag", None), "source_function", None) == RAISE
