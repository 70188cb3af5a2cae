"""Brokers that no route names any more: their addresses stay known for a while, as name servers may be mistaken."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rmqd.clock import Clock

Brokers = Mapping[str, Mapping[int, str]]  # name, replica id, address


@dataclass(frozen=True, slots=True)
class _Departed:
    """A broker that no route names. The first `update` after `until` (monotonic) forgets its addresses."""

    replicas: Mapping[int, str]
    until: float


class DepartedBrokers:
    """The brokers that have left all routes; each is remembered for `grace_seconds`, until the `update` after that."""

    def __init__(self, clock: Clock, grace_seconds: float) -> None:
        self._clock = clock
        self._grace = grace_seconds
        self._by_name: dict[str, _Departed] = {}

    def replicas(self, broker_name: str) -> Mapping[int, str]:
        """The last known addresses of a departed broker by replica id; empty if there is no such broker."""
        departed = self._by_name.get(broker_name)
        return {} if departed is None else departed.replicas

    def all_replicas(self) -> Iterable[Mapping[int, str]]:
        """The addresses of every departed broker."""
        return [departed.replicas for departed in self._by_name.values()]

    def update(self, before: Brokers, present: Brokers) -> bool:
        """Note which brokers routes name no longer. Returns whether the grace of a departed one has ended."""
        now = self._clock.monotonic()
        known, self._by_name = self._by_name, {}
        for name, departed in known.items():
            if name not in present and now < departed.until:
                self._by_name[name] = departed
        for name in before.keys() - present.keys():
            self._by_name[name] = _Departed(before[name], now + self._grace)
        return bool(known.keys() - self._by_name.keys() - present.keys())
