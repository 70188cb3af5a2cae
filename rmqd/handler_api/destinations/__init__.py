"""Formats and SQL that rmqd's own handlers and Spark's sinks share. Other handlers need none of it.

archive_manifest   the JSON files of an archive of Parquet files: entries, batches, layouts, compactions
exact_json         values as JSON with all digits of their numbers
upsert_sql         rows that replace the row of their key unless it is later
"""
