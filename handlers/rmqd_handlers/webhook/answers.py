"""How the status of the response settles messages, and how long a server asks to wait."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BeforeValidator

from rmqd_handlers.faults import HTTP_STATUSES

Action = Literal["ack", "wait", "retry", "dead_letter"]

DEFAULTS: Final[Mapping[str, Action]] = {
    "2xx": "ack",
    **dict.fromkeys(map(str, HTTP_STATUSES), "dead_letter"),
}
"""Other statuses wait, including 401, 403 and 404, which indicate an error in the options or the server."""

DELAYS_SECONDS: Final[tuple[int, ...]] = (1, 5, 10, 30, *(60 * minutes for minutes in (*range(1, 11), 20, 30, 60, 120)))
"""RocketMQ's delay levels from level 1, with a broker's default messageDelayLevel."""


def _status(value: object) -> object:
    return str(value) if isinstance(value, int) else value  # YAML parses 404 as a number


def _checked(pattern: str) -> str:
    if re.fullmatch(r"[1-5](xx|[0-9]{2})", pattern) is None:
        raise ValueError(f"{pattern!r} is not a status; expected one such as 404, or a class such as 5xx")
    return pattern


Status = Annotated[str, BeforeValidator(_status, json_schema_input_type=str | int), AfterValidator(_checked)]


def action_for(status: int, policy: Mapping[str, Action]) -> Action:
    """Return the action of the policy for this status, or for its class, or the default action."""
    kind = f"{status // 100}xx"
    for table in (policy, DEFAULTS):
        for pattern in (str(status), kind):
            if pattern in table:
                return table[pattern]
    return "wait"


def retry_after_seconds(header: str | None) -> float:
    """Return the header Retry-After, in seconds or as a date; 0 if it is missing or invalid.

    At most the longest delay level, so that a server cannot delay messages for days.
    """
    if header is None:
        return 0.0
    if re.fullmatch(r"[0-9]{1,9}", header.strip()):
        return min(float(header), DELAYS_SECONDS[-1])
    try:
        at = parsedate_to_datetime(header)
        if at.tzinfo is None:
            at = at.replace(tzinfo=UTC)
        seconds = (at - datetime.now(UTC)).total_seconds()
    except (ValueError, OverflowError):  # OverflowError: a time zone thousands of years away
        return 0.0
    return min(max(0.0, seconds), DELAYS_SECONDS[-1])


def delay_level(seconds: float) -> int:
    """Return the first delay level that is long enough; the longest level if none is."""
    levels = enumerate(DELAYS_SECONDS, 1)
    return next((level for level, delay in levels if delay >= seconds), len(DELAYS_SECONDS))
