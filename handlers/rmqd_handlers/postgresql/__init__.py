"""`postgresql`: writes messages as rows of a table, with INSERT, upsert or COPY.

handler     the options; a batch is one transaction, and refused rows are found one by one
connecting  the parameters of every connection
table       the table as the database describes it, and the statements
texts       values in PostgreSQL's text format, by the type of their column

offset_store  the offset store of the same name, for users' handlers
"""

from .handler import PostgreSql
from .offset_store import PostgresqlOffsets

__all__ = ["PostgreSql", "PostgresqlOffsets"]
