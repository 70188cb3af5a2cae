"""Avro bodies: one record each, as its writer's schema says, with or without the prefix of a schema registry."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro

from rmqd.typed.decorator import Payload
from rmqd.typed.form import HandlerFormError, name_of
from rmqd.wire.schema_registry import parted

_ACCEPTED = "schema= with a dict, JSON text, or a path that ends in .avsc"


def reader_of(payload: Payload) -> Callable[[bytes], Any]:
    """The function that reads the record of a body. Raises HandlerFormError for what is no schema."""
    if payload.schema is None:
        raise HandlerFormError(
            f"avro={name_of(payload.target)} has no schema, by which bodies are read; accepted: {_ACCEPTED}"
        )
    try:
        schema = fastavro.parse_schema(_schema(payload.schema))
    except OSError as error:
        raise HandlerFormError(
            f"the schema {payload.schema} cannot be read: {error.strerror}; accepted: {_ACCEPTED}"
        ) from None
    except Exception as error:  # noqa: BLE001  fastavro raises many kinds
        raise HandlerFormError(f"the schema is none of Avro: {error!r}; accepted: {_ACCEPTED}") from None

    return record_reader(schema, is_registered=payload.is_registered)


def record_reader(schema: Any, *, is_registered: bool) -> Callable[[bytes], Any]:
    """The function that reads a body's record by a schema that fastavro has parsed; it raises any error for a body
    without one."""

    return lambda body: read_record(parted(body)[1] if is_registered else body, schema)


def read_record(record: bytes, writer: Any, reader: Any = None) -> Any:
    """A record's values, as its writer's schema says, and as the reader's has them. Raises any error where there is
    none, or where more stands behind it."""
    stream = io.BytesIO(record)
    value = fastavro.schemaless_reader(stream, writer, reader)
    if behind := len(record) - stream.tell():
        raise ValueError(f"{behind} bytes stand behind the record")
    return value


def _schema(given: Any) -> Any:
    if isinstance(given, Path) or (isinstance(given, str) and given.endswith(".avsc")):
        return json.loads(Path(given).read_text())
    return json.loads(given) if isinstance(given, str | bytes) else given
