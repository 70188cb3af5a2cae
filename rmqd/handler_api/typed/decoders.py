"""The prefix that clients of RocketMQ's schema registry write before an Avro record: the id of its schema.

Their serializer writes the id of the schema's record as Avro `bytes`. Since the first release, 0.1.0, they have 8
bytes: the prefix is 0x10, Avro's encoding of that length, and the id. Before, they had 16: 0x20, the id, 8 zeros.

Avro bodies: one record each, in its writer's schema, with or without the prefix of a schema registry.

Decodes bodies: the requirements of each format, the decoded value, and the reasons of failures.
"""

from __future__ import annotations

import importlib
import inspect
import io
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import fastavro
from pydantic import PydanticUserError, TypeAdapter, ValidationError

from rmqd.errors import ProtocolError
from rmqd.handler_api.batch import DECISIONS, InvalidPayloadError, leaves_of
from rmqd.handler_api.typed.signatures import (
    Payload,
    hint_of,
    is_async,
    owner_of_unbound,
    parameters_of,
    returned_by,
    room,
    without_extras,
    yields,
)
from rmqd.handler_api.typed.typed_form import HandlerFormError, name_of
from rmqd.runtime.plain_text import describe, text_of
from rmqd.wire.messages.message import Message

_ID_END: Final = 9
_LENGTH: Final = 0x10
_FORMER_LENGTH: Final = 0x20
_FORMER_ZEROS: Final = bytes(8)


def parted(body: bytes) -> tuple[int, bytes]:
    """Return the schema's record id in the registry, and the Avro record. Raises ProtocolError without a prefix."""
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


Decode = Callable[[bytes], Any]

_MOST_FAULTS: Final = 5  # the limit of faults that a reason names
_MOST_CAUSES: Final = 10  # the limit of causes that are checked, because they may form a circle
_QUOTES_A_VALUE: Final = re.compile(r"Invalid (enum )?value(?= )")


@dataclass(frozen=True, slots=True)
class Decoder:
    """Converts messages to values."""

    target: Any
    """The type of the values; Any if unknown."""
    decode: Callable[[Message], Any]
    shown: str
    """The expected type and format, for errors."""
    check: Callable[[Any], None] | None = None
    """For a function of the author's: checks its result. Raises if it is not a payload."""

    def payload(self, message: Message) -> Any:
        """Return the decoded body. Raises InvalidPayloadError, or the original exception if it does not concern the
        body.
        """
        try:
            payload = self.decode(message)
        except Exception as error:
            if any(isinstance(one, DECISIONS) or _is_unavailable(one) for one in leaves_of(error)):
                raise
            raise InvalidPayloadError(f"the body is not a valid {self.shown}: {_fault(error, self.target)}") from error
        if self.check is not None:
            self.check(payload)
        return payload


def decoder_of(payload: Payload) -> Decoder:
    """Return the decoder for a decorator's arguments. Raises HandlerFormError if they are invalid, or a package is
    missing.
    """
    if payload.format == "decode":
        return _by_function(payload.target)
    make, name = _FORMATS[payload.format]
    decode = make(payload)
    return Decoder(payload.target, lambda message: decode(message.body), f"{name_of(payload.target)} in {name}")


def _json(payload: Payload) -> Decode:
    if _is_struct(payload.target):
        import msgspec

        decode: Decode = msgspec.json.Decoder(payload.target).decode
        return decode
    return _adapter(payload).validate_json


def _msgpack(payload: Payload) -> Decode:
    msgspec = _installed("msgspec", "msgpack")
    if _is_struct(payload.target):
        decode: Decode = msgspec.msgpack.Decoder(payload.target).decode
        return decode
    unpack, validate = msgspec.msgpack.decode, _adapter(payload).validate_python
    return lambda body: validate(unpack(body))


def _avro(payload: Payload) -> Decode:
    _installed("fastavro", "avro")

    read = reader_of(payload)
    if _is_struct(payload.target):
        convert, target = _installed("msgspec", "msgpack").convert, payload.target
        return lambda body: convert(read(body), target)
    validate = _adapter(payload).validate_python
    return lambda body: validate(read(body))


def _protobuf(payload: Payload) -> Decode:
    parse = getattr(payload.target, "FromString", None)
    if not inspect.isclass(payload.target) or not callable(parse):
        accepted = "a message class generated by protoc, such as order_pb2.Order"
        raise HandlerFormError(f"protobuf={payload.target!r} cannot parse bodies; expected {accepted}")
    decode: Decode = parse
    return decode


_FORMATS: Final[dict[str, tuple[Callable[[Payload], Decode], str]]] = {
    "json": (_json, "JSON"),
    "msgpack": (_msgpack, "MessagePack"),
    "avro": (_avro, "Avro"),
    "protobuf": (_protobuf, "Protobuf"),
}


