"""`parquet`: writes messages as rows of Parquet files in a folder or S3 bucket, with a manifest of complete files.

handler     the options; calls wait until their file is listed in the manifest
filling     the file that gathers a queue's messages: when it is closed, and the result of its calls
columns     the columns, and the conversion of values to their types
manifest    the list of files, with their offsets of a queue
stores      the destination of files: a folder or a bucket
type_names  the types that options can name
"""

from .handler import Parquet

__all__ = ["Parquet"]
