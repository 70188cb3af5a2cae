"""`concurrency: auto`: finds the number of concurrent calls of a handler from the duration of its calls.

The service that a handler calls, such as a database, has a *knee*: a number of concurrent calls. Up to the knee, a call
takes a constant time; above it, calls only wait for each other. Fewer calls waste throughput, and more calls only add
latency. The knee moves, and nothing reports that.

The search runs in intervals. An interval gives the mean duration of the calls that began in it, at one limit. It counts
only if the slots were busy: if there were messages for (nearly) all calls that the limit allows. Other work in a slot,
such as the claims of `deduplicate` and the pauses before retries, makes the slot busy too, but does not count as
duration. The number of calls that an interval needs depends on how much their durations vary and on how small a
difference must be detected. A few calls are enough if all take the same time, so the search also works for slow calls.

- The *baseline* is the duration of a call below the knee. It is measured when calls are certainly below the knee: with
  one concurrent call at the start, and later by *trials* with fewer calls than the limit. If durations fall in
  proportion to the calls, the calls were above the knee, and the trial continues further down. If durations do not
  fall, they are the current baseline, whatever it was before.
- While durations stay at the baseline, the limit grows step by step. A step is reverted if it makes calls longer by
  more than about half of the increase expected above the knee. It is not tried again for some hundred calls.
- The first step from a settled limit is a *probe*. The limit is back before the durations of the probe's calls are
  known. At a low limit, one call too many can make every fourth call wait for a whole other call, so the calls of
  probes are kept below one in a hundred.
- If durations are far above the baseline, the limit falls to where they would be the baseline. If durations do not fall
  with the limit, the handler itself has become slower, and the durations are the new baseline. A trial checks that.
- If most calls reach their deadline, there are no durations, and the limit is halved.

TCP Vegas uses the same idea, with the least duration so far as baseline.
"""

from __future__ import annotations

from math import ceil, inf, sqrt
from typing import Final

from rmqd.consumer.handling.batch_worker import HandlerCall, Worker
from rmqd.handler_api.batch import Batch
from rmqd.runtime.clock import Clock

INTERVAL_SECONDS: Final = 0.5  # shortest interval while the limit does not change
MIN_INTERVAL_CALLS: Final = 40  # fewest calls while the limit does not change; at least twice the limit
MIN_FIRST_INTERVAL_CALLS: Final = 20  # fewest calls of the first interval
MIN_CALLS_WHILE_CHANGING: Final = 4  # fewest calls while the limit changes
# an interval waits for at most so many calls, or twice the limit if that is more, even if durations vary widely
MAX_CALLS_PER_INTERVAL: Final = 80
MAX_TRIAL_CALLS: Final = 60  # calls in a trial: few, because a trial may reduce the throughput
MIN_DURATION_SECONDS: Final = 1e-9  # shortest duration, even if the clock did not advance
BUSY_SHARE: Final = 0.75  # share of the limit that must be in use on average
GROW_BELOW_RATIO: Final = 1.08  # relative to the baseline: the limit grows below this
LOWER_ABOVE_RATIO: Final = 1.18  # relative to the baseline: the limit falls above this
MAX_SLOWDOWN_SHARE: Final = 0.45  # relative to the growth of the limit: a step is reverted if durations grow by more
NOISE_RATIO: Final = 1.04  # relative to the baseline: smaller differences are noise
NOTABLE_FALL_RATIO: Final = 0.93  # relative to the earlier duration: smaller decreases are noise
NOTABLE_RISE_RATIO: Final = 1.15  # relative to the earlier duration: smaller increases are noise
GROWTH_FACTOR: Final = 1.1  # the limit grows by this factor in a step
FAST_GROWTH_FACTOR: Final = 1.25  # larger steps would exceed the knee so far that the p99 grows by more than half
STEPS_BEFORE_FAST_GROWTH: Final = 2  # steps up in a row before the limit grows by FAST_GROWTH_FACTOR
INTERVALS_BETWEEN_TRIALS: Final = 16  # intervals between two trials
# an interval whose calls are somewhat slower than the baseline counts as three, so the next trial is sooner
DOUBTFUL_INTERVAL_WEIGHT: Final = 3
TRIAL_LIMIT_SHARE: Final = 0.75  # limit of a trial, as a share of the limit before it
EXCLUSION_CALLS: Final = 300  # a limit that a probe showed to be too high stays excluded for this number of calls
EXCLUSION_CALLS_PER_PROBE_CALL: Final = 30  # or for this number times the probe's calls, if that is more
EXCLUSION_CALLS_AFTER_REVERT: Final = 60  # a limit whose step was reverted stays excluded for this number of calls


