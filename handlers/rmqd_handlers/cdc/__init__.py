"""`cdc`: converts change data of databases, in JSON of Canal or Debezium, to rows to store or delete.

pipeline   the options and the pipeline: a message's changes as rows, and the reasons of bad messages
changes    a change, and helpers for both formats
canal      flat messages of Canal
debezium   envelopes of Debezium, with and without their schema
columns    the columns of `schema`, and the conversion of values
"""

from .pipeline import cdc

__all__ = ["cdc"]
