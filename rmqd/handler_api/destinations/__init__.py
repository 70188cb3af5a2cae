"""Formats and SQL that rmqd's own handlers and Spark's sinks share. Other handlers do not need these modules.

archive_manifest   the JSON files of an archive of Parquet files: entries, batches, layouts, compactions
exact_json         values as JSON with all digits of their numbers
upsert_sql         SQL that replaces the row with the same key, unless the stored row is later
"""
