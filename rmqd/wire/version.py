"""The version numbers of RocketMQ that clients and brokers send. Java: `MQVersion`."""

from __future__ import annotations

from typing import Final

_FIRST_OF_5: Final = 413
_MINORS: Final = 20
_PATCHES: Final = 2
_LAST_OF_5: Final = 611
_OF_4_9: Final = {399: "4.9.3", 401: "4.9.4", 403: "4.9.5", 405: "4.9.6", 407: "4.9.7", 409: "4.9.8"}


def version_name(number: int) -> str:
    """Return the release: `5.5.0` for 513. Snapshots, unknown numbers and releases before 4.9.3 stay numbers."""
    if _FIRST_OF_5 <= number <= _LAST_OF_5 and number % 2:
        minor, patch = divmod(number - _FIRST_OF_5, _MINORS)
        return f"5.{minor}.{patch // _PATCHES}"
    return _OF_4_9.get(number, str(number))
