"""Frames from a peer, for all decoders of `rmqd.wire`.

An input is the name of an additional decoder for bodies or headers, a line feed, a byte for the size of the chunks,
and the bytes from the socket.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final

import rmqd.wire
from rmqd.errors import InvalidMessageError, ProtocolError
from rmqd.wire import loose_json
from rmqd.wire.bodies.json_body import Body
from rmqd.wire.command import FrameDecoder, RemotingCommand, decode_command, encode_command
from rmqd.wire.fields import wire_name
from rmqd.wire.headers.pull_headers import PullMessageRequestHeader, PullMessageResponseHeader
from rmqd.wire.headers.request_header import Header
from rmqd.wire.headers.send_headers import ReceivedSendHeader, SendMessageResponseHeader
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.compression import BlockDecompression
from rmqd.wire.messages.decode import decode_messages, decode_record, frame_decodable_messages, frame_messages
from rmqd.wire.messages.encode import decode_batch, encode_message
from rmqd.wire.messages.message import Message
from rmqd.wire.messages.message_id import parse_host, parse_offset_message_id
from rmqd.wire.messages.properties import parse_properties
from rmqd.wire.messages.pull_walk import BadRecord, Gap, ResponseWalk
from rmqd.wire.receipt_handle import PopHandle, parse_start_offsets
from tests.nightly.fuzzing.frame_changes import changed_stream
from tests.nightly.fuzzing.target import Change, Finding, Target, growing
from tests.wire.cores import assert_cores_agree

QUEUE: Final = MessageQueue("T", "b", 0)
MAX_OPENED_BYTES: Final = 1024 * 1024
"""`max_body_size` allows 16 MiB by default, but decompressing that much is slow, which is not a defect."""
TEXTS: Final[tuple[Callable[[str], object], ...]] = (
    parse_host,
    parse_offset_message_id,
    parse_properties,
    parse_start_offsets,
    PopHandle.parse,
)
_NUMBERS: Final = (b"0", b"-1", b"2147483647", b"2147483648", b"-9223372036854775808", b"9223372036854775808", b"1e999")
_SIGNS: Final = (
    b"\0\0\0\0", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"\xda\xa3\x20\xa7", b"\xda\xa3\x20\xab",
    b"null", b"true", b"NaN", b"\\ud800", b"{{", b"{0:", b'{"', b'":', b"[]", b"{}", b"\x01", b"\x02", b"\xc3",
    b"[[[[[[[[", b'{"a":{"a":',
)  # fmt: skip


def _decoders() -> tuple[dict[str, type[Body]], dict[str, type[Header]]]:
    """Return all body and header classes of `rmqd.wire`, by their names."""
    bodies: dict[str, type[Body]] = {}
    headers: dict[str, type[Header]] = {}
    for found in pkgutil.walk_packages(rmqd.wire.__path__, f"{rmqd.wire.__name__}."):
        module = importlib.import_module(found.name)
        for name, value in vars(module).items():
            if inspect.isclass(value) and value.__module__ == module.__name__:
                if issubclass(value, Body):
                    bodies[name] = value
                elif issubclass(value, Header):
                    headers[name] = value
    return bodies, headers


class Frames(Target):
    """Decoding returns a value or raises ProtocolError, and values can be read, logged and encoded."""

    name = "frames"
    most_bytes = 8192

    def __init__(self) -> None:
        self.bodies, self.headers = _decoders()
        plain: dict[str, Callable[[bytes], object]] = {
            "batch": decode_batch,
            "record": lambda data: encode_message(decode_record(data)),
            "loose_json": lambda data: loose_json.dumps(loose_json.loads(data), bare_keys=True),
            "record_text": lambda data: [_attempt(parse, data.decode("utf-8", "replace")) for parse in TEXTS],
        }
        self.decoders = plain | {name: _rewriting(body) for name, body in self.bodies.items()}

    def words(self) -> Sequence[bytes]:
        """Names of fields, limits of numbers, and characters of JSON and of records."""
        names = set[str]()
        for kind in (*self.headers.values(), *self.bodies.values()):
            hints = inspect.get_annotations(kind)
            names |= {wire_name(name, hints[name]) for name in hints if not str(hints[name]).startswith("ClassVar")}
        names |= {"code", "flag", "language", "opaque", "version", "remark", "extFields", "TAGS", "KEYS", "INNER_NUM"}
        names |= set(self.decoders) | set(self.headers)
        return [*(name.encode() for name in sorted(names)), *_NUMBERS, *_SIGNS]

    def run(self, data: bytes) -> None:
        """Decode as the client does, and with the decoder that the input names."""
        name, _, rest = data.partition(b"\n")
        called, stream = name.decode("latin-1"), rest[1:]
        decoder, size = FrameDecoder(), _cut_size(rest[0] if rest else 0, len(stream))
        for at in range(0, len(stream), size):
            try:
                payloads = decoder.feed(stream[at : at + size])
            except ProtocolError:
                return
            self.cases += len(payloads)
            for payload in payloads:
                self._decode(called, payload)

    def mutated(self, data: bytes, most_bytes: int, chance: Random, change: Change) -> bytes:
        """Change the name, the chunk size, a header, a body or a record, and correct the lengths around it."""
        name, _, rest = data.partition(b"\n")
        cut, stream = rest[:1] or b"\0", rest[1:]
        if (kind := chance.random()) < 0.04:
            name = chance.choice([*self.decoders, *self.headers]).encode()
        elif kind < 0.06:
            cut = bytes([chance.randrange(256)])
        elif kind < 0.12:
            return change(data, most_bytes)
        else:
            stream = changed_stream(stream, most_bytes - len(name) - 2, chance, growing(change, chance))
        return (name + b"\n" + cut + stream)[:most_bytes]

    def _decode(self, called: str, payload: bytes) -> None:
        decode = self.decoders.get(called)
        assert_cores_agree(payload)
        try:
            command = decode_command(payload)
        except ProtocolError:
            if decode is not None:
                _attempt(decode, payload[4:])  # also try the bytes after a broken header
            return
        _use(command)
        if decode is not None:
            _attempt(decode, command.body)
        if called in self.headers and (header := _attempt(self.headers[called].from_ext_fields, command.ext_fields)):
            header.ext_fields()
        _attempt(SendMessageResponseHeader.from_ext_fields, command.ext_fields)
        _attempt(ReceivedSendHeader.from_request, command)
        _attempt(PullMessageRequestHeader.from_ext_fields, command.ext_fields)
        for text in command.ext_fields.values():
            for parse in TEXTS:
                _attempt(parse, text)
        _pull(command)


def _cut_size(sign: int, size: int) -> int:
    return sign if 0 < sign < 128 else max(1, size)


def _rewriting(body: type[Body]) -> Callable[[bytes], object]:
    """Return a decoder that also prints and encodes the value."""

    def rewrite(data: bytes) -> None:
        value = body.from_json(data)
        repr(value).encode()
        value.to_json()

    return rewrite


def _attempt(decode: Callable[[Any], Any], value: object) -> Any:
    """Decode a value. Return None on one of the two documented errors."""
    try:
        return decode(value)
    except (ProtocolError, InvalidMessageError):
        return None


def _use(command: RemotingCommand) -> None:
    """Check that a decoded command can be printed, logged and encoded."""
    repr(command).encode()
    (command.remark or "").encode()
    assert decode_command(encode_command(command)[4:]).ext_fields == command.ext_fields


def _pull(command: RemotingCommand) -> None:
    """Use a command as a pull response: decompress and walk over the messages, and read them as handlers do."""
    header = _attempt(PullMessageResponseHeader.from_ext_fields, command.ext_fields)
    _attempt(lambda data: decode_messages(data, QUEUE, command.body_start), command.payload[: 64 * 1024])
    block = frame_decodable_messages(command.payload, QUEUE, command.body_start)
    if not (block.messages or block.corrupt):
        return
    opening = BlockDecompression(block, MAX_OPENED_BYTES)
    if not opening.open_quickly():
        opening.rest()
    opening.finish()
    for message in (*block.messages, *(corrupt.message for corrupt in block.corrupt)):
        _read(message)
    if header is not None:
        for takes_all in (True, False):
            _walk(command, header, takes_all)


def _walk(command: RemotingCommand, header: PullMessageResponseHeader, takes_all: bool) -> None:
    """Check that a walk over the response, with each contradiction confirmed, never goes back, and ends."""
    block = frame_messages(command.payload, QUEUE, command.body_start)
    first = block.messages[0].queue_offset if block.messages else 0
    walk = ResponseWalk(block, first, header, takes_all=takes_all)
    for _ in range(2 * len(block.messages) + 2 * len(block.corrupt) + 2):
        before, doubt = walk.offset, walk.advance()
        walk.gaps()
        if isinstance(doubt, BadRecord):
            walk.skip_bad_record(doubt)
        elif isinstance(doubt, Gap):
            walk.skip_confirmed_gap(doubt.to)
        else:
            return
        if walk.offset < before:
            raise Finding(f"the walk goes back from {before} to {walk.offset}")
    raise Finding("the walk does not end")


def _read(message: Message) -> None:
    for name in _MESSAGE_NAMES:
        getattr(message, name)
    message.has_tag(frozenset({b"TagA"}))
    repr(message).encode()


_MESSAGE_NAMES: Final = [name for name in dir(Message) if not name.startswith("_")]
