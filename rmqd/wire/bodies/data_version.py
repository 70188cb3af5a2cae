"""DataVersion: the version of a broker's table. Readers compare it to find out whether their copy is current."""

from __future__ import annotations

from dataclasses import dataclass

from rmqd.wire.bodies.base import Body


@dataclass(frozen=True, slots=True)
class DataVersion(Body, called="dataVersion"):
    """`counter` increases with each change. `timestamp` is the time of the last change in milliseconds."""

    counter: int = 0
    timestamp: int = 0
    state_version: int = 0
