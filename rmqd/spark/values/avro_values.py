"""Avro bodies as Spark values: converts an Avro schema to a Spark type, and decodes bodies. Needs fastavro."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

import fastavro
from fastavro.schema import expand_schema

from rmqd.handler_api.typed.avro_records import read_record, record_reader, split_schema_id
from rmqd.spark.values.column_kinds import ColumnKind, array_kind, decimal_kind, map_kind
from rmqd.spark.values.schema_registry import SchemaRegistry, UnknownRecordIdError

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
# Spark type by Avro's base type and logical type; Avro ignores a logical type on any other base type
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


def avro_column_kind(text: str) -> ColumnKind:
    """Return the struct type of an Avro record schema. Raises ValueError for an invalid or unsupported schema."""
    kind = _avro_kind(expand_schema(_parsed(text)))
    if kind.name != "struct":
        raise ValueError(f"the schema is of type {kind.sql}; expected a record")
    return kind


def avro_decoder(text: str, *, is_registered: bool) -> Callable[[bytes], Any]:
    """Return a function that decodes bodies with the Avro schema `text`, and may raise any exception for a bad body."""
    return record_reader(_parsed(text), is_registered=is_registered)


def registered_avro_decoder(text: str, registry: SchemaRegistry) -> Callable[[bytes], Any]:
    """Return a function that decodes a body with its writer's schema, and converts the record to the schema `text`.

    The function raises RegistryUnavailableError if the registry does not answer, and other exceptions for bad bodies.
    """
    reader = _parsed(text)
    unknown: dict[int, str] = {}  # error texts by record id; a kept exception would keep its body in memory

    def read(body: bytes) -> Any:
        record_id, record = split_schema_id(body)
        if record_id in unknown:
            raise UnknownRecordIdError(unknown[record_id])
        try:
            writer = registry.writer_schema(record_id)
        except UnknownRecordIdError as error:
            unknown[record_id] = str(error)
            raise
        return read_record(record, writer, None if writer == reader else reader)

    return read


def _parsed(text: str) -> Any:
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
    """Raise ValueError if a record in the schema has no fields. fastavro would accept such a record."""
    if isinstance(schema, list):
        for part in schema:
            _check_records(part)
    elif isinstance(schema, dict):
        if schema.get("type") in _RECORDS and schema.get("fields") is None:
            name = f"{schema.get('namespace', '')}.{schema.get('name')}".lstrip(".")
            raise ValueError(f'the record {name} has no fields; expected {{"name": …, "type": …}} in "fields": […]')
        _check_records([schema.get(key) for key in ("type", "items", "values", "fields")])


def _avro_kind(schema: Any) -> ColumnKind:
    """Convert an Avro schema to a type. `expand_schema` has replaced names, except in recursive records."""
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