class AutoConcurrency:
    """The concurrency limit of one group in this process."""

    def __init__(self, most: int, clock: Clock) -> None:
        self.limit = 1
        self.most = most
        self._clock = clock
        self._baseline = 0.0  # seconds; 0: not measured yet
        self._spread = 0.0  # variance of durations below the knee, relative to their squared mean
        self._steps = STEPS_BEFORE_FAST_GROWTH  # consecutive steps up
        self._former = 1  # limit before the last step or probe
        self._probed = 0  # limit of the current probe; 0: none
        self._since_trial = INTERVALS_BETWEEN_TRIALS  # the first trial runs as soon as the limit has settled
        # the lowest limit that is known to be too high, and for how many more calls this knowledge is valid
        self._excluded_limit, self._excluded_calls = most + 1, 0
        self._before: tuple[int, float] | None = None  # limit and duration before the limit was lowered
        self._is_trial = False
        self._busy_slots, self._busy_seconds, self._noted = 0, 0.0, clock.monotonic()
        self._begin(0.0)

    async def measure_slot(self, call: HandlerCall, _: Worker, batch: Batch) -> object:
        """Measure how long a slot is busy, including claims and pauses. A stage of `HandlerSlots._call_of`."""
        self.begin()
        try:
            return await call(batch)
        finally:
            self.end()

    async def measure(self, call: HandlerCall, worker: Worker, batch: Batch) -> object:
        """Measure the duration of each handler call. A stage of `HandlerSlots._call_of`."""
        began, has_returned = self._clock.monotonic(), False
        try:
            result = await call(batch)
            has_returned = True
            return result
        finally:
            if worker.expired:
                self.record_expiry(began)
            elif has_returned:
                self.record_success(began)

    def begin(self) -> None:
        """Called when a slot starts a batch."""
        self._note()
        self._busy_slots += 1

    def end(self) -> None:
        """Called when a slot ends a batch."""
        self._note()
        self._busy_slots -= 1

    def record_success(self, began: float) -> None:
        """Called when a call that began at `began` (monotonic) has succeeded. Failed calls are not measured."""
        if self._from <= began < self._to:
            seconds = self._clock.monotonic() - began
            self._calls += 1
            self._seconds += seconds
            self._squares += seconds * seconds

    def record_expiry(self, began: float) -> None:
        """Called when a call did not end at its deadline, so its duration is not known."""
        self._expired += self._from <= began < self._to

    def _note(self) -> float:
        """Add the time since this method's last call to the busy time, once per busy slot. Returns the time now."""
        now = self._clock.monotonic()
        self._busy_seconds += self._busy_slots * (now - self._noted)
        self._noted = now
        return now

    def poll(self) -> int:
        """Evaluate the interval if it is complete. Returns the change of the limit."""
        now, limit = self._note(), self.limit
        if not self._is_over(now):
            return self.limit - limit
        duration = max(self._seconds, MIN_DURATION_SECONDS) / max(self._calls, 1)
        if self._busy_seconds >= BUSY_SHARE * limit * (now - self._began):
            if 2 * self._expired > self._calls + self._expired:
                self._retreat()
            else:
                self._judge(duration)
        elif self._before is not None:  # the slots were not busy, so the durations cannot be compared
            self.limit = self._before[0] if self._is_trial else limit
            self._before, self._is_trial = None, False
        else:
            self._probed = 0
        self._begin(duration if self.limit < limit else 0.0)
        return self.limit - limit

    def _begin(self, settling_seconds: float) -> None:
        """Begin an interval. Calls that begin within `settling_seconds` do not count, because older calls still run."""
        self._began = self._note()
        self._from, self._to = self._began + settling_seconds, inf
        self._calls, self._expired = 0, 0
        self._seconds, self._squares, self._busy_seconds = 0.0, 0.0, 0.0

    def _is_over(self, now: float) -> bool:
        """Return whether the interval has enough calls.

        Short calls end first, which would reduce the mean. So once enough calls have begun, the interval of a probe or
        trial accepts no more calls, and ends when the accepted calls have ended. The limit before a probe is restored
        as soon as no more calls are accepted.
        """
        ended, twice = self._calls + self._expired, 2 * self.limit
        if not self._probed and self._before is None:
            if self.limit == 1 and self._steps:
                return ended >= MIN_FIRST_INTERVAL_CALLS
            if self._steps:
                return ended >= max(self._calls_to_tell(self._max_ratio(self.limit) - 1), 2 * self._former)
            return now - self._from >= INTERVAL_SECONDS and ended >= max(MIN_INTERVAL_CALLS, twice)
        if self._to == inf:
            if self._probed:
                least = self._calls_to_tell(self._max_ratio(self._probed) - 1)
            else:
                least = max(min(self._calls_to_tell(1 - NOTABLE_FALL_RATIO), MAX_TRIAL_CALLS), twice)
            if ended + self.limit >= least:
                self._to = now
                self.limit = self._former if self._probed else self.limit
        return now >= self._to + 2 * self._baseline  # long enough for a call that waits for another call

    def _calls_to_tell(self, difference: float) -> int:
        """Return how many calls show that a difference of their mean duration is not chance (two standard errors)."""
        return min(MAX_CALLS_PER_INTERVAL, max(MIN_CALLS_WHILE_CHANGING, ceil(4 * self._spread / difference**2)))

    def _judge(self, duration: float) -> None:
        if self._before is not None and self._compare(duration, *self._before):
            return
        if not self._probed and (self.limit == 1 or not self._steps):
            self._spread = max(0.0, self._squares / self._calls / duration**2 - 1)
        if not self._probed and self.limit == 1:
            self._baseline = duration
        self._excluded_calls -= self._calls
        if self._excluded_calls <= 0:
            self._excluded_limit = self.most + 1
        ratio = duration / self._baseline
        self._since_trial += 1 if ratio < GROW_BELOW_RATIO else DOUBTFUL_INTERVAL_WEIGHT
        if self._probed:
            self._end_probe(ratio)
        elif self._steps:
            self._end_step(duration)
        elif ratio > LOWER_ABOVE_RATIO + self._standard_error():
            self._lower(self.limit / ratio, duration)
        elif self._since_trial >= INTERVALS_BETWEEN_TRIALS:
            self._is_trial = True
            self._lower(self.limit * TRIAL_LIMIT_SHARE, duration)
        elif ratio < GROW_BELOW_RATIO and self._next() < self._excluded_limit:
            self._former, self._probed = self.limit, self._next()
            self.limit = self._probed

    def _standard_error(self) -> float:
        """Return the standard error of the mean duration of the interval's calls."""
        return sqrt(self._spread / self._calls)

    def _retreat(self) -> None:
        """Halve the limit because most calls reach their deadline, so that there are no durations to compare."""
        self.limit = max(1, self.limit // 2)
        self._steps, self._probed, self._before, self._is_trial = 0, 0, None, False

    def _compare(self, duration: float, former_limit: int, former: float) -> bool:
        """Compare `duration`, at the lowered limit, with `former`, at `former_limit`, and choose the next limit.

        Returns False if `duration` must be judged as usual, because more concurrency still makes calls slower.
        """
        share, fell_to = self.limit / former_limit, duration / former
        was_trial, self._before, self._is_trial = self._is_trial, None, False
        if was_trial:
            self._since_trial = 0
        if (
            not was_trial and duration <= (LOWER_ABOVE_RATIO + self._standard_error()) * self._baseline
        ):  # the old limit was too high
            self._excluded_limit, self._excluded_calls = former_limit, EXCLUSION_CALLS
        elif fell_to > NOTABLE_RISE_RATIO:  # something else has changed, so wait for the next interval
            pass
        elif fell_to > max((1 + TRIAL_LIMIT_SHARE) / 2, NOTABLE_FALL_RATIO - self._standard_error()):
            # calls were below the knee, or the handler itself is slower
            self.limit = former_limit
            if not was_trial:
                self._since_trial = (
                    INTERVALS_BETWEEN_TRIALS  # the knee may have moved, so run a trial at the next interval
                )
            if not was_trial or duration > NOISE_RATIO * self._baseline:  # the excluded limit assumed another baseline
                self._excluded_limit = self.most + 1
            self._measure_baseline(duration)
        elif not was_trial:  # more concurrency still makes calls slower
            return False
        elif fell_to <= share * GROW_BELOW_RATIO:  # still above the knee: durations fell in proportion to the calls
            self._is_trial = True
            self._lower(self.limit * TRIAL_LIMIT_SHARE, duration)
        else:  # the throughput was lower, so the calls are below the knee
            self._measure_baseline(duration)
            self.limit = max(self.limit, ceil(former_limit * fell_to))
        return True

    def _measure_baseline(self, duration: float) -> None:
        """Set the baseline to `duration`, measured below the knee. If old and new baseline are close, average them."""
        if 1 / NOTABLE_RISE_RATIO < duration / self._baseline < NOTABLE_RISE_RATIO:
            self._refine_baseline(duration)
        else:
            self._baseline = duration

    def _refine_baseline(self, duration: float) -> None:
        self._baseline += (duration - self._baseline) * self._calls / (self._calls + MIN_INTERVAL_CALLS)

    def _next(self) -> int:
        growth = FAST_GROWTH_FACTOR if self._steps >= STEPS_BEFORE_FAST_GROWTH else GROWTH_FACTOR
        return min(self.most, max(self.limit + 1, int(self.limit * growth)))

    def _max_ratio(self, limit: int) -> float:
        """Return how many times the baseline a call may take, at most, after a step from the previous limit."""
        return max(NOISE_RATIO, 1 + MAX_SLOWDOWN_SHARE * (limit / self._former - 1))

    def _is_too_large(self, limit: int, ratio: float) -> bool:
        """Return whether the step to `limit` made calls too slow, beyond the uncertainty of the measurement."""
        return ratio > self._max_ratio(limit) + self._standard_error()

    def _end_step(self, duration: float) -> None:
        """Take the next step, or revert the last one."""
        if self._is_too_large(self.limit, duration / self._baseline):
            self._revert(self.limit, EXCLUSION_CALLS_AFTER_REVERT)
            return
        self._refine_baseline(duration)
        if (limit := self._next()) < self._excluded_limit:
            self._former, self.limit = self.limit, limit
            self._steps += 1
        else:
            self._steps = 0

    def _end_probe(self, ratio: float) -> None:
        probed, self._probed = self._probed, 0
        if self._calls < self._former or self._is_too_large(probed, ratio):
            known_for = max(EXCLUSION_CALLS, EXCLUSION_CALLS_PER_PROBE_CALL * self._calls)
            # shorter if durations vary widely, because waiting for another call then matters less
            self._revert(probed, max(100, round(known_for / (1 + 20 * self._spread))))
        else:
            self.limit, self._steps = probed, 1

    def _revert(self, limit: int, known_for: int) -> None:
        self._excluded_limit, self._excluded_calls = limit, known_for
        self.limit, self._steps = self._former, 0

    def _lower(self, to: float, duration: float) -> None:
        lower = max(1, min(self.limit - 1, round(to)))
        self._steps = 0
        if lower == self.limit:  # the limit is 1 and cannot be lowered
            self._is_trial, self._since_trial = False, 0
            return
        self._before, self.limit = (self.limit, duration), lower
