"""The handle that recalls a timer message. Java: RecallMessageHandle."""

from __future__ import annotations

import base64
import binascii
from typing import Final, NamedTuple, Self

from rmqd.errors import ProtocolError
from rmqd.wire.fields import parse_integer

_VERSION: Final = "v1"
_PARTS: Final = 5


class RecallHandle(NamedTuple):
    """Identifies the message, its topic and broker, and its delivery time (milliseconds since 1970).

    On the wire it is URL-safe base64 of a version and these fields, separated by spaces.
    """

    topic: str
    broker_name: str
    deliver_at_ms: int
    msg_id: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a handle. Raises ProtocolError."""
        try:
            parts = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True).decode().split(" ")
        except (binascii.Error, ValueError) as error:
            raise ProtocolError(f"a recall handle must be base64 of text, and is {text!r:.120}: {error}") from error
        if parts[0] != _VERSION or len(parts) < _PARTS or not all(parts[:_PARTS]):
            raise ProtocolError(f"a recall handle must begin with {_VERSION} and have {_PARTS} parts: {parts!r:.120}")
        return cls(parts[1], parts[2], parse_integer(parts[3], "the time of a recall handle"), parts[4])

    def __str__(self) -> str:
        """Return the handle as brokers write it."""
        parts = (_VERSION, self.topic, self.broker_name, str(self.deliver_at_ms), self.msg_id)
        return base64.urlsafe_b64encode(" ".join(parts).encode()).decode()
