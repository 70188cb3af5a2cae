"""Avro bodies: one record each, in its writer's schema, with or without the prefix of a schema registry."""

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
    """Return the function that reads the record of a body. Raises HandlerFormError for an invalid schema."""
    if payload.schema is None:
        raise HandlerFormError(
            f"avro={name_of(payload.target)} has no schema to read bodies with; expected {_ACCEPTED}"
        )
    try:
        schema = fastavro.parse_schema(_schema(payload.schema))
    except OSError as error:
        raise HandlerFormError(
            f"the schema {payload.schema} cannot be read: {error.strerror}; expected {_ACCEPTED}"
        ) from None
    except Exception as error:  # noqa: BLE001  fastavro raises many kinds
        raise HandlerFormError(f"the schema is not a valid Avro schema: {error!r}; expected {_ACCEPTED}") from None

    return record_reader(schema, is_registered=payload.is_registered)


def record_reader(schema: Any, *, is_registered: bool) -> Callable[[bytes], Any]:
    """Return the function that reads a body's record with a parsed schema. It may raise any error if the body has no
    record.
    """

    return lambda body: read_record(parted(body)[1] if is_registered else body, schema)


def read_record(record: bytes, writer: Any, reader: Any = None) -> Any:
    """Return the values of a record in its writer's schema, converted to the reader's schema. May raise any error if
    there is no record, or if more bytes follow it.
    """
    stream = io.BytesIO(record)
    value = fastavro.schemaless_reader(stream, writer, reader)
    if behind := len(record) - stream.tell():
        raise ValueError(f"{behind} bytes follow the record")
    return value


def _schema(given: Any) -> Any:
    if isinstance(given, Path) or (isinstance(given, str) and given.endswith(".avsc")):
        return json.loads(Path(given).read_text())
    return json.loads(given) if isinstance(given, str | bytes) else given
