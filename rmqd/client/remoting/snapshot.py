"""The client's figures at one moment, as plain values for metrics and the status page."""

from __future__ import annotations

from dataclasses import dataclass

from rmqd.histogram import HistogramSnapshot


@dataclass(frozen=True, slots=True)
class ClientSnapshot:
    """The client at one moment. Counters only increase."""

    client_id: str
    brokers_up: dict[str, bool]  # whether the last heartbeat was answered, by address
    requests: dict[int, HistogramSnapshot]  # seconds until the response, by request code
    request_failures: dict[tuple[int, str], int]  # requests without a response, by code and reason
    corrupt_frames: int
    doubted_replies: int = 0  # pull responses that contradict themselves, or have a corrupt message
    refused: tuple[str, ...] = ()  # the reasons of present refusals, by servers or by this client
