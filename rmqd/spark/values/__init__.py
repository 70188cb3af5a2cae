"""Bodies decoded by the source: JSON, Avro and Protobuf as a column `value`, with a schema known at `load()`.

A body that does not fit the schema is null there, and the column `_bad_row` contains the reason, so no body ends a
query. Decoding is done in Python, because Spark 4.3 has no decoding functions for Python sources, and its Avro and
Protobuf support needs additional jars.
"""
