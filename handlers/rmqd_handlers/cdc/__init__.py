"""`cdc`: converts change data of databases, in JSON of Canal or Debezium, to rows to store or delete."""

from rmqd_handlers.cdc.pipeline import cdc

__all__ = ["cdc"]
