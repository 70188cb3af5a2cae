"""The options `value…` of the source: which format bodies have, and by which schema they are read.

Read on the driver, files included; what comes of it pickles, and executors need no file. A registry is asked for the
column's schema by `pinned` alone, once: what it says then holds for as long as the read or the query lives.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from rmqd.errors import ConfigError
from rmqd.spark.option_values import GivenOptions
from rmqd.spark.values.fitting import fit_of
from rmqd.spark.values.kinds import Kind, parse_kind
from rmqd.spark.values.schema_registry import RegistryAwayError, SchemaRegistry, registry_url

VALUE: Final = "value"
BAD_ROW: Final = "_bad_row"
FORMATS: Final = ("json", "avro", "protobuf")
NAMES: Final = ("value", "valueSchema", "valueMessage", "valueRegistered", "valueRegistry", "valueSubject")
INFER: Final = "infer"
"""In place of a schema, where a group of a pipeline has it: the one that is to be found by looking at bodies."""
_OF: Final = {
    "valueMessage": "protobuf",
    "valueRegistered": "avro",
    "valueRegistry": "avro",
    "valueSubject": "avro",
}
_MODULES: Final = {"avro": "fastavro", "protobuf": "google.protobuf"}
MISSING: Final = {
    "json": "missing; accepted: columns as SQL writes them, such as `id bigint, amount double`, or schema() with them",
    "avro": "missing; accepted: a record's schema as JSON, or the path of a file of it that ends in .avsc; or "
    "valueRegistry",
    "protobuf": "missing; accepted: the path of a file that protoc --include_imports --descriptor_set_out wrote",
}
_NOT_INFERRED: Final = (
    "infer is for a group with engine: spark and a pipeline, which keeps what it finds: spark.options in YAML; "
    "accepted: columns as SQL writes them. In a notebook they are spark.read.json(orders.limit(10000)"
    '.selectExpr("CAST(body AS STRING)")).schema.simpleString(), where orders is what load() gives without value'
)


@dataclass(frozen=True, slots=True)
class ValueFormat:
    """How a body becomes the column `value`."""

    format: str
    kind: Kind | None
    """A struct; None for JSON of which only `schema()` is to say it, and until `pinned` has asked a registry."""
    schema: str = ""
    descriptors: bytes = b""
    message: str = ""
    is_registered: bool = False
    """Whether records of Avro have the prefix of RocketMQ's schema registry."""
    registry: SchemaRegistry | None = None
    """That has the schemas of the records' writers, if it is to be asked."""

    @property
    def sql(self) -> str:
        """The type of the column. Raises ConfigError where it is not known."""
        if self.kind is None:
            raise ConfigError([f"valueSchema: {MISSING[self.format]}"])
        return self.kind.sql

    def problems_with(self, sql: str) -> list[str]:
        """Why bodies cannot have the type that a reader's own schema has for the column."""
        try:
            (_, kind), *_ = parse_kind(f"{VALUE} {sql}").fields
        except ValueError as error:
            return [f"schema: {VALUE}: {error}"]
        if kind.name != "struct":
            return [f"schema: {VALUE} is {sql}; accepted: a struct"]
        if self.kind is not None and kind != self.kind:
            return [f"schema: {VALUE} is {sql}; accepted: {self.kind.sql}, as valueSchema says"]
        return []

    def with_kind(self, sql: str) -> ValueFormat:
        """With a type from a reader's own schema, of which `problems_with` has found none."""
        return replace(self, kind=parse_kind(f"{VALUE} {sql}").fields[0][1])

    def of_topics(self, topics: Sequence[str]) -> ValueFormat:
        """With the subject that these topics mean where no option says it. Raises ConfigError where they do not."""
        if self.registry is None or self.registry.subject:
            return self
        if len(topics) != 1:
            raise ConfigError(
                [f"valueSubject: missing, where {len(topics) or 'unknown'} topics are read; accepted: the subject of "
                 "the registry that has the schema of all bodies"]
            )  # fmt: skip
        return replace(self, registry=replace(self.registry, subject=topics[0]))

    def pinned(self, patience_seconds: float) -> ValueFormat:
        """With the registry's latest schema where no option has one; the registry is asked anyway, to see that it is
        there. Raises RegistryAwayError with what it answers."""
        if self.registry is None:
            return self
        latest = self.registry.latest()
        registry = replace(self.registry, patience_seconds=patience_seconds)
        if self.kind is not None:
            return replace(self, registry=registry)
        from rmqd.spark.values.avro_value import avro_kind

        try:
            return replace(self, registry=registry, schema=latest, kind=avro_kind(latest))
        except ValueError as error:
            raise RegistryAwayError(f"the schema of {registry.shown}: {error}") from None

    def decoder(self) -> Callable[[bytes], Any]:
        """The function that makes a value of a body. It raises any error for a body that does not fit."""
        assert self.kind is not None
        read, fit = self._reader(), fit_of(self.kind)

        def decode(body: bytes) -> Any:
            value = read(body)
            if value is None:  # which any column takes, and no body is
                raise ValueError("null is no object")
            return fit(value)

        return decode

    def _reader(self) -> Callable[[bytes], Any]:
        if self.format == "avro":
            from rmqd.spark.values.avro_value import avro_reader, registered_reader

            if self.registry is not None:
                return registered_reader(self.schema, self.registry)
            return avro_reader(self.schema, is_registered=self.is_registered)
        if self.format == "protobuf":
            from rmqd.spark.values.protobuf_value import protobuf_reader

            return protobuf_reader(self.descriptors, self.message)
        return _read_json


