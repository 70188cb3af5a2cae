"""Protobuf: converts a message of a descriptor file to a type, and decodes bodies.

The file is the output of `protoc --include_imports --descriptor_set_out=FILE`.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC
from typing import TYPE_CHECKING, Any, Final

from rmqd.spark.values.kinds import Kind

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor

TIMESTAMP: Final = "google.protobuf.Timestamp"
# key: FieldDescriptor.cpp_type
_PLAIN: Final = {1: "int", 2: "bigint", 3: "bigint", 5: "double", 6: "float", 7: "boolean", 8: "string", 9: "string"}
_UNSIGNED_64: Final = Kind("decimal", precision=20)
_BYTES, _MESSAGE, _UINT64 = 12, 11, 4


def protobuf_kind(descriptors: bytes, message: str) -> Kind:
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


def _kind_of(descriptor: Descriptor, above: tuple[str, ...]) -> Kind:
    if descriptor.full_name in above:
        raise ValueError(f"the message {descriptor.full_name} contains itself; Spark has no recursive types")
    above = (*above, descriptor.full_name)
    return Kind("struct", tuple((field.name, _field_kind(field, above)) for field in descriptor.fields))


def _field_kind(field: FieldDescriptor, above: tuple[str, ...]) -> Kind:
    message = field.message_type
    if message is not None and message.GetOptions().map_entry:
        return Kind("map", (("value", _field_kind(message.fields_by_name["value"], above)),))
    kind = _single_kind(field, above)
    return Kind("array", (("element", kind),)) if field.is_repeated else kind


def _single_kind(field: FieldDescriptor, above: tuple[str, ...]) -> Kind:
    if field.type == _MESSAGE:
        if field.message_type.full_name == TIMESTAMP:
            return Kind("timestamp")
        return _kind_of(field.message_type, above)
    if field.type == _BYTES:
        return Kind("binary")
    if field.cpp_type == _UINT64:
        return _UNSIGNED_64
    return Kind(_PLAIN[field.cpp_type])


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
