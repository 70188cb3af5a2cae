"""The handler `sql`: a batch is one transaction."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from rmqd import Batch
from rmqd_handlers.away import RETRY_FOR, AwayError, try_again
from rmqd_handlers.extras import need
from rmqd_handlers.message_values import MessageValue
from rmqd_handlers.refused import ON_INVALID, OnInvalid, acknowledge_written, refuse
from rmqd_handlers.rows import COLUMNS_TEXT, KEY, MAX_CONNECTIONS, TABLE_PATTERN, VERSION, check_key, rows_of
from rmqd_handlers.units import DurationSeconds
from rmqd_handlers.urls import SqlAlchemyUrl

if TYPE_CHECKING:
    from .database import Database, Rows, Written
    from .target import Target

logger = logging.getLogger(__name__)


class Sql:
    """Writes each message as a row of a table, or by a statement, in any database that SQLAlchemy knows."""

    calls_limited_by: ClassVar[str] = "max_connections"

    class Options(BaseModel):
        model_config = ConfigDict(extra="forbid", validate_default=True)

        url: SqlAlchemyUrl = Field(
            description="the database, as SQLAlchemy names it: sqlite:////path/to/file, postgresql+psycopg://…, "
            "mysql+pymysql://user:password@host/shop; its driver is to be installed"
        )
        table: str | None = Field(
            None, description="the table, which must exist: orders, or shop.orders", pattern=TABLE_PATTERN
        )
        columns: dict[str, MessageValue] = Field(default_factory=dict, description=COLUMNS_TEXT)
        mode: Literal["insert", "upsert"] = Field(
            "insert", description="insert; or upsert, which replaces the row of the same key"
        )
        key: list[str] = KEY
        version: str | None = VERSION
        statement: str | None = Field(
            None, description="in place of a table, what is run for each message, with parameters such as :id"
        )
        parameters: dict[str, MessageValue] = Field(
            default_factory=dict, description="each parameter of the statement, and its value, as in columns"
        )
        once: bool = Field(
            False,
            description="whether a message that comes again is left out, by the mark of message.once in the same "
            "transaction",
        )
        on_invalid: OnInvalid = ON_INVALID
        connect_args: dict[str, Any] = Field(
            default_factory=dict, description="arguments of the driver's own, such as {ssl: {ca: /etc/ssl/ca.pem}}"
        )
        max_connections: int = MAX_CONNECTIONS
        retry_for: DurationSeconds = RETRY_FOR

        @model_validator(mode="after")
        def _fit(self) -> Self:
            if (self.table is None) == (self.statement is None):
                raise ValueError("give a table with its columns, or a statement with its parameters")
            if self.statement is not None and (self.columns or self.key or self.mode != "insert"):
                raise ValueError("columns, mode and key are for a table; a statement has parameters")
            if self.table is not None and (self.parameters or not self.columns):
                raise ValueError("a table needs columns, and has no parameters")
            check_key(self.columns, self.mode, self.key, self.version)
            return self

    def __init__(self, options: Options) -> None:
        need("sqlalchemy", "sql")
        self._options = options
        self._database: Database
        self._target: Target

    async def start(self) -> None:
        """Look the table up now: a wrong name, or a database that is away, fails the start instead of each message."""
        from .database import Database
        from .target import of_statement, of_table

        one = self._options
        database = Database(one.url.get_secret_value(), one.connect_args, one.max_connections, once=one.once)
        try:
            self._target = await database.look(
                lambda connection: (
                    of_statement(connection, one.statement, one.parameters)
                    if one.statement is not None
                    else of_table(connection, one.table or "", one.columns, one.mode, one.key, one.version)
                )
            )
        except BaseException:
            await database.close()
            raise
        self._database = database

    async def stop(self) -> None:
        await self._database.close()

    async def handle(self, batch: Batch) -> None:
        target = self._target
        rows = rows_of(batch, target.parts, target.key, self._options.on_invalid)
        if not rows:
            return

        async def write() -> None:
            self._decide(batch, rows, await self._database.write(target, rows))

        await try_again(write, (AwayError,), self._options.retry_for, "sql")
        acknowledge_written(batch)

    def _decide(self, batch: Batch, rows: Rows, written: Written) -> None:
        """Raises RefusedError for rows of which it is not known that they are at fault, once all others are decided."""
        from .database import RefusedError
        from .errors import Kind

        unknown: list[str] = []
        refused = {id(one.message) for one in written.refused}
        for one in written.refused:
            if one.kind is Kind.ROW:
                refuse(batch, one.message, one.why, self._options.on_invalid)
            elif one.kind is Kind.REFERENCE:
                batch.retry(one.message, reason=one.why)
            else:
                unknown.append(one.why)
        for before in written.handled_before:
            if len(batch) == 1:
                raise before  # so that it is counted
            logger.info("message.already_handled", extra={"msg_id": before.message.msg_id})
        if unknown:
            for message, _ in rows:
                if id(message) not in refused:
                    batch.ack(message)
            raise RefusedError(unknown[0])