def _by_function(function: Any) -> Decoder:
    accepted = "a function of (body) or (message: Message)"
    if not callable(function) or is_async(function) or yields(function):
        raise HandlerFormError(f"decode={function!r} is not a synchronous function; expected {accepted}")
    if owner := owner_of_unbound(function):
        what = f"decode={owner}.{function.__name__} is a method without its object"
        raise HandlerFormError(f"{what}; expected a bound method, as in {owner}().{function.__name__}")
    try:
        needs, most = room(function)
        takes_message = any(without_extras(hint_of(function, one)) is Message for one in parameters_of(function)[:1])
        made = returned_by(function)
    except ValueError as error:  # AnnotationError is a ValueError too
        raise HandlerFormError(f"decode={function!r}: {error}; expected {accepted}") from None
    if needs > 1 or not most:
        raise HandlerFormError(f"decode={function!r} takes {needs or 'no'} arguments; expected {accepted}")
    decode: Callable[[Message], Any] = function if takes_message else lambda message: function(message.body)
    return Decoder(made, decode, f"payload of {getattr(function, '__name__', 'decode')}")


def _installed(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError:
        what = f"{extra}= needs {module}, which is not installed"
        raise HandlerFormError(f"{what}; run pip install 'rmqd[{extra}]'") from None


def _adapter(payload: Payload) -> TypeAdapter[Any]:
    try:
        return TypeAdapter(payload.target)
    except PydanticUserError as error:
        what = f"{payload.format}={payload.target!r} is not a valid payload type: {error.message.splitlines()[0]}"
        accepted = "a pydantic model, a dataclass, a msgspec Struct, or another type that pydantic validates"
        raise HandlerFormError(f"{what} expected {accepted}") from None


def _is_struct(target: Any) -> bool:
    """Return whether it is a msgspec Struct. If it is, its author has imported msgspec."""
    return inspect.isclass(target) and hasattr(target, "__struct_fields__") and hasattr(target, "__struct_config__")


def _is_unavailable(error: BaseException) -> bool:
    """Return whether an external service of the decoder failed, such as a schema registry.

    Libraries wrap connection errors in their own errors. An OSError without a number may concern the body, because gzip
    and PIL raise such errors. A FileNotFoundError may be a decoder's lookup that failed before the body did.
    """
    one: BaseException | None = error
    for _ in range(_MOST_CAUSES):
        is_numbered = isinstance(one, OSError) and one.errno is not None
        is_looked_for = isinstance(one, FileNotFoundError) and one is not error
        if isinstance(one, ConnectionError | TimeoutError) or (is_numbered and not is_looked_for):
            return True
        one = one and (one.__cause__ or (None if one.__suppress_context__ else one.__context__))
    return False


def _fault(error: Exception, target: Any) -> str:
    """Return the problem of a body without its values, which may be secrets: reasons have many readers."""
    if isinstance(error, ValidationError):
        declared = set(_names(TypeAdapter(target).core_schema))
        faults = [
            _validation_fault(
                [str(name) if isinstance(name, int) or name in declared else "[key]" for name in one["loc"]],
                one["type"],
                one["msg"],
                one.get("ctx", {}),
            )
            for one in error.errors(include_url=False, include_input=False)
        ]
        more = f"; and {len(faults) - _MOST_FAULTS} more" if len(faults) > _MOST_FAULTS else ""
        return "; ".join(faults[:_MOST_FAULTS]) + more
    return _msgspec_fault(text_of(error)) if type(error).__module__ == "msgspec" else describe(error)


def _names(schema: object) -> Iterator[str]:
    """Yield every name in a pydantic schema. Other names in an error's location are keys from the body."""
    if isinstance(schema, str):
        yield schema
    elif inspect.isclass(schema):
        yield schema.__name__
    elif isinstance(schema, Mapping):
        for key, value in schema.items():
            yield from _names(key)
            yield from _names(value)
    elif isinstance(schema, list | tuple):
        for one in schema:
            yield from _names(one)


def _validation_fault(place: list[str], kind: str, text: str, context: Mapping[str, object]) -> str:
    if kind == "union_tag_invalid":  # its text contains the body's tag
        text = f"The tag {context['discriminator']} is not one of {context['expected_tags']}"
    return f"{'.'.join(place)}: {text}" if place else text


def _msgspec_fault(text: str) -> str:
    """Return msgspec's text "Invalid enum value 'x' - at `$.a`" without the value, which may contain any text."""
    quoting = _QUOTES_A_VALUE.match(text)
    if quoting is None:
        return text
    _, at, place = text.rpartition(" - at ")
    return f"{quoting[0]}{at}{place if at else ''}"
