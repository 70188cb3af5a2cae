"""Counts repeated errors instead of writing them: a poison message must not fill a disk.

The first of several equal errors is logged. After ten seconds, one more line reports the number of further errors.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from dataclasses import dataclass
from typing import Final

import structlog
from structlog.typing import EventDict

REPEAT_SECONDS: Final = 10.0
MAX_COUNTED_ERRORS: Final = 1_000
MAX_ORIGINS_PER_PLACE: Final = 20  # exceptions (class and line) that are counted separately; others are one count

# The values of these fields are the place of an error; other fields do not matter. `problems` describes files that an
# operator has changed, so two errors with different problems are different errors.
_PLACE_KEYS: Final = (
    "event", "group", "topic", "broker", "queue", "address", "handler", "hook", "call", "worker", "check", "source",
    "problems",
)  # fmt: skip
_LIMITED_ALREADY: Final = {"access.refused", "log.dropped"}
# Each of these lines is the only record of messages that no handler receives.
_ONLY_TRACES: Final = {
    "message.dropped", "message.corrupt", "offset.corrected", "offset.moved", "spark.data_lost",
    "spark.queue_went_back", "spark.queue_gone",
}  # fmt: skip
_WORTH_LIMITING: Final = {"warning", "error", "exception", "critical"}

_Place = tuple[str, ...]


class RepeatLimiter:
    """A structlog processor that passes the first of several equal warnings and errors, and counts the others.

    Two errors are equal if they have the same place and, if an exception is logged, the same exception class and line.
    The line matters, because a handler that fails at every message for one reason must not hide a single `KeyError`
    with another reason. Texts do not matter, because they may contain data of a producer. A line that is the only
    record of messages always passes.
    """

    def __init__(self, interval_seconds: float = REPEAT_SECONDS) -> None:
        self._interval = interval_seconds
        self._seen: dict[tuple[_Place, str], _Repeated] = {}
        self._origins: dict[_Place, set[str]] = defaultdict(set)

    def __call__(self, _logger: object, method: str, event: EventDict) -> EventDict:
        name = event.get("event")
        if method not in _WORTH_LIMITING or name in _LIMITED_ALREADY or name in _ONLY_TRACES:
            return event
        if event.get("acknowledged"):  # the only record of an invalid message that its handler skips
            return event
        now = time.monotonic()
        place = (method, *(str(event.get(name)) for name in _PLACE_KEYS))  # as text, because values may be unhashable
        key = place, self._origin(place, event)
        seen = self._seen.get(key)
        if seen is not None and now - seen.since < self._interval:
            seen.count += 1
            raise structlog.DropEvent
        if seen is not None and seen.count:
            event["repeated"] = seen.count
        self._make_room(now)
        self._seen[key] = _Repeated(now, {name: event[name] for name in _PLACE_KEYS if name in event}, method)
        self._origins[place].add(key[1])
        return event

    def flush(self) -> None:
        """Log the counts of repeated errors whose ten seconds have passed. Call it regularly."""
        now = time.monotonic()
        for key, seen in list(self._seen.items()):
            if now - seen.since < self._interval:
                continue
            self._forget(key)
            if seen.count:
                fields = {name: value for name, value in seen.fields.items() if name != "event"}
                if key[1]:
                    fields["raised"] = key[1]
                # This line is not counted itself: it reports the suppressed lines.
                _log.info("log.repeated", of=seen.fields["event"], of_level=seen.level, count=seen.count, **fields)

    def _origin(self, place: _Place, event: EventDict) -> str:
        origin = _origin_of(event.get("exc_info"))
        known = self._origins.get(place, ())
        return origin if origin in known or len(known) < MAX_ORIGINS_PER_PLACE else "others"

    def _make_room(self, now: float) -> None:
        if len(self._seen) < MAX_COUNTED_ERRORS:
            return
        for key, seen in list(self._seen.items()):
            if now - seen.since >= self._interval:
                self._forget(key)
        while len(self._seen) >= MAX_COUNTED_ERRORS:
            self._forget(next(iter(self._seen)))

    def _forget(self, key: tuple[_Place, str]) -> None:
        place, origin = key
        del self._seen[key]
        self._origins[place].discard(origin)
        if not self._origins[place]:
            del self._origins[place]


def _origin_of(error: object) -> str:
    """Return `KeyError at mail.py:17`: an exception's class and the line that raised it; empty if `error` is not an
    exception.
    """
    if error is True:  # `exc_info=True` means the exception that is being handled
        error = sys.exc_info()[1]
    if not isinstance(error, BaseException):
        return ""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    where = "" if last is None else f" at {last.tb_frame.f_code.co_filename}:{last.tb_lineno}"
    return f"{type(error).__qualname__}{where}"


@dataclass(slots=True)
class _Repeated:
    since: float
    fields: dict[str, object]
    level: str
    count: int = 0


_log = structlog.get_logger(__name__)