def read_value(given: GivenOptions, flag: Callable[[str], bool]) -> ValueFormat | None:
    """The format that options ask for, if any; what is wrong with them becomes a problem of `given`."""
    chosen = given.read("value", _format, "")
    for name, format_ in _OF.items():
        if name in given.values and chosen and chosen != format_:
            given.problem(name, f"of no use with value={chosen}; accepted: with value={format_}")
    if "value" not in given.values:
        for name in NAMES[1:]:
            if name in given.values:
                given.problem(name, f"of no use without value; accepted: value with {' | '.join(FORMATS)}")
        return None
    module = _MODULES.get(chosen)
    if module and not _is_installed(module):
        given.problem("value", f"{chosen} needs {module}: pip install 'rmqd[{chosen}]', on executors too")
        return None
    registered = given.read("valueRegistered", flag, False)
    registry = _registry(given)
    message = given.values.get("valueMessage", "")
    if chosen == "protobuf" and not message:
        given.problem("valueMessage", "missing; accepted: a message's full name, such as shop.Order")
        return None
    if "valueSchema" not in given.values and (chosen == "json" or registry is not None):
        return ValueFormat(chosen, None, registry=registry)
    if chosen and "valueSchema" not in given.values:
        given.problem("valueSchema", MISSING[chosen])
        return None
    if chosen and given.values["valueSchema"].strip().lower() == INFER:
        accepted = MISSING[chosen].removeprefix("missing; ")
        given.problem("valueSchema", _NOT_INFERRED if chosen == "json" else f"infer is for value=json; {accepted}")
        return None
    made = given.read("valueSchema", lambda text: _with_schema(chosen, text, message, registered), None)
    return None if made is None else replace(made, registry=registry)


def _registry(given: GivenOptions) -> SchemaRegistry | None:
    if "valueRegistry" not in given.values:
        if "valueSubject" in given.values:
            given.problem("valueSubject", "of no use without valueRegistry; accepted: beside it")
        return None
    url = given.read("valueRegistry", registry_url, "")
    return SchemaRegistry(url, given.values.get("valueSubject", "").strip())


def _with_schema(format_: str, text: str, message: str, is_registered: bool) -> ValueFormat:
    if format_ == "avro":
        from rmqd.spark.values.avro_value import avro_kind

        schema = _content(text).decode() if text.strip().endswith(".avsc") else text
        return ValueFormat("avro", avro_kind(schema), schema=schema, is_registered=is_registered)
    if format_ == "protobuf":
        from rmqd.spark.values.protobuf_value import protobuf_kind

        descriptors = _content(text)
        return ValueFormat("protobuf", protobuf_kind(descriptors, message), descriptors=descriptors, message=message)
    if text.strip().lower().startswith("struct<"):  # as Spark's simpleString writes it
        return ValueFormat("json", parse_kind(f"{VALUE} {text}").fields[0][1])
    return ValueFormat("json", parse_kind(text))


def _content(path: str) -> bytes:
    try:
        return Path(path.strip()).read_bytes()
    except OSError as error:
        raise ValueError(f"{path.strip()} cannot be read: {error.strerror}") from None


def _format(text: str) -> str:
    if text.strip().lower() not in FORMATS:
        raise ValueError(f"{text!r} is none; accepted: {' | '.join(FORMATS)}")
    return text.strip().lower()


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the package above it
        return False


def _read_json(body: bytes) -> Any:
    return json.loads(body.decode("utf-8"), parse_float=Decimal, parse_constant=_no_number)


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is no JSON")
