"""What a group does about failures of its handler, beside RocketMQ's own retries and dead letters."""

# No postponed annotations here: pydantic would have to read them all from text, on every start.

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
    """Retries in place: the handler is called again in its slot, before the message counts as failed."""

    in_place: Annotated[int, Whole(0, 100)] = setting(0, "calls more at most, 0 to 100, before the attempt has failed")
    backoff: Annotated[float, Duration("0s", "1h")] = setting(
        "200ms", "a duration: the pause before the first of them; it doubles from one to the next"
    )
    max_backoff: Annotated[float, Duration("0s", "1h")] = setting("5s", "a duration: the longest pause")
    on: list[Annotated[str, _EXCEPTION]] = Field(
        default_factory=list, description=f"exceptions that are retried in place, {_BY_NAME}; empty: all"
    )


class DeadLetterConfig(Section):
    """Failures that are not worth a retry."""

    on: list[Annotated[str, _EXCEPTION]] = Field(
        default_factory=list, description=f"exceptions whose messages go to the dead letters at once, {_BY_NAME}"
    )


class CircuitBreakerConfig(Section):
    """When the group stops calling its handler, so that a failing dependency does not use up its messages' attempts."""

    consecutive: Annotated[int, Whole(0, 10_000)] = setting(
        0, "calls in a row that failed within window, after which the circuit opens, 0 to 10000; 0: they do not open it"
    )
    ratio: Annotated[float, Share()] = setting(
        0.0,
        "share of the calls within window, 10 at least, that failed, 0.0 to 1.0; 0.0: it does not open the circuit",
    )
    window: Annotated[float, Duration("1s", "1h")] = setting(
        "30s", "a duration, 1s to 1h: how long a failed call counts; what it failed at waits so long at most"
    )
    open_for: Annotated[float, Duration("100ms", "1h")] = setting(
        "15s", "a duration, 100ms to 1h: how long no call is made, before one is made as a probe"
    )

    @property
    def is_on(self) -> bool:
        """Whether anything opens the circuit."""
        return bool(self.consecutive or self.ratio)
