"""Avro and Protobuf bodies as Spark values.

Avro: converts a schema to a type, and decodes bodies.

Protobuf: converts a message of a descriptor file to a type, and decodes bodies.

The file is the output of `protoc --include_imports --descriptor_set_out=FILE`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC
from typing import TYPE_CHECKING, Any, Final

from rmqd.handler_api.typed.avro_records import parted
from rmqd.spark.values.column_kinds import ColumnKind, decimal_kind
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
    ("string", "uuid"): "string",
}
_RECORDS: Final = ("record", "error")
_NAMED: Final = ("enum", "fixed")
_UNREAD: Final = (("int", "time-millis"), ("long", "time-micros"), ("fixed", "duration"))
_DECIMALS: Final = (("bytes", "decimal"), ("fixed", "decimal"))


def avro_kind(text: str) -> ColumnKind:
    """Return a record's schema as a struct. Raises ValueError for an invalid or unsupported schema."""
    kind = _Walk().kind(_parsed(text))
    if kind.name != "struct":
        raise ValueError(f"the schema is of type {kind.sql}; expected a record")
    return kind


def avro_reader(text: str, *, is_registered: bool) -> Callable[[bytes], Any]:
    """Return a function that decodes bodies. It may raise any exception for an invalid body."""
    import fastavro

    from rmqd.handler_api.typed.avro_records import record_reader

    return record_reader(fastavro.parse_schema(_parsed(text)), is_registered=is_registered)


def registered_reader(text: str, registry: SchemaRegistry) -> Callable[[bytes], Any]:
    """Return a function that decodes bodies with the schema that their prefix names, and converts to the given schema.

    It raises RegistryAwayError if the registry does not answer, and any other exception for an invalid body.
    """
    import fastavro

    from rmqd.handler_api.typed.avro_records import read_record

    reader = fastavro.parse_schema(_parsed(text))
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
    try:
        fastavro.parse_schema(schema)
    except Exception as error:  # noqa: BLE001  fastavro raises many kinds
        raise ValueError(f"not a valid Avro schema: {error!r}") from None
    return schema


class _Walk:
    """Converts a schema, and remembers its named types by full name."""

    def __init__(self) -> None:
        self._named: dict[str, ColumnKind] = {}
        self._under_way: list[str] = []

    def kind(self, schema: Any, space: str = "") -> ColumnKind:
        """Convert a schema. `space` is the enclosing namespace, for names without one."""
        if isinstance(schema, list):
            return self._union(schema, space)
        if isinstance(schema, str):
            return self._by_name(schema, space)
        name = schema["type"]
        if not isinstance(name, str):
            return self.kind(name, space)
        if name in _RECORDS:
            return self._record(schema, space)
        if name == "array":
            return ColumnKind("array", (("element", self.kind(schema["items"], space)),))
        if name == "map":
            return ColumnKind("map", (("value", self.kind(schema["values"], space)),))
        kind = self._logical(schema) or self._by_name(name, space)
        if name in _NAMED:
            self._named[_full_name(schema, space)] = kind
        return kind

    @staticmethod
    def _logical(schema: Mapping[str, Any]) -> ColumnKind | None:
        logical = schema["type"], str(schema.get("logicalType"))
        if logical in _DECIMALS:
            if not isinstance(precision := schema.get("precision"), int):
                raise ValueError("a decimal has no precision; expected the maximum number of digits, as a number")
            return decimal_kind(precision, schema.get("scale", 0))
        if logical in _UNREAD:
            raise ValueError(f"{logical[1]} has no Spark type here; remove the logical type from the schema")
        return ColumnKind(_LOGICAL[logical]) if logical in _LOGICAL else None

    def _record(self, schema: Mapping[str, Any], space: str) -> ColumnKind:
        full = _full_name(schema, space)
        if schema.get("fields") is None:  # fastavro would accept it as a record without fields
            raise ValueError(f'the record {full} has no fields; expected {{"name": …, "type": …}} in "fields": […]')
        inner = full.rpartition(".")[0]
        self._under_way.append(full)
        kind = ColumnKind(
            "struct", tuple((field["name"], self.kind(field["type"], inner)) for field in schema["fields"])
        )
        self._under_way.pop()
        self._named[full] = kind
        return kind

    def _union(self, members: list[Any], space: str) -> ColumnKind:
        others = [member for member in members if member != "null"]
        if len(others) != 1:
            raise ValueError(
                f"the union {json.dumps(members)[:60]} has no Spark type; expected null and one other type"
            )
        return self.kind(others[0], space)

    def _by_name(self, name: str, space: str) -> ColumnKind:
        if name in _PLAIN:
            return ColumnKind(_PLAIN[name])
        full = _in_space(name, space)
        if full in self._named:
            return self._named[full]
        if full in self._under_way:
            raise ValueError(f"the record {full} contains itself; Spark has no recursive types")
        raise ValueError(f"{name} has no Spark type")


