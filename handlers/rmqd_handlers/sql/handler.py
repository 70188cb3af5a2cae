"""The handler `sql`: a batch is one transaction."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from rmqd import Batch
from rmqd_handlers.away import (
    ON_INVALID,
    RETRY_FOR,
    AwayError,
    ChangedError,
    OnInvalid,
    acknowledge_written,
    adopt,
    refuse,
    trial_of,
    try_again,
)
from rmqd_handlers.faults import ErrorCause
from rmqd_handlers.message_values import MessageValue
from rmqd_handlers.option_kinds import DurationSeconds, SqlAlchemyUrl, need
from rmqd_handlers.rows import COLUMNS_TEXT, KEY, MAX_CONNECTIONS, TABLE_PATTERN, VERSION, check_key, rows_of

if TYPE_CHECKING:
    from rmqd_handlers.sql.database import Database, Rows, Written
    from rmqd_handlers.sql.target import RowTarget

logger = logging.getLogger(__name__)


class Sql:
    """Writes each message as a row of a table, or with a statement, in any database that SQLAlchemy supports."""

    calls_limited_by: ClassVar[str] = "max_connections"

    class Options(BaseModel):
        model_config = ConfigDict(extra="forbid", validate_default=True)

        url: SqlAlchemyUrl = Field(
            description="the database as an SQLAlchemy URL: sqlite:////path/to/file, postgresql+psycopg://…, "
            "mysql+pymysql://user:password@host/shop; its driver must be installed"
        )
        table: str | None = Field(
            None, description="the table, which must exist: orders, or shop.orders", pattern=TABLE_PATTERN
        )
        columns: dict[str, MessageValue] = Field(default_factory=dict, description=COLUMNS_TEXT)
        mode: Literal["insert", "upsert"] = Field(
            "insert", description="insert; or upsert, which replaces the row with the same key"
        )
        key: list[str] = KEY
        version: str | None = VERSION
        statement: str | None = Field(
            None, description="instead of a table, the statement for each message, with parameters such as :id"
        )
        parameters: dict[str, MessageValue] = Field(
            default_factory=dict, description="each parameter of the statement, and its value, as in columns"
        )
        once: bool = Field(
            False,
            description="whether a redelivered message is skipped, with the mark of message.once in the same "
            "transaction",
        )
        on_invalid: OnInvalid = ON_INVALID
        connect_args: dict[str, Any] = Field(
            default_factory=dict, description="arguments for the driver, such as {ssl: {ca: /etc/ssl/ca.pem}}"
        )
        max_connections: int = MAX_CONNECTIONS
        retry_for: DurationSeconds = RETRY_FOR

        @model_validator(mode="after")
        def _fit(self) -> Self:
            if (self.table is None) == (self.statement is None):
                raise ValueError("no destination; expected a table with columns, or a statement with parameters")
            if self.statement is not None and (self.columns or self.key or self.mode != "insert"):
                raise ValueError("columns, mode and key need a table; a statement has parameters")
            if self.table is not None and (self.parameters or not self.columns):
                raise ValueError("a table needs columns, not parameters")
            check_key(self.columns, self.mode, self.key, self.version)
            return self

    def __init__(self, options: Options) -> None:
        need("sqlalchemy", "sql")
        self._options = options
        self._database: Database
        self._target: RowTarget
        self._is_target_doubted = False

    async def start(self) -> None:
        """Look the table up now: a wrong name, or an unavailable database, fails the start instead of each message."""
        from rmqd_handlers.sql.database import Database

        one = self._options
        self._database = Database(one.url.get_secret_value(), one.connect_args, one.max_connections, once=one.once)
        try:
            self._target = await self._read_target()
        except BaseException:
            await self._database.close()
            raise

    async def stop(self) -> None:
        await self._database.close()

    async def handle(self, batch: Batch) -> None:
        from rmqd_handlers.sql.database import RefusedError

        await try_again(
            lambda: self._write(batch),
            (AwayError, RefusedError),
            self._options.retry_for,
            "sql",
            lambda error: isinstance(error, AwayError),
        )
        acknowledge_written(batch)

    async def _write(self, batch: Batch) -> None:
        from rmqd_handlers.sql.database import RefusedError, Written

        if self._is_target_doubted:
            await self._has_changed(self._target)
        target, rest = self._target, batch.undecided()  # an earlier attempt may have written some rows
        trial = trial_of(rest)
        rows = rows_of(trial, target.parts, target.key, self._options.on_invalid)
        if trial.decisions() and await self._has_changed(target):
            raise ChangedError
        try:
            written = await self._database.write(target, rows) if rows else Written()
            adopt(rest, trial)
            if any(one.fault is not ErrorCause.COUNTERPART for one in written.refused) and await self._has_changed(
                target
            ):
                acknowledge_written(batch, [one.message for one in written.refused])
                raise ChangedError
            self._decide(batch, rows, written)
        except RefusedError:
            self._is_target_doubted = True
            raise

    async def _read_target(self) -> RowTarget:
        from rmqd_handlers.sql.target import of_statement, of_table

        one = self._options
        return await self._database.look(
            lambda connection: (
                of_statement(connection, one.statement, one.parameters)
                if one.statement is not None
                else of_table(connection, one.table or "", one.columns, one.mode, one.key, one.version)
            )
        )

    async def _has_changed(self, read: RowTarget) -> bool:
        """Read the table again after a refused value or statement, which it may accept now. Returns whether it changed.
        Raises AwayError.
        """
        from rmqd_handlers.sql.engine import connection_error_text

        self._is_target_doubted = True
        try:
            self._target = await self._read_target()
        except Exception as error:  # noqa: BLE001  any exception of a driver
            raise AwayError(connection_error_text(error)) from None
        self._is_target_doubted = False
        return self._target.kinds != read.kinds

    def _decide(self, batch: Batch, rows: Rows, written: Written) -> None:
        """Decide about the rows. If the cause of a refused row is unknown, raises RefusedError after all others are
        decided.
        """
        from rmqd_handlers.sql.database import RefusedError

        unknown: list[str] = []
        for one in written.refused:
            if one.fault is ErrorCause.MESSAGE:
                refuse(batch, one.message, one.why, self._options.on_invalid)
            elif one.fault is ErrorCause.REFERENCE:
                batch.retry(one.message, reason=one.why)
            else:
                unknown.append(one.why)
        for before in written.handled_before:
            if len(batch) == 1:
                raise before  # rmqd counts this exception
            logger.info("message.already_handled", extra={"msg_id": before.message.msg_id})
        if unknown:
            acknowledge_written(batch, [one.message for one in written.refused])
            raise RefusedError(unknown[0])
