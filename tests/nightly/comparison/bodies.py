"""Bodies, decoded to plain values: Java's loose JSON, and records of messages."""

from __future__ import annotations

import json
import re
import struct
from typing import Any

MAGIC = struct.pack(">i", -626843481)
IPV6_BORN, IPV6_STORE = 0x10, 0x20
# fastjson writes object and number keys without quotes
OBJECT_KEY = re.compile(r"([{,])(\{[^{}]*\}):")
NUMBER_KEY = re.compile(r"([{,])(-?\d+):")


def decoded(body: bytes) -> Any:
    """Detect the format of a body, and return None, JSON, messages, properties, text, or bytes as hexadecimal text."""
    if not body:
        return None
    if body[4:8] == MAGIC:
        return messages(body)
    if body[:1] in (b"{", b"["):
        return loose_json(body.decode())
    try:
        lines = body.decode().splitlines()
    except UnicodeDecodeError:
        return body.hex()
    if all("=" in line for line in lines):
        return dict(line.split("=", 1) for line in lines)
    return body.decode()


def loose_json(text: str) -> Any:
    """Parse JSON whose keys may be objects or numbers. A key that is an object becomes sorted JSON text."""

    def as_text(match: re.Match[str]) -> str:
        key = json.dumps(json.loads(match.group(2)), sort_keys=True)
        return f"{match.group(1)}{json.dumps(key)}:"

    try:
        return json.loads(text)
    except ValueError:
        parsed = json.loads(NUMBER_KEY.sub(r'\1"\2":', OBJECT_KEY.sub(as_text, text)))
        return {"bare keys": True, **parsed}


def messages(body: bytes) -> list[dict[str, Any]]:
    """Return the fields of all records in a body."""
    found, at = [], 0
    while at < len(body):
        (size,) = struct.unpack_from(">i", body, at)
        found.append(_message(body[at : at + size]))
        at += size
    return found


def _message(record: bytes) -> dict[str, Any]:
    values: dict[str, Any] = {}
    at = 0

    def take(kind: str, *names: str) -> None:
        nonlocal at
        values.update(zip(names, struct.unpack_from(kind, record, at), strict=True))
        at += struct.calcsize(kind)

    def take_host(name: str, is_ipv6: int) -> None:
        nonlocal at
        size = 16 if is_ipv6 else 4
        ip, port = record[at : at + size], struct.unpack_from(">i", record, at + size)[0]
        values[name] = f"{'.'.join(map(str, ip)) if size == 4 else ip.hex()}:{port}"
        at += size + 4

    take(
        ">iiiiiqqiq", "size", "magic", "bodyCRC", "queueId", "flag", "queueOffset", "commitLogOffset", "sysFlag", "born"
    )
    take_host("bornHost", values["sysFlag"] & IPV6_BORN)
    take(">q", "stored")
    take_host("storeHost", values["sysFlag"] & IPV6_STORE)
    take(">iqi", "reconsumeTimes", "preparedTransactionOffset", "bodySize")
    body = record[at : at + values["bodySize"]]
    values["body"] = body.decode("latin-1") if len(body) < 200 else f"{len(body)} bytes"
    at += len(body)
    topic_size = record[at]
    values["topic"] = record[at + 1 : at + 1 + topic_size].decode()
    at += 1 + topic_size
    take(">h", "propertiesSize")
    values["properties"] = dict(
        part.split("\x01", 1) for part in record[at : at + values["propertiesSize"]].decode().split("\x02") if part
    )
    return values
