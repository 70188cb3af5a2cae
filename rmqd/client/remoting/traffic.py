"""Counters of the connections of one client."""

from __future__ import annotations

import structlog

from rmqd.errors import ProtocolError
from rmqd.histogram import Histogram

log = structlog.get_logger(__name__)

REQUEST_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0)


class Traffic:
    """Counters: request durations by code, failures by code and reason, corrupt frames, doubted replies."""

    def __init__(self) -> None:
        self.durations: dict[int, Histogram] = {}
        self.failures: dict[tuple[int, str], int] = {}
        self.corrupt_frames = 0
        self.doubted_replies = 0

    def answered(self, code: int, seconds: float) -> None:
        """Count a request that was answered after `seconds`."""
        histogram = self.durations.get(code)
        if histogram is None:
            histogram = self.durations[code] = Histogram(REQUEST_SECONDS)
        histogram.observe(seconds)

    def failed(self, code: int, reason: str) -> None:
        """Count a request without a response. `reason` is `timeout` or `closed`."""
        self.failures[code, reason] = self.failures.get((code, reason), 0) + 1

    def corrupt_frame(self, address: str, error: ProtocolError) -> None:
        """Count and log a frame that cannot be decoded."""
        self.corrupt_frames += 1
        log.error("frame.corrupt", address=address, error=str(error))
