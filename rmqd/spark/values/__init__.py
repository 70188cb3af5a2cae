"""JSON, Avro and Protobuf bodies, decoded by the source into a column `value` whose schema is known at `load()`.

If a body does not fit the schema, `value` is null, and the column `_bad_row` contains the reason. The query continues.
Bodies are decoded in Python, for three reasons:

- A Python source returns finished columns: Spark cannot apply `from_json` before `load()` returns.
- `from_json` accepts invalid values: 128 as a tinyint becomes -128, 1e400 becomes infinity, 1.25 as a decimal(3,1)
  becomes 1.3, invalid UTF-8 becomes U+FFFD, text after the object is ignored, and no reason is given.
- `from_avro` and `from_protobuf` need jars that PySpark lacks: a machine without network could not decode.
"""
