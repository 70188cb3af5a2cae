"""`postgresql`: writes messages as rows of a table, with INSERT, upsert or COPY."""

from rmqd_handlers.postgresql.handler import PostgreSql
from rmqd_handlers.postgresql.offset_store import PostgresqlOffsets

__all__ = ["PostgreSql", "PostgresqlOffsets"]
