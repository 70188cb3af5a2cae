"""Avro: converts a schema to a type, and decodes bodies."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from rmqd.spark.values.kinds import Kind, decimal_kind
from rmqd.spark.values.schema_registry import SchemaRegistry, UnknownRecordError
from rmqd.wire.schema_registry import parted

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


def avro_kind(text: str) -> Kind:
    """Return a record's schema as a struct. Raises ValueError for an invalid or unsupported schema."""
    kind = _Walk().kind(_parsed(text))
    if kind.name != "struct":
        raise ValueError(f"the schema is of type {kind.sql}; expected a record")
    return kind


def avro_reader(text: str, *, is_registered: bool) -> Callable[[bytes], Any]:
    """Return a function that decodes bodies. It may raise any exception for an invalid body."""
    import fastavro

    from rmqd.typed.avro import record_reader

    return record_reader(fastavro.parse_schema(_parsed(text)), is_registered=is_registered)


def registered_reader(text: str, registry: SchemaRegistry) -> Callable[[bytes], Any]:
    """Return a function that decodes bodies with the schema that their prefix names, and converts to the given schema.

    It raises RegistryAwayError if the registry does not answer, and any other exception for an invalid body.
    """
    import fastavro

    from rmqd.typed.avro import read_record

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
        self._named: dict[str, Kind] = {}
        self._under_way: list[str] = []

    def kind(self, schema: Any, space: str = "") -> Kind:
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
            return Kind("array", (("element", self.kind(schema["items"], space)),))
        if name == "map":
            return Kind("map", (("value", self.kind(schema["values"], space)),))
        kind = self._logical(schema) or self._by_name(name, space)
        if name in _NAMED:
            self._named[_full_name(schema, space)] = kind
        return kind

    @staticmethod
    def _logical(schema: Mapping[str, Any]) -> Kind | None:
        logical = schema["type"], str(schema.get("logicalType"))
        if logical in _DECIMALS:
            if not isinstance(precision := schema.get("precision"), int):
                raise ValueError("a decimal has no precision; expected the maximum number of digits, as a number")
            return decimal_kind(precision, schema.get("scale", 0))
        if logical in _UNREAD:
            raise ValueError(f"{logical[1]} has no Spark type here; remove the logical type from the schema")
        return Kind(_LOGICAL[logical]) if logical in _LOGICAL else None

    def _record(self, schema: Mapping[str, Any], space: str) -> Kind:
        full = _full_name(schema, space)
        if schema.get("fields") is None:  # fastavro would accept it as a record without fields
            raise ValueError(f'the record {full} has no fields; expected {{"name": …, "type": …}} in "fields": […]')
        inner = full.rpartition(".")[0]
        self._under_way.append(full)
        kind = Kind("struct", tuple((field["name"], self.kind(field["type"], inner)) for field in schema["fields"]))
        self._under_way.pop()
        self._named[full] = kind
        return kind

    def _union(self, members: list[Any], space: str) -> Kind:
        others = [member for member in members if member != "null"]
        if len(others) != 1:
            raise ValueError(
                f"the union {json.dumps(members)[:60]} has no Spark type; expected null and one other type"
            )
        return self.kind(others[0], space)

    def _by_name(self, name: str, space: str) -> Kind:
        if name in _PLAIN:
            return Kind(_PLAIN[name])
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
