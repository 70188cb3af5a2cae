"""The two loose text formats of brokers: JSON as fastjson writes it, and settings as lines of `name=value`.

In this JSON, map keys may also be bare numbers or whole objects: brokers really send `{0:"127.0.0.1:10911"}` and
`{{"brokerName":"b","queueId":0,"topic":"T"}:5}`. Setting lines are the body of UPDATE_BROKER_CONFIG (25) and
UPDATE_NAMESRV_CONFIG (318), and of the responses to GET_BROKER_CONFIG (26) and GET_NAMESRV_CONFIG (319).
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping
from json import JSONDecoder, JSONEncoder
from typing import Any, Final, NoReturn

from rmqd.errors import ProtocolError

MAX_DEPTH: Final = 100

_BLANKS: Final = re.compile(r"[ \t\r\n]*")
_NUMBER: Final = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?", re.ASCII)
_WORDS: Final[dict[str, object]] = {"true": True, "false": False, "null": None}
_WORD: Final = re.compile("true|false|null")
_FLAT: Final = r"""\{[^{}\[\]"\\]*(?:"[^"\\]*"[^{}\[\]"\\]*)*\}"""  # an object of plain values, without escapes
_ENTRY: Final = re.compile(rf"[ \t\r\n]*({_FLAT})[ \t\r\n]*:[ \t\r\n]*({_FLAT}|-?\d+)[ \t\r\n]*([,}}])", re.ASCII)
_BROKEN_BY: Final = (ValueError, RecursionError)


class ObjectKey(tuple[tuple[str, Any], ...]):
    """A JSON object that is a map key, as a tuple of its (name, value) items, so that Python can hash it."""

    __slots__ = ()

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> ObjectKey:
        """Return the key for an object. Raises ProtocolError if one of its values is an object or a list."""
        try:
            key = cls(sorted(value.items()))
            hash(key)
        except TypeError as error:
            raise ProtocolError("an object that is a map key must not hold objects or lists") from error
        return key


def loads(data: bytes | str) -> Any:
    """Parse a body. A map key that is an object becomes an ObjectKey; a bare key becomes an int, bool or None.

    The last of two equal keys wins. Raises ProtocolError for bad syntax, nesting above MAX_DEPTH, and lone surrogates.
    """
    try:
        text = data.decode() if isinstance(data, bytes) else data
        try:
            value = STRICT_DECODER.decode(text)
        except json.JSONDecodeError:
            value = _Parser(text).document()
        if text.count("[") + text.count("{") > MAX_DEPTH or "\\u" in text:
            _check(value)
    except _BROKEN_BY as error:
        raise ProtocolError(f"the body is not JSON: {error!r:.200}") from error
    return value


def dumps(value: object, *, bare_keys: bool = False) -> bytes:
    """Return the JSON of `value` as bytes. A map key that is an ObjectKey is written as an object, as fastjson does.

    With `bare_keys`, numeric keys have no quotes, as brokers write them. Neither form is valid JSON. Values without
    such keys are written by the encoder of the standard library, which is several times faster.
    """
    if not bare_keys:
        with contextlib.suppress(TypeError):  # raised for an ObjectKey
            return _ENCODER.encode(value).encode()
    parts: list[str] = []
    _write(value, parts, bare_keys)
    return "".join(parts).encode()


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


_ENCODER: Final = JSONEncoder(separators=(",", ":"))
STRICT_DECODER: Final = JSONDecoder(parse_constant=_refuse_constant)


def _check(value: object) -> None:
    """Raise ValueError for too deep nesting or lone surrogates, which the standard library's parser accepts."""
    level, depth = [value], 0
    while level:
        depth += 1
        below: list[object] = []
        for item in level:
            if isinstance(item, str):
                item.encode()  # UnicodeEncodeError, a ValueError, for half of a surrogate pair
            elif isinstance(item, ObjectKey):
                for pair in item:
                    below.extend(pair)
            elif isinstance(item, dict | list):
                if depth > MAX_DEPTH:
                    raise ValueError(f"nested deeper than {MAX_DEPTH}")
                below.extend(item)
                if isinstance(item, dict):
                    below.extend(item.values())
        level = below


class _Parser:
    """A recursive descent parser for one text. The standard library parses strings and the maps of `map_by_objects`."""

    __slots__ = ("at", "depth", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.depth = 0

    def document(self) -> object:
        value = self.value()
        if self.peek():
            raise self.unexpected("the end")
        return value

    def value(self) -> object:
        char = self.peek()
        if char == "{":
            return self.mapping()
        if char == "[":
            return self.array()
        return self.scalar(char)

    def mapping(self) -> dict[Any, Any]:
        plain = self.map_by_objects()
        if plain is not None:
            return plain
        self.enter()
        result: dict[Any, Any] = {}
        if self.peek() == "}":
            self.leave()
            return result
        while True:
            key = self.key()
            self.expect(":")
            result[key] = self.value()
            if self.peek() == "}":
                self.leave()
                return result
            self.expect(",")

    def map_by_objects(self) -> dict[Any, Any] | None:
        """Return the next map if its keys are flat objects, and its values are flat objects or integers.

        Returns None for any other map. Brokers report the queues of a topic in such a map. To parse the map entry by
        entry would take five times as long.
        """
        at, parts = self.at + 1, list[str]()
        while match := _ENTRY.match(self.text, at):
            parts += match[1], match[2]
            at = match.end()
            if match[3] == "}":
                break
        else:
            return None
        if self.depth + 2 > MAX_DEPTH:
            return None
        try:
            values = STRICT_DECODER.decode(f"[{','.join(parts)}]")
        except json.JSONDecodeError:
            return None
        self.at = at
        return {ObjectKey.of(key): value for key, value in zip(values[::2], values[1::2], strict=True)}

    def array(self) -> list[Any]:
        self.enter()
        result: list[Any] = []
        if self.peek() == "]":
            self.leave()
            return result
        while True:
            result.append(self.value())
            if self.peek() == "]":
                self.leave()
                return result
            self.expect(",")

    def key(self) -> object:
        char = self.peek()
        if char != "{":
            return self.scalar(char)
        return ObjectKey.of(self.mapping())

    def scalar(self, char: str) -> object:
        if char == '"':
            value, self.at = STRICT_DECODER.raw_decode(self.text, self.at)
            return value
        if match := _NUMBER.match(self.text, self.at):
            self.at = match.end()
            return float(match[0]) if match[1] or match[2] else int(match[0])
        if match := _WORD.match(self.text, self.at):
            self.at = match.end()
            return _WORDS[match[0]]
        raise self.unexpected("a value")

    def peek(self) -> str:
        """Skip blanks and return the next character, without consuming it; an empty text at the end."""
        match = _BLANKS.match(self.text, self.at)
        self.at = match.end() if match else self.at
        return self.text[self.at : self.at + 1]

    def expect(self, char: str) -> None:
        if self.peek() != char:
            raise self.unexpected(repr(char))
        self.at += 1

    def enter(self) -> None:
        self.at += 1
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise ValueError(f"nested deeper than {MAX_DEPTH}")

    def leave(self) -> None:
        self.at += 1
        self.depth -= 1

    def unexpected(self, wanted: str) -> ValueError:
        found = self.text[self.at : self.at + 20] or "the end"
        return ValueError(f"at character {self.at}: expected {wanted}, found {found!r}")


def _write(value: object, parts: list[str], bare_keys: bool) -> None:
    if isinstance(value, dict):
        parts.append("{")
        for number, (key, item) in enumerate(value.items()):
            if number:
                parts.append(",")
            if isinstance(key, ObjectKey):
                parts.append(dumps(dict(key), bare_keys=bare_keys).decode())
            else:
                parts.append(json.dumps(key if isinstance(key, str) or bare_keys else json.dumps(key)))
            parts.append(":")
            _write(item, parts, bare_keys)
        parts.append("}")
    elif isinstance(value, list | tuple):
        parts.append("[")
        for number, item in enumerate(value):
            if number:
                parts.append(",")
            _write(item, parts, bare_keys)
        parts.append("]")
    else:
        parts.append(json.dumps(value))


def dump_properties(values: Mapping[str, str]) -> bytes:
    """Return settings as lines of `name=value`, sorted by name."""
    return "".join(f"{name}={values[name]}\n" for name in sorted(values)).encode()


def load_properties(body: bytes) -> dict[str, str]:
    """Parse lines of `name=value`. Empty lines and comments (# or !) are skipped. The last value of a name counts."""
    values = {}
    for line in body.decode(errors="replace").splitlines():
        text = line.strip()
        if text and text[0] not in "#!":
            name, _, value = text.partition("=")
            values[name.strip()] = value.strip()
    return values
