"""`postgresql`: messages as rows of a table, by INSERT, upsert or COPY.

handler     the options; a batch is one transaction, and what the database refuses is looked for row by row
connecting  what libpq is told of every connection
table       the table as the database describes it, and the statements
texts       values as PostgreSQL reads them, by the type of their column

offset_store  the offset store of the same name, for handlers of the user's own
"""

from .handler import PostgreSql
from .offset_store import PostgresqlOffsets

__all__ = ["PostgreSql", "PostgresqlOffsets"]
