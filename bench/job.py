"""What one contender is asked to do, and what it reports."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

THREADS = 20
TLS, TRACE, POP = "tls", "trace", "pop"


@dataclass(frozen=True, slots=True)
class Job:
    """One drain by one contender, in a consumer group of its own."""

    contender: str
    nameserver: str
    topic: str
    group: str
    messages: int
    consume_batch: int
    pull_batch: int
    directory: Path
    """Where the contender may write; removed afterwards."""
    timeout_seconds: float
    paced: bool = False
    """Whether each message's age is noted; the contender then says `started` at its first message."""
    orderly: bool = False
    """Whether each queue is locked and its batches come one after the other."""
    warm: int = 0
    """How many messages at the start are left out of the ages and of the CPU per message."""
    switch: str = ""
    """TLS, TRACE or POP, where the contender is to go by it."""
    checkout: Path = Path(__file__).resolve().parent.parent
    """Which rmqd, where it is one."""
    sample_file: Path | None = None
    """Where rmqd is to write what a sampling profiler saw, if anywhere."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What one drain took."""

    messages_per_second: float
    """From the first message to the last."""
    cpu_us_per_message: float
    """From the first message on; in a paced run from the end of its warm part."""
    cpu_us_per_message_with_start: float
    peak_rss_mib: float
    first_seconds: float
    """From the start of the process to its first message."""
    last_seconds: float
    """From the start of the process to its last message."""
    p50_ms: float | None = None
    p99_ms: float | None = None
    broker_cpu_us_per_message: float | None = None
    """What the broker spent meanwhile, from the start of the contender to its end."""
    traced_share: float | None = None
    """Of how many of the messages the broker has a record that they were handled, 0 to 1."""
    foreign_cpu_share: float = 0.0
    """The share of the machine that other work had meanwhile, 0 to 1."""

    @classmethod
    def from_line(cls, line: str, spawned_at: float) -> Figures | None:
        """Read a contender's line of JSON; None for any other line that it printed.

        `spawned_at` is the wall clock, in seconds, when the process was started.
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
