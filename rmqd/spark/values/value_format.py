"""The source's `value…` options: the format of bodies, and their schema.

The driver parses the options and reads schema files; executors need no files. The driver asks a registry once, in
`with_latest_schema`, for the schema of the column `value`. This schema is used until the read or query ends.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from rmqd.errors import ConfigError, install_command
from rmqd.handler_api.destinations.exact_json import refuse_constant
from rmqd.spark.session.spark_access import GivenOptions, parse_flag
from rmqd.spark.values.column_kinds import ColumnKind, parse_schema
from rmqd.spark.values.fitting import converter_to
from rmqd.spark.values.schema_registry import RegistryUnavailableError, SchemaRegistry, parse_registry_url

VALUE_COLUMN: Final = "value"
BAD_ROW_COLUMN: Final = "_bad_row"
VALUE_FORMATS: Final = ("json", "avro", "protobuf")
VALUE_OPTIONS: Final = ("value", "valueSchema", "valueMessage", "valueRegistered", "valueRegistry", "valueSubject")
INFER_WORD: Final = "infer"
"""The value of `valueSchema` with which a pipeline infers the schema from bodies."""
_OF: Final = {"valueMessage": "protobuf", "valueRegistered": "avro", "valueRegistry": "avro", "valueSubject": "avro"}
_MODULES: Final = {"avro": "fastavro", "protobuf": "google.protobuf"}
MISSING_SCHEMA_HINTS: Final = {
    "json": "missing; expected SQL columns, such as `id bigint, amount double`; or use schema()",
    "avro": "missing; expected a record's schema as JSON, or the path of an .avsc file with the schema; or use "
    "valueRegistry",
    "protobuf": "missing; expected the path of a file written by protoc --include_imports --descriptor_set_out",
}
_NOT_INFERRED: Final = (
    "infer is only for a pipeline of a group with engine: spark, set in spark.options of its YAML; "
    "expected SQL columns. In a notebook, get them from spark.read.json(orders.limit(10000)"
    '.selectExpr("CAST(body AS STRING)")).schema.simpleString(), where orders is the result of load() without value'
)


@dataclass(frozen=True, slots=True)
class ValueFormat:
    """How to decode a body into the column `value`. Picklable."""

    format: str
    kind: ColumnKind | None
    """The column's type, a struct. None: `with_kind` (from `schema()`) or `with_latest_schema` must still set it."""
    schema: str = ""
    descriptors: bytes = b""
    message: str = ""
    is_registered: bool = False
    """Whether Avro bodies start with the prefix of RocketMQ's schema registry."""
    registry: SchemaRegistry | None = None
    """The registry with the schemas of the bodies' writers; None without `valueRegistry`."""

    @property
    def sql(self) -> str:
        """The column's type in SQL. Raises ConfigError if it is unknown."""
        if self.kind is None:
            raise ConfigError([f"valueSchema: {MISSING_SCHEMA_HINTS[self.format]}"])
        return self.kind.sql

    def problems_with(self, sql: str) -> list[str]:
        """Return why the user's `schema()` cannot give the column `value` the type `sql`; empty if it can."""
        try:
            (_, kind), *_ = parse_schema(f"{VALUE_COLUMN} {sql}").fields
        except ValueError as error:
            return [f"schema: {VALUE_COLUMN}: {error}"]
        if kind.name != "struct":
            return [f"schema: {VALUE_COLUMN} is {sql}; expected a struct"]
        if self.kind is not None and kind != self.kind:
            return [f"schema: {VALUE_COLUMN} is {sql}; expected {self.kind.sql}, the type in valueSchema"]
        return []

    def with_kind(self, sql: str) -> ValueFormat:
        """Return the format with the type `sql` from the user's `schema()`, which `problems_with` has checked."""
        return replace(self, kind=parse_schema(f"{VALUE_COLUMN} {sql}").fields[0][1])

    def with_default_subject(self, topics: Sequence[str]) -> ValueFormat:
        """Return the format with a subject, by default the topic. Raises ConfigError if there is no single topic."""
        if self.registry is None or self.registry.subject:
            return self
        if len(topics) != 1:
            raise ConfigError(
                [f"valueSubject: missing, and the default needs one topic, not {len(topics) or 'unknown'} topics; set "
                 "valueSubject to the subject with the schema of all bodies"]
            )  # fmt: skip
        return replace(self, registry=replace(self.registry, subject=topics[0]))

    def with_latest_schema(self, patience_seconds: float) -> ValueFormat:
        """Return the format with the registry's latest schema, unless `valueSchema` is set.

        With `valueSchema` the registry is also queried, to check that it is available. Raises RegistryUnavailableError.
        """
        if self.registry is None:
            return self
        latest = self.registry.latest_schema()
        registry = replace(self.registry, patience_seconds=patience_seconds)
        if self.kind is not None:
            return replace(self, registry=registry)
        from rmqd.spark.values.avro_values import avro_column_kind

        try:
            return replace(self, registry=registry, schema=latest, kind=avro_column_kind(latest))
        except ValueError as error:
            raise RegistryUnavailableError(f"the schema of {registry.display_name}: {error}") from None

    def decoder(self) -> Callable[[bytes], Any]:
        """Return a function that decodes a body to a value of `kind`, and may raise any exception for a bad body."""
        assert self.kind is not None
        read, fit = self._reader(), converter_to(self.kind)

        def decode(body: bytes) -> Any:
            value = read(body)
            if value is None:  # a null would fit any column, but is not a valid body
                raise ValueError("null is not an object")
            return fit(value)

        return decode

    def _reader(self) -> Callable[[bytes], Any]:
        if self.format == "avro":
            from rmqd.spark.values.avro_values import avro_decoder, registered_avro_decoder

            if self.registry is not None:
                return registered_avro_decoder(self.schema, self.registry)
            return avro_decoder(self.schema, is_registered=self.is_registered)
        if self.format == "protobuf":
            from rmqd.spark.values.protobuf_values import protobuf_decoder

            return protobuf_decoder(self.descriptors, self.message)
        return _read_json


