"""Formats and SQL that our handlers and Spark's sinks share. Public, like `rmqd.offset_stores`.

archive_manifest   the JSON files of an archive of Parquet files: entries, batches, layouts, compactions
upsert_sql         rows that replace the row of their key unless it is later
"""
