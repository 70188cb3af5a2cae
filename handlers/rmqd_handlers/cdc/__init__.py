"""`cdc`: change data of databases, in JSON of Canal or Debezium, as rows that are to be there, or to be deleted.

pipeline   the options and the pipeline: a message's changes as rows, and what is bad
changes    what a change is, and what both formats have in common
canal      flat messages of Canal
debezium   envelopes of Debezium, with and without their schema
columns    the columns of `schema`, and what a value of a message is in them
"""

from .pipeline import cdc

__all__ = ["cdc"]
