"""Bodies decoded by the source: JSON, Avro and Protobuf as a column `value`, with a schema known at `load()`.

A body that does not fit the schema is null there, and the column `_bad_row` contains the reason, so no body ends a
query. Decoding is done in Python, for three reasons:

- A source in Python returns finished columns: Spark cannot apply `from_json` before `load()` returns.
- `from_json` accepts invalid values: 128 as a tinyint becomes -128, 1e400 becomes infinity, 1.25 as a decimal(3,1)
  becomes 1.3, invalid UTF-8 becomes U+FFFD, text after the object is ignored, and no reason is given.
- `from_avro` and `from_protobuf` need jars that PySpark lacks: a machine without network could not decode.
"""
