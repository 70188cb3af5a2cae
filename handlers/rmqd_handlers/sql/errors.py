"""The meaning of SQLAlchemy's and drivers' errors for a batch, and their texts without values of a body."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from sqlalchemy.exc import DBAPIError, StatementError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from rmqd_handlers import database_errors, faults
from rmqd_handlers.faults import Fault


def fault_of(error: Exception, written: Collection[str] | None) -> Fault:
    """Return the cause of the error of a statement or connection."""
    if isinstance(error, DBAPIError):
        return Fault.COUNTERPART if error.connection_invalidated else faults.fault_of(error.orig, written)
    # values that SQLAlchemy or the driver cannot convert
    is_value = isinstance(error, StatementError | ValueError | TypeError | ArithmeticError)
    return Fault.MESSAGE if is_value else Fault.COUNTERPART


def may_pass(error: Exception) -> bool:
    """Return whether to retry at once."""
    if isinstance(error, DBAPIError):
        return error.connection_invalidated or faults.may_pass(error.orig)
    return isinstance(error, PoolTimeoutError)


def is_of_connection(error: Exception) -> bool:
    """Return whether another connection may help: this one leads to a standby, or a pool mixes up its prepared
    statements.
    """
    return isinstance(error, DBAPIError) and (faults.is_standby(error.orig) or faults.is_unprepared(error.orig))


def told(error: Exception, names: Iterable[str], values: Iterable[object]) -> str:
    """Return the error of a statement without values of a body."""
    return database_errors.told(_origin(error), names, values)


def told_of_connecting(error: Exception) -> str:
    """Return the error of a failed connection."""
    return database_errors.told_of_connecting(_origin(error))


def _origin(error: Exception) -> Any:
    return error.orig if isinstance(error, StatementError) and error.orig is not None else error
