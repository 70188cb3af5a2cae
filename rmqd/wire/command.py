"""RemotingCommand, which is one request or response, and its encoding as a frame of the TCP stream.

A frame consists of its length (4 bytes, big-endian), the header and the body. The header is in JSON or in the ROCKETMQ
serialisation. rmqd writes JSON, because the ROCKETMQ serialisation has 16 bits for the request code, which is too few
for the codes 200xxx. A header also contains the sender's version of RocketMQ. Java: `NettyDecoder`, `RemotingCommand`,
`RocketMQSerializable`, `MQVersion`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from json.encoder import encode_basestring_ascii
from struct import Struct
from struct import error as StructError
from typing import Any, Final

from rmqd.codes import LanguageCode, SerializeType
from rmqd.errors import ProtocolError
from rmqd.wire import core
from rmqd.wire.acl import SECRET_FIELDS
from rmqd.wire.loose_json import STRICT_DECODER

LANGUAGE: Final = LanguageCode.PYTHON
# 5.5.0. Servers send routes in strict JSON to clients of this version, and GO_AWAY before they close connections
VERSION: Final = 513
RESPONSE_FLAG: Final = 1
ONEWAY_FLAG: Final = 2

_PREFIX: Final = Struct(">II")
_MAX_HEADER_BYTES: Final = 0xFFFFFF
MAX_HEADER_FIELDS: Final = 4096  # RocketMQ's own headers have a few dozen fields
_LARGE_HEADER_BYTES: Final = 64 * 1024
_INT_MIN, _INT_MAX = -(2**31), 2**31 - 1
# plain integers, because access to an enum's member takes as long as decoding a header field
_JSON: Final = int(SerializeType.JSON)
_BINARY: Final = int(SerializeType.ROCKETMQ)
_OTHER: Final = LanguageCode.OTHER
_LANGUAGES: Final = {language.name: language for language in LanguageCode}
_LANGUAGES_BY_BYTE: Final = {int(language): language for language in LanguageCode}


class RemotingCommand:
    """A decoded request or response. A response reports success only by its `code`."""

    __slots__ = ("body_start", "code", "ext_fields", "flag", "language", "opaque", "payload", "remark", "version")

    def __init__(
        self,
        code: int,
        opaque: int = 0,
        flag: int = 0,
        ext_fields: dict[str, str] | None = None,
        body: bytes = b"",
        body_start: int = 0,
        remark: str | None = None,
        language: LanguageCode = LANGUAGE,
        version: int = VERSION,
    ) -> None:
        self.code = code
        self.opaque = opaque
        self.flag = flag
        self.ext_fields: dict[str, str] = {} if ext_fields is None else ext_fields
        self.payload = body
        """The bytes of a received frame. The body begins at `body_start`, so that large bodies are not copied."""
        self.body_start = body_start
        self.remark = remark
        self.language = language
        self.version = version

    @property
    def body(self) -> bytes:
        """A copy of the body."""
        return self.payload[self.body_start :]

    @property
    def is_response(self) -> bool:
        return self.flag & RESPONSE_FLAG != 0

    @property
    def is_oneway(self) -> bool:
        """Whether the command is a request whose sender expects no response."""
        return self.flag & ONEWAY_FLAG != 0

    def __repr__(self) -> str:
        kind = "response" if self.is_response else "oneway" if self.is_oneway else "request"
        size = len(self.payload) - self.body_start
        fields = {name: "***" if name in SECRET_FIELDS else value for name, value in self.ext_fields.items()}
        return f"<RemotingCommand {kind} code={self.code} opaque={self.opaque} {fields} body={size}B>"


def decode_command(payload: bytes) -> RemotingCommand:
    """Decode a frame, given without its length field. Raises ProtocolError if the bytes are not a command."""
    size = len(payload)
    if size < 4:
        raise ProtocolError(f"a frame has {size} bytes; expected at least 4, which contain the header's length")
    body_start = 4 + (payload[1] << 16 | payload[2] << 8 | payload[3])
    if body_start > size:
        raise ProtocolError(f"a frame of {size} bytes claims to have a header of {body_start - 4} bytes")
    if payload[0] == _JSON:
        return _decode_json(payload, body_start)
    if payload[0] == _BINARY:
        return _decode_binary(payload, body_start)
    raise ProtocolError(f"the header has serialize type {payload[0]}; expected 0 (JSON) or 1 (ROCKETMQ)")


def encode_command(command: RemotingCommand) -> bytes:
    """Return the frame of a command, including the length field. Raises ProtocolError if the frame is too large."""
    header = (
        f'{{"code":{command.code:d},"flag":{command.flag},"language":"{command.language.name}",'
        f'"opaque":{command.opaque},"version":{command.version}'
    )
    if command.remark is not None:
        header += f',"remark":{_quoted(command.remark)}'
    return _frame((header + _ext_fields_member(command.ext_fields)).encode(), command.body)


def encode_request(
    code: int, opaque: int, ext_fields: Mapping[str, str], body: bytes = b"", oneway: bool = False
) -> bytes:
    """Return the frame of a request, including the length field. Raises ProtocolError if the frame is too large."""
    header = (
        f'{{"code":{int(code)},"flag":{ONEWAY_FLAG if oneway else 0},"language":"{LANGUAGE.name}",'
        f'"opaque":{opaque},"version":{VERSION}'
    )
    return _frame((header + _ext_fields_member(ext_fields)).encode(), body)


def encode_response(
    request: RemotingCommand,
    code: int,
    remark: str | None = None,
    ext_fields: Mapping[str, str] | None = None,
    body: bytes = b"",
) -> bytes:
    """Return the frame of the response to `request`, including the length field."""
    return encode_command(
        RemotingCommand(code, request.opaque, RESPONSE_FLAG, dict(ext_fields or {}), body, 0, remark or None)
    )


def _ext_fields_member(ext_fields: Mapping[str, str]) -> str:
    """Return the end of a header's JSON: the ext fields and the closing brace. Four times as fast as `json.dumps`."""
    if not ext_fields:
        return "}"
    return f',"extFields":{{{",".join([f"{_quoted(key)}:{_quoted(text)}" for key, text in ext_fields.items()])}}}}}'


