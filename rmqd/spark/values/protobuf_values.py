"""Protobuf bodies as Spark values: converts a message's descriptor to a Spark type, and decodes bodies. Needs protobuf.

The schema is the file that `protoc --include_imports --descriptor_set_out=FILE` writes.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC
from typing import Any, Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from rmqd.spark.values.column_kinds import ColumnKind, array_kind, map_kind

TIMESTAMP_MESSAGE: Final = "google.protobuf.Timestamp"
# Spark type by FieldDescriptor.cpp_type; the types of enums, messages and uint64 are chosen in `_single_column`
_PLAIN_PROTOBUF: Final = {1: "int", 2: "bigint", 3: "bigint", 5: "double", 6: "float", 7: "boolean", 9: "string"}
_UNSIGNED_64: Final = ColumnKind("decimal", precision=20)
_BYTES, _MESSAGE, _UINT64 = 12, 11, 4
Column = tuple[ColumnKind, Callable[[Any], Any]]
"""The Spark type of a field or message, and the function that converts its Protobuf value to this type."""


def protobuf_column_kind(descriptors: bytes, message: str) -> ColumnKind:
    """Return the struct type of a message. Raises ValueError for an invalid descriptor file or an unknown message."""
    return _message_column(_descriptor(descriptors, message), ())[0]


def protobuf_decoder(descriptors: bytes, message: str) -> Callable[[bytes], Any]:
    """Return a function that decodes bodies of this message, and may raise any exception for an invalid body."""
    descriptor = _descriptor(descriptors, message)
    make, (_, values_of) = GetMessageClass(descriptor), _message_column(descriptor, ())
    return lambda body: values_of(make.FromString(body))


def _descriptor(descriptors: bytes, message: str) -> Descriptor:
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
        """Return the fields by name. An unset field is None if it has presence, else Protobuf's default."""
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
        if field.message_type.full_name == TIMESTAMP_MESSAGE:
            return ColumnKind("timestamp"), lambda value: value.ToDatetime(tzinfo=UTC)
        return _message_column(field.message_type, above)
    if field.enum_type is not None:
        names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        return ColumnKind("string"), lambda number: names.get(number, str(number))
    if field.cpp_type == _UINT64:
        return _UNSIGNED_64, lambda value: value
    kind = "binary" if field.type == _BYTES else _PLAIN_PROTOBUF[field.cpp_type]
    return ColumnKind(kind), lambda value: value
