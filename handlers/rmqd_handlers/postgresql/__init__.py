"""`postgresql`: messages as rows of a table, by INSERT, upsert or COPY.

handler     the options; a batch is one transaction, and what the database refuses is looked for row by row
connecting  what libpq is told of every connection
table       the table as the database describes it, and the statements
texts       values as PostgreSQL reads them, by the type of their column
"""

from .handler import PostgreSql

__all__ = ["PostgreSql"]
