"""Bodies decoded by the source: JSON, Avro and Protobuf as a column `value`, with a schema known at `load()`.

A body that does not fit the schema is null there, and the column `_bad_row` contains the reason, so no body ends a
query. Decoding is done in Python, because Spark 4.3 has no decoding functions for Python sources, and its Avro and
Protobuf support needs additional jars.

    kinds            types of columns in SQL; no I/O
    fitting          converts Python values to a type, or rejects them; no I/O
    inferring        the type of JSON bodies; no I/O
    value_format     the source's options for format and schema, read on the driver
    avro_value       schemas and records of Avro
    schema_registry  schemas from RocketMQ's schema registry
    protobuf_value   messages of Protobuf, from a descriptor file
    value_columns    the columns of a batch, on executors
"""