def _frame(header: bytes, body: bytes) -> bytes:
    length = 4 + len(header) + len(body)
    if length > MAX_FRAME_SIZE_BYTES or len(header) > _MAX_HEADER_BYTES:
        raise ProtocolError(f"a frame of {length} bytes is too large; RocketMQ reads at most {MAX_FRAME_SIZE_BYTES}")
    return b"".join((_PREFIX.pack(length, len(header)), header, body))


_quoted: Final[Callable[[str], str]] = encode_basestring_ascii
_scan: Final[Callable[[str, int], tuple[Any, int]]] = STRICT_DECODER.scan_once  # type: ignore[attr-defined]


def _decode_json(payload: bytes, body_start: int) -> RemotingCommand:
    # count fields instead of bytes: a long remark is harmless, but each field takes more memory than its bytes
    if body_start > _LARGE_HEADER_BYTES and payload.count(b'":', 4, body_start) > MAX_HEADER_FIELDS:
        raise ProtocolError(f"the header has more than {MAX_HEADER_FIELDS} fields")
    if core.native is not None and (plain := core.native.decode_header(payload, body_start)) is not None:
        return RemotingCommand(
            plain[0], plain[1], plain[2] or 0, plain[4], payload, body_start, plain[5],
            _LANGUAGES.get(plain[6] or "", _OTHER), plain[3] or 0,
        )  # fmt: skip
    try:
        text = str(payload[4:body_start], "utf-8")
        try:
            header, end = _scan(text, 0)
            if end != len(text):
                header = STRICT_DECODER.decode(text)
        except StopIteration:  # the scanner raises it if the text is empty, or begins with blanks
            header = STRICT_DECODER.decode(text)
        get = header.get
        code, opaque, flag, version = header["code"], header["opaque"], get("flag", 0), get("version", 0)
        # fast path: one comparison checks that all four integers are between 0 and 2**31 - 1
        are_integers = type(code) is type(opaque) is type(flag) is type(version) is int
        if not (are_integers and 0 <= code | opaque | flag | version <= _INT_MAX):
            _check_integers(code, opaque, flag, version)
        remark, ext_fields = get("remark"), get("extFields")
        if ext_fields:
            try:
                "".join(ext_fields.values())  # raises TypeError unless all values are strings; the cheapest check
            except TypeError:
                ext_fields = {key: _as_text(value) for key, value in ext_fields.items() if value is not None}
        if "\\ud" in text or "\\uD" in text:  # checks for surrogates only, because every send has other \u escapes
            remark, ext_fields = _without_surrogates(remark, ext_fields)
        if remark is not None and type(remark) is not str:
            remark = _as_text(remark)
        language = _LANGUAGES.get(get("language"), _OTHER)
        return RemotingCommand(code, opaque, flag, ext_fields, payload, body_start, remark, language, version)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ProtocolError(f"the header is not a JSON command: {error!r:.200}") from error


def _check_integers(*values: object) -> None:
    for value in values:
        if type(value) is not int or not _INT_MIN <= value <= _INT_MAX:
            raise ProtocolError("the header's code, opaque, flag and version must be 32-bit integers")


