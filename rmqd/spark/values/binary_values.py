"""Avro and Protobuf bodies as Spark values: converts a schema to a type, and decodes bodies.

A Protobuf schema is the output of `protoc --include_imports --descriptor_set_out=FILE`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC
from typing import TYPE_CHECKING, Any, Final

from rmqd.handler_api.typed.avro_records import parted
from rmqd.spark.values.column_kinds import ColumnKind, array_kind, decimal_kind, map_kind
from rmqd.spark.values.schema_registry import SchemaRegistry, UnknownRecordError

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor

_PLAIN: Final = {
    "boolean": "boolean",
    "int": "int",
    "long": "bigint",
    "float": "float",
    "double": "double",
    "bytes": "binary",
    "fixed": "binary",
    "string": "string",
    "enum": "string",
}
# key: base type and logical type; Avro ignores a logical type on any other base type
_LOGICAL: Final = {
    ("int", "date"): "date",
    ("long", "timestamp-millis"): "timestamp",
    ("long", "timestamp-micros"): "timestamp",
    ("long", "local-timestamp-millis"): "timestamp_ntz",
    ("long", "local-timestamp-micros"): "timestamp_ntz",
}
_RECORDS: Final = ("record", "error")
_UNREAD: Final = (("int", "time-millis"), ("long", "time-micros"), ("fixed", "duration"))
_DECIMALS: Final = (("bytes", "decimal"), ("fixed", "decimal"))


def avro_kind(text: str) -> ColumnKind:
    """Return a record's schema as a struct. Raises ValueError for an invalid or unsupported schema."""
    from fastavro.schema import expand_schema

    kind = _avro_kind(expand_schema(_parsed(text)))
    if kind.name != "struct":
        raise ValueError(f"the schema is of type {kind.sql}; expected a record")
    return kind


def avro_reader(text: str, *, is_registered: bool) -> Callable[[bytes], Any]:
    """Return a function that decodes bodies. It may raise any exception for an invalid body."""
    from rmqd.handler_api.typed.avro_records import record_reader

    return record_reader(_parsed(text), is_registered=is_registered)


def registered_reader(text: str, registry: SchemaRegistry) -> Callable[[bytes], Any]:
    """Return a function that decodes bodies with the schema that their prefix names, and converts to the given schema.

    It raises RegistryAwayError if the registry does not answer, and any other exception for an invalid body.
    """
    from rmqd.handler_api.typed.avro_records import read_record

    reader = _parsed(text)
    unknown: dict[int, str] = {}  # only the texts: a stored exception would keep a reference to each body

    def read(body: bytes) -> Any:
        record_id, record = parted(body)
        if record_id in unknown:
            raise UnknownRecordError(unknown[record_id])
        try:
            writer = registry.written_by(record_id)
        except UnknownRecordError as error:
            unknown[record_id] = str(error)
            raise
        return read_record(record, writer, None if writer == reader else reader)

    return read


def _parsed(text: str) -> Any:
    import fastavro

    try:
        schema = json.loads(text)
    except ValueError as error:
        raise ValueError(f"not valid JSON: {error}") from None
    _check_records(schema)
    try:
        return fastavro.parse_schema(schema)
    except Exception as error:  # noqa: BLE001  fastavro raises many kinds
        raise ValueError(f"not a valid Avro schema: {error!r}") from None


def _check_records(schema: Any) -> None:
    """Reject a record without fields, which fastavro accepts."""
    if isinstance(schema, list):
        for part in schema:
            _check_records(part)
    elif isinstance(schema, dict):
        if schema.get("type") in _RECORDS and schema.get("fields") is None:
            name = f"{schema.get('namespace', '')}.{schema.get('name')}".lstrip(".")
            raise ValueError(f'the record {name} has no fields; expected {{"name": …, "type": …}} in "fields": […]')
        _check_records([schema.get(key) for key in ("type", "items", "values", "fields")])


