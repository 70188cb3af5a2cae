"""The job of one contender, and the figures that it reports."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

THREADS = 20
TLS, TRACE, POP = "tls", "trace", "pop"


@dataclass(frozen=True, slots=True)
class Job:
    """One drain by one contender, in a new consumer group."""

    contender: str
    nameserver: str
    topic: str
    group: str
    messages: int
    consume_batch: int
    pull_batch: int
    directory: Path
    """The contender's directory for files; deleted afterwards."""
    timeout_seconds: float
    paced: bool = False
    """Whether each message's age is recorded. The contender then prints `started` at its first message."""
    orderly: bool = False
    """Whether each queue is locked, and its batches are handled one after the other."""
    warm: int = 0
    """How many messages at the start do not count for ages and CPU per message."""
    switch: str = ""
    """TLS, TRACE or POP; empty if none is on."""
    checkout: Path = Path(__file__).resolve().parent.parent
    """The checkout whose rmqd runs."""
    sample_file: Path | None = None
    """The file for a sampling profiler's report of rmqd; None without a profiler."""


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of one drain."""

    messages_per_second: float
    """From the first message to the last."""
    cpu_us_per_message: float
    """Counted from the first message; in a paced run from the end of its warm part."""
    cpu_us_per_message_with_start: float
    peak_rss_mib: float
    first_seconds: float
    """From the start of the process to its first message."""
    last_seconds: float
    """From the start of the process to its last message."""
    p50_ms: float | None = None
    p99_ms: float | None = None
    broker_cpu_us_per_message: float | None = None
    """The broker's CPU from the start of the contender to its end."""
    traced_share: float | None = None
    """The share of the messages, 0 to 1, for which the broker has a trace record of the handling."""
    foreign_cpu_share: float = 0.0
    """The share of the machine used by other work, 0 to 1."""

    @classmethod
    def from_line(cls, line: str, spawned_at: float) -> Figures | None:
        """Read a contender's line of JSON. Returns None for any other line.

        `spawned_at` is the start time of the process: the wall clock, in seconds.
        """
        try:
            values: Any = json.loads(line)
        except ValueError:
            return None
        if not isinstance(values, dict) or "peer" not in values or "msgs_per_s" not in values:
            return None
        latency: dict[str, float] = values.get("latency_ms", {})
        return cls(
            messages_per_second=values["msgs_per_s"],
            cpu_us_per_message=values["cpu_us_per_msg"],
            cpu_us_per_message_with_start=values["cpu_us_per_msg_with_start"],
            peak_rss_mib=values["peak_rss_mib"],
            first_seconds=values["first_at"] - spawned_at,
            last_seconds=values["last_at"] - spawned_at,
            p50_ms=latency.get("p50"),
            p99_ms=latency.get("p99"),
        )
