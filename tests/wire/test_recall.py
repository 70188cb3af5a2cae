"""Recall handles, as brokers write them."""

from __future__ import annotations

import base64

import pytest

from rmqd.errors import ProtocolError
from rmqd.wire.lite_topic import RecallHandle

TEXT = "djEgb3JkZXJzIGJyb2tlci1hIDE3NjM5MDAwMDAwMDAgQzAwMDAyMDIzRjMwNTNCOTZCNDM2OThCQjRGMjAwMDE="
HANDLE = RecallHandle("orders", "broker-a", 1763900000000, "C00002023F3053B96B43698BB4F20001")


def test_round_trip() -> None:
    """Java's encoder adds padding. Its decoder also accepts text without padding."""
    assert str(HANDLE) == TEXT
    assert RecallHandle.parse(TEXT) == RecallHandle.parse(TEXT.rstrip("=")) == HANDLE


NO_HANDLES = [
    "",
    "no base64!",
    base64.urlsafe_b64encode(b"\xff").decode(),
    base64.urlsafe_b64encode(b"v2 orders broker-a 1 ID").decode(),
    base64.urlsafe_b64encode(b"v1 orders broker-a 1").decode(),
    base64.urlsafe_b64encode(b"v1 orders broker-a soon ID").decode(),
    base64.urlsafe_b64encode(b"v1  broker-a 1 ID").decode(),
]


def test_invalid_handles_are_protocol_errors(subtests: pytest.Subtests) -> None:
    """They are refused before a request to a broker."""
    for text in NO_HANDLES:
        with subtests.test(text=text), pytest.raises(ProtocolError, match="recall handle"):
            RecallHandle.parse(text)