def _as_text(value: object) -> str:
    """Return the text that Java reads from an ext field's value that is not a string."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    raise ValueError("an ext field is neither a string nor a number")


def _without_surrogates(remark: object, ext_fields: Mapping[str, str] | None) -> tuple[object, dict[str, str]]:
    """Replace lone surrogates by "?", as Java does. JSON can contain them, but files, sockets and logs reject them."""
    if isinstance(remark, str):
        remark = remark.encode("utf-8", "replace").decode()
    clean = {
        key.encode("utf-8", "replace").decode(): value.encode("utf-8", "replace").decode()
        for key, value in (ext_fields or {}).items()
    }
    return remark, clean


_FIXED: Final = Struct(">hBhiii")  # code, language, version, opaque, flag, length of the remark
_INT: Final = Struct(">i")
_KEY_LENGTH: Final = Struct(">H")


def _decode_binary(payload: bytes, body_start: int) -> RemotingCommand:
    data = payload[4:body_start]
    try:
        code, language, version, opaque, flag, remark_size = _FIXED.unpack_from(data)
        remark, at = _text(data, _FIXED.size, remark_size)
        (map_size,) = _INT.unpack_from(data, at)
        at += _INT.size
        if map_size < 0 or at + map_size > len(data):
            raise ProtocolError(f"a header of {len(data)} bytes claims to have {map_size} bytes of ext fields")
        ext_fields, end = {}, at + map_size
        while at < end:
            key, at = _text(data, at + _KEY_LENGTH.size, *_KEY_LENGTH.unpack_from(data, at))
            value, at = _text(data, at + _INT.size, *_INT.unpack_from(data, at))
            ext_fields[key] = value
    except (StructError, UnicodeDecodeError) as error:
        raise ProtocolError(f"a binary header is damaged: {error}") from error
    if at != end:
        raise ProtocolError("the ext fields of a binary header are longer than the length that it gives")
    named = _LANGUAGES_BY_BYTE.get(language, _OTHER)
    return RemotingCommand(code, opaque, flag, ext_fields, payload, body_start, remark or None, named, version)


def _text(data: bytes, start: int, size: int) -> tuple[str, int]:
    end = start + size
    if size < 0 or end > len(data):
        raise ProtocolError(f"a text of {size} bytes does not fit into a header of {len(data)} bytes")
    return data[start:end].decode(), end


_FIRST_OF_5: Final = 413
_MINORS: Final = 20
_PATCHES: Final = 2
_LAST_OF_5: Final = 611
_OF_4_9: Final = {399: "4.9.3", 401: "4.9.4", 403: "4.9.5", 405: "4.9.6", 407: "4.9.7", 409: "4.9.8"}


def version_name(number: int) -> str:
    """Return the release of a version number: `5.5.0` for 513. Snapshots and releases before 4.9.3 stay numbers."""
    if _FIRST_OF_5 <= number <= _LAST_OF_5 and number % 2:
        minor, patch = divmod(number - _FIRST_OF_5, _MINORS)
        return f"5.{minor}.{patch // _PATCHES}"
    return _OF_4_9.get(number, str(number))


MAX_FRAME_SIZE_BYTES = 16 * 1024 * 1024  # Java: com.rocketmq.remoting.frameMaxLength
LENGTH = Struct(">I")


class FrameDecoder:
    """A splitter of received bytes into frames. It keeps at most one incomplete frame."""

    __slots__ = ("_chunks", "_max_frame_size", "_wanted", "held_bytes")

    def __init__(self, max_frame_size_bytes: int = MAX_FRAME_SIZE_BYTES) -> None:
        self._max_frame_size = max_frame_size_bytes
        self._chunks: list[bytes] = []
        self.held_bytes = 0
        """How many bytes of the incomplete frame have been received."""
        self._wanted = LENGTH.size

    def feed(self, data: bytes) -> list[bytes]:
        """Return the frames that `data` completes, without their length fields.

        Raises ProtocolError as soon as a length field exceeds the limit, before the rest of the frame is received.
        """
        if self._chunks:
            self._chunks.append(data)
            self.held_bytes += len(data)
            if self.held_bytes < self._wanted:
                return []
            data = b"".join(self._chunks)
            self._chunks.clear()
        payloads: list[bytes] = []
        start, size = 0, len(data)
        while True:
            if size - start < LENGTH.size:
                self._wanted = LENGTH.size
                break
            (length,) = LENGTH.unpack_from(data, start)
            if length > self._max_frame_size:
                if data[start : start + LENGTH.size] == b"HTTP":
                    raise ProtocolError("the peer answers in HTTP; expected the address of a name server or a broker")
                limit = self._max_frame_size
                raise ProtocolError(f"the peer is sending a frame of {length} bytes; expected at most {limit}")
            end = start + LENGTH.size + length
            if end > size:
                self._wanted = end - start
                break
            payloads.append(data[start + LENGTH.size : end])
            start = end
        if start < size:
            self._chunks.append(data[start:])
        self.held_bytes = size - start
        return payloads