def _avro_kind(schema: Any) -> ColumnKind:
    """Convert a schema in which fastavro has replaced names by their definitions, as far as they do not recur."""
    if isinstance(schema, list):
        others = [member for member in schema if member != "null"]
        if len(others) != 1:
            shown = json.dumps(schema)[:60]
            raise ValueError(f"the union {shown} has no Spark type; expected null and one other type")
        return _avro_kind(others[0])
    if isinstance(schema, str):
        schema = {"type": schema}
    name = schema["type"]
    if not isinstance(name, str):
        return _avro_kind(name)
    logical = name, str(schema.get("logicalType"))
    if logical in _UNREAD:
        raise ValueError(f"{logical[1]} has no Spark type here; remove the logical type from the schema")
    if logical in _DECIMALS:
        if not isinstance(precision := schema.get("precision"), int):
            raise ValueError("a decimal has no precision; expected the maximum number of digits, as a number")
        return decimal_kind(precision, schema.get("scale", 0))
    if name in _RECORDS:
        return ColumnKind("struct", tuple((field["name"], _avro_kind(field["type"])) for field in schema["fields"]))
    if name == "array":
        return array_kind(_avro_kind(schema["items"]))
    if name == "map":
        return map_kind(_avro_kind(schema["values"]))
    if found := _LOGICAL.get(logical) or _PLAIN.get(name):
        return ColumnKind(found)
    if name == "null":
        raise ValueError("null has no Spark type")
    raise ValueError(f"the record {name} contains itself; Spark has no recursive types")


TIMESTAMP: Final = "google.protobuf.Timestamp"
# key: FieldDescriptor.cpp_type; enums and messages have no plain type
_PLAIN_PROTOBUF: Final = {
    1: "int",
    2: "bigint",
    3: "bigint",
    5: "double",
    6: "float",
    7: "boolean",
    9: "string",
}
_UNSIGNED_64: Final = ColumnKind("decimal", precision=20)
_BYTES, _MESSAGE, _UINT64 = 12, 11, 4
Column = tuple[ColumnKind, Callable[[Any], Any]]
"""A type, and the function that converts a value to it."""


def protobuf_kind(descriptors: bytes, message: str) -> ColumnKind:
    """Return a message as a struct. Raises ValueError for an invalid descriptor file or an unknown message."""
    return _message_column(_descriptor(descriptors, message), ())[0]


def protobuf_reader(descriptors: bytes, message: str) -> Callable[[bytes], Any]:
    """Return a function that decodes bodies. It may raise any exception for an invalid body."""
    from google.protobuf.message_factory import GetMessageClass

    descriptor = _descriptor(descriptors, message)
    make, (_, values_of) = GetMessageClass(descriptor), _message_column(descriptor, ())
    return lambda body: values_of(make.FromString(body))


def _descriptor(descriptors: bytes, message: str) -> Descriptor:
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.message import DecodeError

    pool = DescriptorPool()
    try:
        files = FileDescriptorSet.FromString(descriptors)
        for file in files.file:
            pool.Add(file)
    except (DecodeError, TypeError) as error:
        raise ValueError(
            f"not a valid descriptor file: {error}; expected one from protoc --include_imports --descriptor_set_out"
        ) from None
    try:
        return pool.FindMessageTypeByName(message)
    except KeyError:
        known = [f"{file.package}.{one.name}".lstrip(".") for file in files.file for one in file.message_type]
        raise ValueError(f"unknown message {message}; expected one of {', '.join(known)}") from None


def _message_column(descriptor: Descriptor, above: tuple[str, ...]) -> Column:
    if descriptor.full_name in above:
        raise ValueError(f"the message {descriptor.full_name} contains itself; Spark has no recursive types")
    above = (*above, descriptor.full_name)
    columns = [(field.name, field.has_presence, *_field_column(field, above)) for field in descriptor.fields]

    def values_of(message: Any) -> dict[str, Any]:
        """An unset field without presence has its default, as in any Protobuf reader."""
        return {
            name: None if has_presence and not message.HasField(name) else convert(getattr(message, name))
            for name, has_presence, _, convert in columns
        }

    return ColumnKind("struct", tuple((name, kind) for name, _, kind, _ in columns)), values_of


def _field_column(field: FieldDescriptor, above: tuple[str, ...]) -> Column:
    message = field.message_type
    if message is not None and message.GetOptions().map_entry:
        kind, convert = _single_column(message.fields_by_name["value"], above)
        return map_kind(kind), lambda values: {str(key): convert(values[key]) for key in values}
    kind, convert = _single_column(field, above)
    return (array_kind(kind), lambda values: list(map(convert, values))) if field.is_repeated else (kind, convert)


def _single_column(field: FieldDescriptor, above: tuple[str, ...]) -> Column:
    if field.type == _MESSAGE:
        if field.message_type.full_name == TIMESTAMP:
            return ColumnKind("timestamp"), lambda value: value.ToDatetime(tzinfo=UTC)
        return _message_column(field.message_type, above)
    if field.enum_type is not None:
        names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        return ColumnKind("string"), lambda number: names.get(number, str(number))
    if field.cpp_type == _UINT64:
        return _UNSIGNED_64, lambda value: value
    kind = "binary" if field.type == _BYTES else _PLAIN_PROTOBUF[field.cpp_type]
    return ColumnKind(kind), lambda value: value
