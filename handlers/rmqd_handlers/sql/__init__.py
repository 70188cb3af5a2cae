"""`sql`: writes messages as rows of a table, or with a statement, in any database that SQLAlchemy supports.

handler   the options; the decision about each message of a batch
database  the connections, each in its own thread; a batch is one transaction
work      a call that can be abandoned, and its running statement
engine    SQLAlchemy's connections: timeouts by driver, and SQLite's transactions
target    the table as the database describes it, or the statement; the SQL for a row
values    values by the type of their column
errors    whether an error concerns a row or the database, and its text without values
"""

from .handler import Sql

__all__ = ["Sql"]
