"""A group's circuit breaker: decides by the results of calls whether the handler is called.

While the circuit is *closed*, calls are made. It opens if too many calls fail, either in a row or as a share of the
calls within a time window. While it is *open* no calls are made. Then it is *half open*: a single call, the probe, is
made. If the probe fails the circuit opens again; if it succeeds the circuit closes.

A failed call does not show whether the handler or the message is at fault. Until that is known the failure is
*suspected* to be the handler's:

- The message is at fault if a call that began later succeeds (`refuted_to`), or if the circuit has not opened within
  the window. Then the attempt counts.
- The handler is at fault if the circuit opens. Then the attempt does not count. Attempts of probes, and of calls that
  were running when the circuit opened, do not count either.

The circuit judges the handler, not a message. So a failure is not *evidence* if this message failed before and the
handler has since succeeded with another message. Such a failure does not open the circuit. The failure is the message's
fault once yet another message succeeds.

`handling.circuit_breaker` decides what happens to the messages meanwhile. This module never waits, and does not look
into batches.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Literal

import structlog

from rmqd.consumer.consumer_options import CircuitOptions
from rmqd.consumer.health.causes import Problem, make_problem
from rmqd.runtime.clock import Clock
from rmqd.runtime.plain_text import duration

log = structlog.get_logger(__name__)

CircuitState = Literal["closed", "half_open", "open"]
CIRCUIT_STATES: Final = ("closed", "half_open", "open")  # the metric rmqd_circuit_state exports the index
MIN_CALLS_FOR_RATIO: Final = 10  # calls within the window before their ratio can open the circuit
WINDOW_SLICES: Final = 30  # parts of the window; calls are counted by slice, so memory does not depend on their number


class FailureEffect(enum.Enum):
    """How a failed call counts for its messages."""

    COUNTS = "counts"
    """The attempt counts at once, because this failure cannot open the circuit."""
    SUSPECTED = "suspected"
    """It is not known yet whether the handler or the message is at fault."""
    REPEATED = "repeated"
    """Like `SUSPECTED`, but not evidence against the handler: the message is at fault once another one succeeds."""
    EXCUSED = "excused"
    """The attempt does not count, because the handler is at fault, not the message."""


@dataclass(frozen=True, slots=True)
class CircuitSnapshot:
    """The circuit at one moment. Times are Unix seconds."""

    state: CircuitState
    since: float  # when the circuit entered this state
    reason: str  # why the circuit opened, with the last error; empty while it is closed
    probe_at: float | None  # when an open circuit becomes half open; None in other states


@dataclass(slots=True)
class _Slice:
    """The calls that ended within one slice of the window."""

    began: float
    failed: int = 0
    succeeded: int = 0


class Circuit:
    """The circuit of one group in this process. The owner must call `poll` several times a second."""

    def __init__(self, options: CircuitOptions, clock: Clock) -> None:
        self.options = options
        self.state: CircuitState = "closed"
        self.excused_before = float("-inf")  # monotonic; failures of calls before this time are the messages' fault
        self.on_change: Callable[[], None] = lambda: None  # called when `state` or `allows_call` changed
        self._clock = clock
        self._since = clock.wall()
        self._opened_at = self._probe_at = 0.0  # monotonic
        self._probe: object | None = None  # the batch of the running probe
        self._abandoned: set[object] = set()  # batches of probes that failed at their deadline and are still running
        self._in_a_row: deque[float] = deque(maxlen=options.consecutive or 1)  # times of consecutive failures
        self._slices: deque[_Slice] = deque()
        self._reason = self._error = ""

    def apply_options(self, options: CircuitOptions | None) -> None:
        """Apply new options. None, or options that never open a circuit, close an open circuit and keep it closed."""
        if options is None:
            options = replace(self.options, consecutive=0, ratio=0.0)
        if options == self.options:
            return
        self.options = options
        self._in_a_row = deque(self._in_a_row, maxlen=options.consecutive or 1)
        self._probe_at = min(self._probe_at, self._clock.monotonic() + options.open_for_seconds)
        if not self.options.can_open and self.state != "closed":
            self._close()

    @property
    def allows_call(self) -> bool:
        """Whether a call may begin now."""
        return self.state == "closed" or (self.state == "half_open" and self._probe is None)

    def call_began(self, batch: object) -> None:
        """Called when a call begins. While the circuit is half open, this call is the probe."""
        if self.state == "half_open" and self._probe is None:
            self._probe = batch
            self.on_change()

    def call_succeeded(self, batch: object, began: float) -> None:
        """Called when a call ended and acknowledged messages. `began` is when the call began (monotonic)."""
        self._abandoned.discard(batch)
        if self.state != "closed" and batch is not self._probe:
            return
        self.excused_before = max(self.excused_before, began)
        if self.state != "closed":
            self._close()
            return
        self._in_a_row.clear()
        if self.options.ratio:
            self._slice().succeeded += 1

    def call_failed(self, batch: object, error: str, *, is_evidence: bool) -> FailureEffect:
        """Called when a call failed with `error`. `is_evidence` is True if the failure may be the handler's fault."""
        was_probe = batch in self._abandoned  # then the failure was already counted at the deadline
        self._abandoned.discard(batch)
        if self.state == "closed":
            if not self.options.can_open:
                return FailureEffect.COUNTS
            if was_probe or not is_evidence:
                return FailureEffect.SUSPECTED
            self._error = error
            self._in_a_row.append(self._clock.monotonic())
            if self.options.ratio:
                self._slice().failed += 1
            return FailureEffect.EXCUSED if self._opens() else FailureEffect.SUSPECTED
        if batch is self._probe:
            self._error = error
            self._open()
        return FailureEffect.EXCUSED

    def call_undecided(self, batch: object) -> None:
        """Called when a call ended without evidence. If the call was the probe, the next call is a new probe."""
        self._abandoned.discard(batch)
        if batch is self._probe:
            self._probe = None
            self.on_change()

    def call_abandoned(self, batch: object) -> None:
        """Called when a call still runs at its deadline. A probe has then failed. The call's end is reported too."""
        if batch is self._probe:
            self._abandoned.add(batch)
            self._error = "the handler exceeded consume_timeout and is still running"
            self._open()

    def poll(self) -> None:
        """Open the circuit if its limits are reached, or make it half open if `open_for` has passed."""
        if self.state == "closed":
            self._opens()
        elif self.state == "open" and self._clock.monotonic() >= self._probe_at:
            self._set_state("half_open")
            log.info("circuit.half_open")
            self.on_change()

    def snapshot(self) -> CircuitSnapshot:
        ahead = self._probe_at - self._clock.monotonic()
        probe_at = self._clock.wall() + max(0.0, ahead) if self.state == "open" else None
        return CircuitSnapshot(self.state, self._since, self._evidence(), probe_at)

    def problem(self, group: str) -> Problem | None:
        """Return the problem to report to the operator; None while the circuit is closed."""
        if self.state == "closed":
            return None
        seconds = self._clock.monotonic() - self._opened_at
        return make_problem(
            "circuit_open", f"{self._evidence()}; only test calls were made for {duration(seconds)}", group=group
        )

    def _evidence(self) -> str:
        return "" if self.state == "closed" else f"{self._reason}, the last one with {self._error}"

    def _slice(self) -> _Slice:
        now = self._clock.monotonic()
        if not self._slices or now - self._slices[-1].began >= self.options.window_seconds / WINDOW_SLICES:
            self._slices.append(_Slice(now))
        return self._slices[-1]

    def _opens(self) -> bool:
        """Open the circuit if too many calls have failed. Return whether it opened."""
        options, oldest = self.options, self._clock.monotonic() - self.options.window_seconds
        if options.consecutive and len(self._in_a_row) == options.consecutive and self._in_a_row[0] >= oldest:
            self._reason = f"{options.consecutive} {'call' if options.consecutive == 1 else 'calls in a row'} failed"
            self._open()
            return True
        while self._slices and self._slices[0].began < oldest:
            self._slices.popleft()
        failed = sum(one.failed for one in self._slices)
        calls = failed + sum(one.succeeded for one in self._slices)
        if options.ratio and calls >= MIN_CALLS_FOR_RATIO and failed >= options.ratio * calls:
            self._reason = f"{failed} of {calls} calls failed"
            self._open()
            return True
        return False

    def _open(self) -> None:
        now, seconds = self._clock.monotonic(), self.options.open_for_seconds
        if self.state == "closed":
            self._opened_at = now
            log.warning("circuit.opened", reason=self._reason, error=self._error, seconds=seconds)
        else:
            log.warning("circuit.probe_failed", reason=self._reason, error=self._error, seconds=seconds)
        self._probe, self._probe_at = None, now + seconds
        self._set_state("open")
        self.on_change()

    def _close(self) -> None:
        self._probe = None
        self._in_a_row.clear()
        self._slices.clear()
        log.info("circuit.closed", seconds=round(self._clock.monotonic() - self._opened_at, 1))
        self._set_state("closed")
        self.on_change()

    def _set_state(self, state: CircuitState) -> None:
        self.state, self._since = state, self._clock.wall()
