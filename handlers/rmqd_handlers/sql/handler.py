"""The handler `sql`: a batch is one transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, model_validator

from rmqd_handlers.away import ON_INVALID, RETRY_FOR, CounterpartUnavailableError, OnInvalid
from rmqd_handlers.faults import connection_error_text
from rmqd_handlers.message_values import MessageValue
from rmqd_handlers.option_kinds import MAX_CONNECTIONS, DurationSeconds, HandlerOptions, SqlAlchemyUrl, option, require
from rmqd_handlers.rows import (
    COLUMNS_TEXT,
    KEY,
    TABLE_PATTERN,
    VERSION,
    RowHandler,
    Rows,
    RowsRefusedError,
    UnwrittenOutcome,
    check_key,
)

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from rmqd_handlers.sql.database import Database
    from rmqd_handlers.sql.target import RowTarget


class Sql(RowHandler["RowTarget"]):
    """Writes each message as a row of a table, or with a statement, in any database that SQLAlchemy supports."""

    class Options(HandlerOptions):
        url: SqlAlchemyUrl = Field(
            description="the database as an SQLAlchemy URL: sqlite:////path/to/file, postgresql+psycopg://…, "
            "mysql+pymysql://user:password@host/shop; its driver must be installed"
        )
        table: str | None = option(None, "the table, which must exist: orders, or shop.orders", pattern=TABLE_PATTERN)
        columns: dict[str, MessageValue] = option({}, COLUMNS_TEXT)
        mode: Literal["insert", "upsert"] = option(
            "insert", "insert; or upsert, which replaces the row with the same key"
        )
        key: list[str] = KEY
        version: str | None = VERSION
        statement: str | None = option(
            None, "instead of a table, the statement for each message, with parameters such as :id"
        )
        parameters: dict[str, MessageValue] = option(
            {}, "each parameter of the statement, and its value, as in columns"
        )
        once: bool = option(
            False, "whether a redelivered message is skipped, with the mark of message.once in the same transaction"
        )
        on_invalid: OnInvalid = ON_INVALID
        connect_args: dict[str, Any] = option({}, "arguments for the driver, such as {ssl: {ca: /etc/ssl/ca.pem}}")
        max_connections: int = MAX_CONNECTIONS
        retry_for: DurationSeconds = RETRY_FOR

        @model_validator(mode="after")
        def _fit(self) -> Self:
            if (self.table is None) == (self.statement is None):
                raise ValueError("no destination; expected a table with columns, or a statement with parameters")
            if self.statement is not None and (self.columns or self.key or self.mode != "insert"):
                raise ValueError("columns, mode and key need a table; a statement takes parameters instead")
            if self.table is not None and (self.parameters or not self.columns):
                raise ValueError("a table needs columns, not parameters")
            check_key(self.columns, self.mode, self.key, self.version)
            return self

    def __init__(self, options: Options) -> None:
        require("sqlalchemy", "sql")
        super().__init__("sql", options.on_invalid, options.retry_for)
        self._options = options
        self._database: Database

    async def start(self) -> None:
        """Look the table up now: a wrong name, or an unavailable database, fails the start instead of each message."""
        from rmqd_handlers.sql.database import Database

        one = self._options
        self._database = Database(one.url.get_secret_value(), one.connect_args, one.max_connections, once=one.once)
        try:
            self._target = await self._database.query(self._find)
        except BaseException:
            await self._database.close()
            raise

    async def stop(self) -> None:
        await self._database.close()

    @property
    def _errors(self) -> tuple[type[Exception], ...]:
        return CounterpartUnavailableError, RowsRefusedError

    def _may_pass(self, error: Any) -> bool:
        return isinstance(error, CounterpartUnavailableError)

    async def _read_target(self) -> RowTarget:
        try:
            return await self._database.query(self._find)
        except Exception as error:  # noqa: BLE001  any exception of a driver
            raise CounterpartUnavailableError(connection_error_text(error)) from None

    async def _write(self, target: RowTarget, rows: Rows) -> UnwrittenOutcome:
        return await self._database.write(target, rows)

    def _find(self, connection: Connection) -> RowTarget:
        from rmqd_handlers.sql.target import of_table, target_of_statement

        one = self._options
        if one.statement is not None:
            return target_of_statement(connection, one.statement, one.parameters)
        return of_table(connection, one.table or "", one.columns, one.mode, one.key, one.version)
