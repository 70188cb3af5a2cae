"""Reads Avro bodies. A body is one record in its writer's schema, with or without the prefix of a schema registry.

Clients of RocketMQ's schema registry write this prefix before a record: the id of its schema, as Avro `bytes`. Since
their first release, 0.1.0, an id has 8 bytes: the prefix is 0x10, Avro's encoding of that length, and the id. Before,
an id had 16 bytes: the prefix is 0x20, the id and 8 zeros.

Needs fastavro, which is an extra. So modules that plain installations use import this module only inside functions.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import fastavro

from rmqd.errors import ProtocolError
from rmqd.handler_api.typed.signatures import Payload
from rmqd.handler_api.typed.typed_form import HandlerFormError, type_name

_ID_END: Final = 9
_LENGTH: Final = 0x10
_FORMER_LENGTH: Final = 0x20
_FORMER_ZEROS: Final = bytes(8)


def split_schema_id(body: bytes) -> tuple[int, bytes]:
    """Return the schema's id in the registry, and the Avro record. Raises ProtocolError if the prefix is missing."""
    if len(body) >= _ID_END:
        end = _ID_END if body[0] == _LENGTH else _ID_END + len(_FORMER_ZEROS)
        if body[0] == _LENGTH or (body[0] == _FORMER_LENGTH and body[_ID_END:end] == _FORMER_ZEROS):
            return int.from_bytes(body[1:_ID_END], signed=True), body[end:]
    raise ProtocolError("the body does not begin with the prefix of RocketMQ's schema registry clients")


_ACCEPTED = "schema= with a dict, JSON text, or a path that ends in .avsc"


def reader_of(payload: Payload) -> Callable[[bytes], Any]:
    """Return the function that reads the record of a body. Raises HandlerFormError for an invalid schema."""
    if payload.schema is None:
        raise HandlerFormError(
            f"avro={type_name(payload.target)} has no schema to read bodies with; expected {_ACCEPTED}"
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
    """Return a function that reads the record of a body, and may raise any error. `schema` is a parsed schema."""
    return lambda body: read_record(split_schema_id(body)[1] if is_registered else body, schema)


def read_record(record: bytes, writer: Any, reader: Any = None) -> Any:
    """Return a record's values, converted to the schema `reader` if given. May raise any error for invalid bytes."""
    stream = io.BytesIO(record)
    value = fastavro.schemaless_reader(stream, writer, reader)
    if behind := len(record) - stream.tell():
        raise ValueError(f"{behind} bytes are left after the Avro record")
    return value


def _schema(given: Any) -> Any:
    if isinstance(given, Path) or (isinstance(given, str) and given.endswith(".avsc")):
        return json.loads(Path(given).read_text())
    return json.loads(given) if isinstance(given, str | bytes) else given