def _full_name(schema: Mapping[str, Any], space: str) -> str:
    """Return the full name of a type: the namespace in its name, else its own namespace, else the enclosing one."""
    return _in_space(schema["name"], schema.get("namespace", space))


def _in_space(name: str, space: str) -> str:
    return f"{space}.{name}" if space and "." not in name else name


TIMESTAMP: Final = "google.protobuf.Timestamp"
# key: FieldDescriptor.cpp_type
_PLAIN_PROTOBUF: Final = {
    1: "int",
    2: "bigint",
    3: "bigint",
    5: "double",
    6: "float",
    7: "boolean",
    8: "string",
    9: "string",
}
_UNSIGNED_64: Final = ColumnKind("decimal", precision=20)
_BYTES, _MESSAGE, _UINT64 = 12, 11, 4


def protobuf_kind(descriptors: bytes, message: str) -> ColumnKind:
    """Return a message as a struct. Raises ValueError for an invalid descriptor file or an unknown message."""
    return _kind_of(_descriptor(descriptors, message), ())


def protobuf_reader(descriptors: bytes, message: str) -> Callable[[bytes], Any]:
    """Return a function that decodes bodies. It may raise any exception for an invalid body."""
    from google.protobuf.message_factory import GetMessageClass

    descriptor = _descriptor(descriptors, message)
    make = GetMessageClass(descriptor)

    def read(body: bytes) -> Any:
        return _values_of(make.FromString(body))

    return read


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


def _kind_of(descriptor: Descriptor, above: tuple[str, ...]) -> ColumnKind:
    if descriptor.full_name in above:
        raise ValueError(f"the message {descriptor.full_name} contains itself; Spark has no recursive types")
    above = (*above, descriptor.full_name)
    return ColumnKind("struct", tuple((field.name, _field_kind(field, above)) for field in descriptor.fields))


def _field_kind(field: FieldDescriptor, above: tuple[str, ...]) -> ColumnKind:
    message = field.message_type
    if message is not None and message.GetOptions().map_entry:
        return ColumnKind("map", (("value", _field_kind(message.fields_by_name["value"], above)),))
    kind = _single_kind(field, above)
    return ColumnKind("array", (("element", kind),)) if field.is_repeated else kind


def _single_kind(field: FieldDescriptor, above: tuple[str, ...]) -> ColumnKind:
    if field.type == _MESSAGE:
        if field.message_type.full_name == TIMESTAMP:
            return ColumnKind("timestamp")
        return _kind_of(field.message_type, above)
    if field.type == _BYTES:
        return ColumnKind("binary")
    if field.cpp_type == _UINT64:
        return _UNSIGNED_64
    return ColumnKind(_PLAIN_PROTOBUF[field.cpp_type])


def _values_of(message: Any) -> dict[str, Any]:
    """Return the fields of a message. An unset field without presence has its default, as in any Protobuf reader."""
    values: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        if field.has_presence and not message.HasField(field.name):
            values[field.name] = None
        else:
            values[field.name] = _value_of(field, getattr(message, field.name))
    return values


def _value_of(field: FieldDescriptor, value: Any) -> Any:
    message = field.message_type
    if message is not None and message.GetOptions().map_entry:
        inner = message.fields_by_name["value"]
        return {str(key): _single_value(inner, value[key]) for key in value}
    if field.is_repeated:
        return [_single_value(field, element) for element in value]
    return _single_value(field, value)


def _single_value(field: FieldDescriptor, value: Any) -> Any:
    if field.type == _MESSAGE:
        if field.message_type.full_name == TIMESTAMP:
            return value.ToDatetime(tzinfo=UTC)
        return _values_of(value)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return known.name if known is not None else str(value)
    return value
