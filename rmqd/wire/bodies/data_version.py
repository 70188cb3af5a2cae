"""DataVersion: how often a table of a broker changed, by which others tell whether they have it."""

from __future__ import annotations

from dataclasses import dataclass

from rmqd.wire.bodies.base import Body


@dataclass(frozen=True, slots=True)
class DataVersion(Body, called="dataVersion"):
    """`counter` goes up with each change; `timestamp` is the last one's, in milliseconds."""

    counter: int = 0
    timestamp: int = 0
    state_version: int = 0
