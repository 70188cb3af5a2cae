"""Bodies decoded by the source: JSON, Avro and Protobuf as a column `value` of a schema that is known at `load()`.

What does not fit the schema is null there, and the column `_bad_row` says why: no body ends a query. Decoding is
Python's: Spark 4.3 has no function of its own for a Python source, and its Avro and Protobuf come as jars.

    kinds            types of columns, as SQL writes them; pure
    fitting          values of Python made to fit a type, or refused; pure
    inferring        the type that bodies in JSON have; pure
    value_format     the source's options of it: format and schema, read on the driver
    avro_value       schemas and records of Avro
    schema_registry  what RocketMQ's schema registry says of schemas
    protobuf_value   messages of Protobuf, by a descriptor file
    value_columns    the columns of a batch, on executors
"""
