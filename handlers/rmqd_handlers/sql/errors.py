"""What an error of SQLAlchemy or of a driver means for a batch, and what may be told of it: no value of a body."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from sqlalchemy.exc import DBAPIError, StatementError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from rmqd_handlers import database_errors, faults
from rmqd_handlers.faults import Fault


def fault_of(error: Exception, written: Collection[str] | None) -> Fault:
    """Whose fault the error of a statement, or of a connection, is."""
    if isinstance(error, DBAPIError):
        return Fault.COUNTERPART if error.connection_invalidated else faults.fault_of(error.orig, written)
    # what SQLAlchemy or the driver cannot make of a value
    is_value = isinstance(error, StatementError | ValueError | TypeError | ArithmeticError)
    return Fault.MESSAGE if is_value else Fault.COUNTERPART


def may_pass(error: Exception) -> bool:
    """Whether another try at once is worth it."""
    if isinstance(error, DBAPIError):
        return error.connection_invalidated or faults.may_pass(error.orig)
    return isinstance(error, PoolTimeoutError)


def is_of_connection(error: Exception) -> bool:
    """Whether another connection may do: this one leads to a standby, or a pool mixes up prepared statements on it."""
    return isinstance(error, DBAPIError) and (faults.is_standby(error.orig) or faults.is_unprepared(error.orig))


def told(error: Exception, names: Iterable[str], values: Iterable[object]) -> str:
    """The error of a statement in words that have no value of a body."""
    return database_errors.told(_origin(error), names, values)


def told_of_connecting(error: Exception) -> str:
    """The error of a connection that could not be had."""
    return database_errors.told_of_connecting(_origin(error))


def _origin(error: Exception) -> Any:
    return error.orig if isinstance(error, StatementError) and error.orig is not None else error
