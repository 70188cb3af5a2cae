"""`concurrency: auto`: how many calls at once a handler is given, found by how long its calls take.

What a handler calls has a *knee*: up to so many calls at once each takes its time, and beyond that they only wait for
each other. Fewer are slower than need be; more bring nothing, and take longer. The knee moves, and nobody tells of it.

Time goes by in intervals, each of which gives the mean duration of calls that began in it, at one limit. It tells
something only if the slots were busy: if there were messages for (nearly) all calls that the limit allows. What else
keeps a slot, such as the claims of `deduplicate` and pauses before a repetition, makes it busy as well, and is no part
of a duration. How many calls an interval needs depends on how much they differ, and on how small a difference is to be
told: a few where they all take the same time, so that slow calls are followed as well.

- The *baseline* is how long a call takes below the knee. It is measured where it is sure: with one call at a time at
  the start, and later by *trials* with fewer calls than the limit. If durations fall as the calls do, these were beyond
  the knee, and the trial goes on below. If they do not, they are the baseline: of now, however it was before.
- While durations stay at the baseline, the limit grows, step by step. A step that makes them longer, by about half of
  what it would beyond the knee, is taken back, and not made again for some hundred calls.
- The first step from where the limit had come to rest is a *probe*: the limit is back before it is known what its
  calls have shown. Where few calls are made at once, one too many can have every fourth wait for another one to end,
  for the whole of its time; so these are kept below one in a hundred.
- When durations are far above the baseline, the limit falls to where they would be the baseline. If they do not fall
  with it, the handler has become slower by itself, and what they are is the baseline; a trial looks whether that holds.
- If most calls run into their deadline, there are no durations, and the limit is halved.

The same idea, with a baseline that is only the least duration seen so far, is TCP Vegas.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, inf, sqrt
from typing import Final

from rmqd.clock import Clock
from rmqd.consumer.handling.failures import Call
from rmqd.handler_api import Batch

INTERVAL_SECONDS: Final = 0.5  # at least, while the limit stays
LEAST_CALLS: Final = 40  # of an interval then, or twice the limit
FIRST_CALLS: Final = 20  # of the first one
FEW_CALLS: Final = 4  # while the limit changes
MOST_CALLS: Final = 80  # or twice the limit: where calls differ more, what an interval tells is less sure
MOST_TRIAL_CALLS: Final = 60  # fewer calls a second than there could be
TINY_SECONDS: Final = 1e-9  # what calls take at least, even by a clock that stands still
BUSY_SHARE: Final = 0.75  # of the limit, that calls take on average
GROWS_BELOW: Final = 1.08  # of the baseline, from where the limit rests
FALLS_ABOVE: Final = 1.18  # likewise
BEYOND: Final = 0.45  # of what a step adds to the limit, which is what it adds to durations beyond the knee
LITTLE: Final = 1.04  # of the baseline: may have any cause
FELL: Final = 0.93  # of what it was before: by less a duration has not fallen
ROSE: Final = 1.15
GROWTH: Final = 1.1
FAST_GROWTH: Final = 1.25  # no farther beyond the knee than a p99 of 1.5 times what it could be
FAST_AFTER: Final = 2  # steps in a row
TRIAL_EVERY: Final = 16  # intervals
IN_DOUBT: Final = 3  # of these an interval counts for whose calls take neither as long as the baseline nor far longer
TRIAL_SHARE: Final = 0.75  # of the limit
KNOWN_CALLS: Final = 300  # for which a step is not made again that a probe has shown to be too large
KNOWN_FOR_EACH: Final = 30  # likewise, for each call of the probe, if that is more
KNOWN_CALLS_ON_THE_WAY: Final = 60  # likewise, if that was seen while the limit grew, in passing


class AutoConcurrency:
    """The limit of one group in this process."""

    def __init__(self, most: int, clock: Clock) -> None:
        self.limit = 1
        self.most = most
        self._clock = clock
        self._baseline = 0.0  # seconds; 0: not measured yet
        self._spread = 0.0  # of durations below the knee: their variance, where the mean is 1
        self._steps = FAST_AFTER  # by which the limit has grown in a row
        self._former = 1  # limit before the last step, or the probe
        self._probed = 0  # limit of the probe that is under way
        self._since_trial = TRIAL_EVERY  # so the first one comes as soon as the limit has come to rest
        self._too_much, self._known_for = most + 1, 0  # a limit beyond the knee, and for how many calls that holds
        self._before: tuple[int, float] | None = None  # limit and duration before it was lowered: on trial, or for good
        self._is_trial = False
        self._under_way, self._busy_seconds, self._noted = 0, 0.0, clock.monotonic()
        self._begin(0.0)

    def around_batch(self, call: Call) -> Call:
        """A call for one worker with all that keeps its slot: what is asked before and after, and pauses in between."""

        async def busy(batch: Batch) -> object:
            self.begin()
            try:
                return await call(batch)
            finally:
                self.end()

        return busy

    def around(self, call: Call, is_expired: Callable[[], bool]) -> Call:
        """The handler's call alone, which is measured. `is_expired` tells whether it is past its deadline."""

        async def measured(batch: Batch) -> object:
            began, has_returned = self._clock.monotonic(), False
            try:
                result = await call(batch)
                has_returned = True
                return result
            finally:
                if is_expired():
                    self.ran_out(began)
                elif has_returned:
                    self.took(began)

        return measured

    def begin(self) -> None:
        """A slot has a batch."""
        self._note()
        self._under_way += 1

    def end(self) -> None:
        """It is through with it."""
        self._note()
        self._under_way -= 1

    def took(self, began: float) -> None:
        """A call that `began` then (monotonic) has succeeded: how soon one fails says nothing."""
        if self._from <= began < self._to:
            seconds = self._clock.monotonic() - began
            self._calls += 1
            self._seconds += seconds
            self._squares += seconds * seconds

    def ran_out(self, began: float) -> None:
        """A call did not end at its deadline. How long it would have taken is not known."""
        self._expired += self._from <= began < self._to

    def _note(self) -> float:
        """Add up how many calls were under way, for how long."""
        now = self._clock.monotonic()
        self._busy_seconds += self._under_way * (now - self._noted)
        self._noted = now
        return now

    def look(self) -> int:
        """Take what was measured into account, if that is enough by now. Returns by how much the limit has changed."""
        now, limit = self._note(), self.limit
        if not self._is_over(now):
            return self.limit - limit
        duration = max(self._seconds, TINY_SECONDS) / max(self._calls, 1)
        if self._busy_seconds >= BUSY_SHARE * limit * (now - self._began):
            if 2 * self._expired > self._calls + self._expired:
                self._retreat()
            else:
                self._judge(duration)
        elif self._before is not None:  # messages became few: nothing is to be compared
            self.limit = self._before[0] if self._is_trial else limit
            self._before, self._is_trial = None, False
        else:
            self._probed = 0
        self._begin(duration if self.limit < limit else 0.0)
        return self.limit - limit

    def _begin(self, settling_seconds: float) -> None:
        """Begin an interval, once the calls that began under a higher limit have about ended."""
        self._began = self._note()
        self._from, self._to = self._began + settling_seconds, inf
        self._calls, self._expired = 0, 0
        self._seconds, self._squares, self._busy_seconds = 0.0, 0.0, 0.0

    def _is_over(self, now: float) -> bool:
        """Whether the interval has enough calls.

        Those that end first are the shorter ones. So the intervals of probes and trials are closed when the calls under
        way make up the number, and over when these have ended, too. A probe's limit need not stay for that.
        """
        ended, twice = self._calls + self._expired, 2 * self.limit
        if not self._probed and self._before is None:
            if self.limit == 1 and self._steps:
                return ended >= FIRST_CALLS
            if self._steps:
                return ended >= max(self._calls_to_tell(self._line(self.limit) - 1), 2 * self._former)
            return now - self._from >= INTERVAL_SECONDS and ended >= max(LEAST_CALLS, twice)
        if self._to == inf:
            if self._probed:
                least = self._calls_to_tell(self._line(self._probed) - 1)
            else:
                least = max(min(self._calls_to_tell(1 - FELL), MOST_TRIAL_CALLS), twice)
            if ended + self.limit >= least:
                self._to = now
                self.limit = self._former if self._probed else self.limit
        return now >= self._to + 2 * self._baseline  # as long as a call takes that waits for another one

    def _calls_to_tell(self, difference: float) -> int:
        """How many calls tell a difference of their mean duration from chance: of two standard errors."""
        return min(MOST_CALLS, max(FEW_CALLS, ceil(4 * self._spread / difference**2)))

    def _judge(self, duration: float) -> None:
        if self._before is not None and self._compare(duration, *self._before):
            return
        if not self._probed and (self.limit == 1 or not self._steps):
            self._spread = max(0.0, self._squares / self._calls / duration**2 - 1)
        if not self._probed and self.limit == 1:
            self._baseline = duration
        self._known_for -= self._calls
        if self._known_for <= 0:
            self._too_much = self.most + 1
        ratio = duration / self._baseline
        self._since_trial += 1 if ratio < GROWS_BELOW else IN_DOUBT
        if self._probed:
            self._end_probe(ratio)
        elif self._steps:
            self._end_step(duration)
        elif ratio > FALLS_ABOVE + self._doubt():
            self._lower(self.limit / ratio, duration)
        elif self._since_trial >= TRIAL_EVERY:
            self._is_trial = True
            self._lower(self.limit * TRIAL_SHARE, duration)
        elif ratio < GROWS_BELOW and self._next() < self._too_much:
            self._former, self._probed = self.limit, self._next()
            self.limit = self._probed

    def _doubt(self) -> float:
        """The standard error of a mean of so many calls' durations."""
        return sqrt(self._spread / self._calls)

    def _retreat(self) -> None:
        """Most calls do not even end: fewer of them may. There are no durations to compare."""
        self.limit = max(1, self.limit // 2)
        self._steps, self._probed, self._before, self._is_trial = 0, 0, None, False

    def _compare(self, duration: float, former_limit: int, former: float) -> bool:
        """What a lower limit has shown. Returns whether that is all that this interval has to say."""
        share, fell_to = self.limit / former_limit, duration / former
        was_trial, self._before, self._is_trial = self._is_trial, None, False
        if was_trial:
            self._since_trial = 0
        if not was_trial and duration <= (FALLS_ABOVE + self._doubt()) * self._baseline:  # it was the knee
            self._too_much, self._known_for = former_limit, KNOWN_CALLS
        elif fell_to > ROSE:  # something else has changed meanwhile, which the next interval shows
            pass
        elif fell_to > max((1 + TRIAL_SHARE) / 2, FELL - self._doubt()):
            # calls were below the knee, or the handler is slower by itself
            self.limit = former_limit
            if not was_trial:
                self._since_trial = TRIAL_EVERY  # or the knee moved meanwhile, which the next one shows
            if not was_trial or duration > LITTLE * self._baseline:  # what was too much went by another baseline
                self._too_much = self.most + 1
            self._measure_baseline(duration)
        elif not was_trial:  # calls are beyond the knee still
            return False
        elif fell_to <= share * GROWS_BELOW:  # likewise: durations fell as the calls did
            self._is_trial = True
            self._lower(self.limit * TRIAL_SHARE, duration)
        else:  # there were fewer calls a second, so these are below the knee
            self._measure_baseline(duration)
            self.limit = max(self.limit, ceil(former_limit * fell_to))
        return True

    def _measure_baseline(self, duration: float) -> None:
        """Take a duration below the knee for the baseline, together with what was measured before if it may be that."""
        if 1 / ROSE < duration / self._baseline < ROSE:
            self._refine_baseline(duration)
        else:
            self._baseline = duration

    def _refine_baseline(self, duration: float) -> None:
        self._baseline += (duration - self._baseline) * self._calls / (self._calls + LEAST_CALLS)

    def _next(self) -> int:
        growth = FAST_GROWTH if self._steps >= FAST_AFTER else GROWTH
        return min(self.most, max(self.limit + 1, int(self.limit * growth)))

    def _line(self, limit: int) -> float:
        """The ratio to the baseline above which a step from the former limit to this one was too large."""
        return max(LITTLE, 1 + BEYOND * (limit / self._former - 1))

    def _is_too_large(self, limit: int, ratio: float) -> bool:
        """Whether that step was, as far as so many calls can tell."""
        return ratio > self._line(limit) + self._doubt()

    def _end_step(self, duration: float) -> None:
        """Go on growing, or back."""
        if self._is_too_large(self.limit, duration / self._baseline):
            self._take_back(self.limit, KNOWN_CALLS_ON_THE_WAY)
            return
        self._refine_baseline(duration)
        if (limit := self._next()) < self._too_much:
            self._former, self.limit = self.limit, limit
            self._steps += 1
        else:
            self._steps = 0

    def _end_probe(self, ratio: float) -> None:
        probed, self._probed = self._probed, 0
        if self._calls < self._former or self._is_too_large(probed, ratio):
            known_for = max(KNOWN_CALLS, KNOWN_FOR_EACH * self._calls)
            # the more calls differ by themselves, the less does it matter that some wait
            self._take_back(probed, max(100, round(known_for / (1 + 20 * self._spread))))
        else:
            self.limit, self._steps = probed, 1

    def _take_back(self, limit: int, known_for: int) -> None:
        self._too_much, self._known_for = limit, known_for
        self.limit, self._steps = self._former, 0

    def _lower(self, to: float, duration: float) -> None:
        lower = max(1, min(self.limit - 1, round(to)))
        self._steps = 0
        if lower == self.limit:  # it is 1
            self._is_trial, self._since_trial = False, 0
            return
        self._before, self.limit = (self.limit, duration), lower
