"""Lines of the status that the command and the page both show."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any


def rates_line(group: dict[str, Any]) -> str:
    """What the handler's attempts come to, over the last minute."""
    return ", ".join(f"{name.replace('_', '-')} {rate:.1f}/s" for name, rate in group["per_second"].items())


def last_error_line(group: dict[str, Any]) -> str:
    """What the handler raised last, and when; empty where it never did."""
    error = group["last_error"]
    if error is None:
        return ""
    at = datetime.fromtimestamp(error["at"], UTC)
    return f"last error: {at:%Y-%m-%d %H:%M:%S} UTC, {error['topic']}, message {error['msg_id']}: {error['error']}"
