"""How a group handles failures of its handler, besides RocketMQ's retries and dead letters."""

# No postponed annotations here: pydantic would parse all of them from text at every start.

import re
from typing import Annotated, Final

from pydantic import Field

from rmqd.config.model.kinds import Duration, Share, Text, Whole
from rmqd.config.model.section import Section, setting

_NAME: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_EXCEPTION: Final = Text(
    "the name of an exception's class, such as TimeoutError or psycopg.OperationalError",
    lambda name: _NAME.fullmatch(name) is not None,
)
_BY_NAME: Final = "by the names of their classes, or of classes that these inherit from, with or without the module"


class RetryConfig(Section):
    """Retries in place: the handler is called again in its slot before the attempt counts as failed."""

    in_place: Annotated[int, Whole(0, 100)] = setting(
        0, "maximum number of further calls, 0 to 100, before the attempt counts as failed"
    )
    backoff: Annotated[float, Duration("0s", "1h")] = setting(
        "200ms", "a duration: the delay before the first retry in place; it doubles with each retry"
    )
    max_backoff: Annotated[float, Duration("0s", "1h")] = setting("5s", "a duration: the longest delay")
    on: list[Annotated[str, _EXCEPTION]] = Field(
        default_factory=list, description=f"exceptions that are retried in place, {_BY_NAME}; empty: all"
    )


class DeadLetterConfig(Section):
    """Failures that a retry cannot repair."""

    on: list[Annotated[str, _EXCEPTION]] = Field(
        default_factory=list, description=f"exceptions whose messages go to the dead letters at once, {_BY_NAME}"
    )


class CircuitBreakerConfig(Section):
    """When the group stops calling its handler, so that a failing service does not use up its messages' attempts."""

    consecutive: Annotated[int, Whole(0, 10_000)] = setting(
        0, "consecutive failed calls within window that open the circuit, 0 to 10000; 0: never"
    )
    ratio: Annotated[float, Share()] = setting(
        0.0,
        "share of failed calls, out of at least 10 within window, that opens the circuit, 0.0 to 1.0; 0.0: never",
    )
    window: Annotated[float, Duration("1s", "1h")] = setting(
        "30s", "a duration, 1s to 1h: how long a failed call counts, and how long its messages may wait"
    )
    open_for: Annotated[float, Duration("100ms", "1h")] = setting(
        "15s", "a duration, 100ms to 1h: how long no call is made, before one test call"
    )

    @property
    def is_on(self) -> bool:
        """Whether failures can open the circuit."""
        return bool(self.consecutive or self.ratio)