def parse_value_format(given: GivenOptions) -> ValueFormat | None:
    """Return the format that the `value…` options request, or None. Add problems to `given` instead of raising."""
    chosen = given.parse("value", _format, "")
    for name, format_ in _OF.items():
        if name in given.values and chosen and chosen != format_:
            given.add_problem(name, f"not used with value={chosen}; set value={format_}")
    if "value" not in given.values:
        for name in VALUE_OPTIONS[1:]:
            if name in given.values:
                given.add_problem(name, f"not used without value; expected value with {' | '.join(VALUE_FORMATS)}")
        return None
    module = _MODULES.get(chosen)
    if module and not _is_installed(module):
        given.add_problem("value", f"{chosen} needs {module}; run {install_command(chosen)}, also on executors")
        return None
    registered = given.parse("valueRegistered", parse_flag, False)
    registry = _registry(given)
    message = given.values.get("valueMessage", "")
    if chosen == "protobuf" and not message:
        given.add_problem("valueMessage", "missing; expected a message's full name, such as shop.Order")
        return None
    if "valueSchema" not in given.values and (chosen == "json" or registry is not None):
        return ValueFormat(chosen, None, registry=registry)
    if chosen and "valueSchema" not in given.values:
        given.add_problem("valueSchema", MISSING_SCHEMA_HINTS[chosen])
        return None
    if chosen and given.values["valueSchema"].strip().lower() == INFER_WORD:
        accepted = MISSING_SCHEMA_HINTS[chosen].removeprefix("missing; ")
        given.add_problem("valueSchema", _NOT_INFERRED if chosen == "json" else f"infer needs value=json; {accepted}")
        return None
    made = given.parse("valueSchema", lambda text: _with_schema(chosen, text, message, registered), None)
    return None if made is None else replace(made, registry=registry)


def _registry(given: GivenOptions) -> SchemaRegistry | None:
    if "valueRegistry" not in given.values:
        if "valueSubject" in given.values:
            given.add_problem("valueSubject", "not used without valueRegistry; set valueRegistry, too")
        return None
    url = given.parse("valueRegistry", parse_registry_url, "")
    return SchemaRegistry(url, given.values.get("valueSubject", "").strip())


def _with_schema(format_: str, text: str, message: str, is_registered: bool) -> ValueFormat:
    if format_ == "avro":
        from rmqd.spark.values.avro_values import avro_column_kind

        schema = _content(text).decode() if text.strip().endswith(".avsc") else text
        return ValueFormat("avro", avro_column_kind(schema), schema=schema, is_registered=is_registered)
    if format_ == "protobuf":
        from rmqd.spark.values.protobuf_values import protobuf_column_kind

        descriptors = _content(text)
        return ValueFormat(
            "protobuf", protobuf_column_kind(descriptors, message), descriptors=descriptors, message=message
        )
    if text.strip().lower().startswith("struct<"):  # the form of Spark's simpleString
        return ValueFormat("json", parse_schema(f"{VALUE_COLUMN} {text}").fields[0][1])
    return ValueFormat("json", parse_schema(text))


def _content(path: str) -> bytes:
    try:
        return Path(path.strip()).read_bytes()
    except OSError as error:
        raise ValueError(f"{path.strip()} is unreadable: {error.strerror}") from None


def _format(text: str) -> str:
    if text.strip().lower() not in VALUE_FORMATS:
        raise ValueError(f"{text!r} is not a valid format; expected {' | '.join(VALUE_FORMATS)}")
    return text.strip().lower()


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the parent package is missing
        return False


# shared by all bodies: `json.loads` with these options would create a decoder for each body
_JSON: Final = json.JSONDecoder(parse_float=Decimal, parse_constant=refuse_constant)


def _read_json(body: bytes) -> Any:
    text = body.decode("utf-8")
    return json.loads(text) if text.startswith("\ufeff") else _JSON.decode(text)  # `loads` rejects a byte order mark
