"""Brokers that are missing from all routes. Their addresses are kept for a while, because name servers may be wrong."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rmqd.clock import Clock

Brokers = Mapping[str, Mapping[int, str]]  # name, replica id, address


@dataclass(frozen=True, slots=True)
class _Departed:
    """A missing broker. The first `update` after `until` (monotonic) removes its addresses."""

    replicas: Mapping[int, str]
    until: float


class DepartedBrokers:
    """The brokers that are missing from all routes. Each is kept for `grace_seconds`, until the next `update`."""

    def __init__(self, clock: Clock, grace_seconds: float) -> None:
        self._clock = clock
        self._grace = grace_seconds
        self._by_name: dict[str, _Departed] = {}

    def replicas(self, broker_name: str) -> Mapping[int, str]:
        """Return the last known addresses of a missing broker by replica id; empty if there is no such broker."""
        departed = self._by_name.get(broker_name)
        return {} if departed is None else departed.replicas

    def all_replicas(self) -> Iterable[Mapping[int, str]]:
        """Return the addresses of every missing broker."""
        return [departed.replicas for departed in self._by_name.values()]

    def update(self, before: Brokers, present: Brokers) -> bool:
        """Note which brokers have left the routes. Returns whether a missing broker's grace has ended."""
        now = self._clock.monotonic()
        known, self._by_name = self._by_name, {}
        for name, departed in known.items():
            if name not in present and now < departed.until:
                self._by_name[name] = departed
        for name in before.keys() - present.keys():
            self._by_name[name] = _Departed(before[name], now + self._grace)
        return bool(known.keys() - self._by_name.keys() - present.keys())
