"""`parquet`: messages as rows of Parquet files in a folder or a bucket of S3, with a manifest of those that are whole.

handler     the options; calls wait until the file that has their messages is listed
filling     the file that a queue's messages gather for: when it is closed, and what becomes of its calls
columns     values of messages as the columns' types have them
manifest    which files there are, and which offsets of a queue they have
stores      where files go: a folder, or a bucket
type_names  the types that options may name
"""

from .handler import Parquet

__all__ = ["Parquet"]
