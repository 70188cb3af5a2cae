"""The fixtures of the embedded broker's daily tests."""

from __future__ import annotations

from tests.broker.conftest import clock, embedded, peer

__all__ = ["clock", "embedded", "peer"]
