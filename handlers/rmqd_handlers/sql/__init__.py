"""`sql`: messages as rows of a table, or by a statement, in any database that SQLAlchemy knows.

handler   the options; what becomes of each message of a batch
database  the connections, each in a thread of its own; a batch is one transaction
work      a call that may be given up, with the statement that is under way
engine    how SQLAlchemy is to connect: time limits by driver, and SQLite's transactions
target    the table as the database describes it, or the statement; what is run for a row
values    values by the type of their column
errors    whether an error is about a row, or the database is away; what is told of it
"""

from .handler import Sql

__all__ = ["Sql"]
