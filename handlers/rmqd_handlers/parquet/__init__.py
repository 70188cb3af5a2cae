"""`parquet`: writes messages as rows of Parquet files in a folder or S3 bucket, with a manifest of complete files."""

from rmqd_handlers.parquet.handler import Parquet

__all__ = ["Parquet"]
