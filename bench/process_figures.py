"""The figures of a draining process: its CPU time, its memory, and its final line of JSON.

The measured daemon imports this module, so it imports nothing that costs start-up time.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass

STARTED = "started"  # a contender prints it at the first message of a paced run


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment of a run: monotonic and wall clock in seconds, and CPU seconds since the process began."""

    monotonic_seconds: float
    wall_seconds: float
    cpu_seconds: float


def now() -> Moment:
    """Return the present moment."""
    return Moment(time.perf_counter(), time.time(), time.process_time())


def peak_rss_mib() -> float:
    """Return the largest resident memory of this process so far (VmHWM), in MiB."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM"))


def line(
    peer: str, messages: int, first: Moment, marked: Moment, last: Moment, warm: int, delays_us: Sequence[int] = ()
) -> str:
    """Return one line of JSON, in the format of all contenders.

    CPU per message counts from `marked`, the moment of the message after the first `warm` ones. Rates count from
    `first`, and `cpu_us_per_msg_with_start` from the start of the process.
    """
    span_seconds = max(last.monotonic_seconds - first.monotonic_seconds, 1e-9)
    figures: dict[str, object] = {
        "peer": peer,
        "messages": messages,
        "seconds": round(span_seconds, 4),
        "msgs_per_s": round(messages / span_seconds),
        "first_at": round(first.wall_seconds, 6),
        "last_at": round(last.wall_seconds, 6),
        "cpu_s": round(last.cpu_seconds, 4),
        "cpu_us_per_msg": round((last.cpu_seconds - marked.cpu_seconds) * 1e6 / (messages - warm), 3),
        "cpu_us_per_msg_with_start": round(last.cpu_seconds * 1e6 / messages, 3),
        "peak_rss_mib": round(peak_rss_mib(), 1),
    }
    ordered = sorted(delays_us)
    if ordered:
        count = len(ordered)
        figures["latency_ms"] = {
            "p50": ordered[count // 2] / 1000,
            "p99": ordered[min(count - 1, int(count * 0.99))] / 1000,
            "max": ordered[-1] / 1000,
        }
    return json.dumps(figures, separators=(",", ":"))
