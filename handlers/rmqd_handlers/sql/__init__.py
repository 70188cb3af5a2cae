"""`sql`: writes messages as rows of a table, or with a statement, in any database that SQLAlchemy supports."""

from rmqd_handlers.sql.handler import Sql

__all__ = ["Sql"]
