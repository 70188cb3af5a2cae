"""`concurrency: auto`: how many calls at once a handler is given, found by how long its calls take.

What a handler calls has a *knee*: up to so many calls at once each takes its time, and beyond that they only wait for
each other. Fewer are slower than need be; more bring nothing, and take longer. The knee moves, and nobody tells of it.

Time goes by in intervals, each of which gives the mean duration of the calls that began in it, at one limit. It tells
something only if the slots were busy: if there were messages for (nearly) all calls that the limit allows. What else
keeps a slot, such as the claims of `deduplicate` and pauses before a repetition, makes it busy as well, and is no part
of a duration.

- The *baseline* is how long a call takes below the knee. It is measured where it is sure: with one call at a time at
  the start, and later by *trials* with fewer calls than the limit. If durations fall as the calls do, these were beyond
  the knee, and the trial goes on below. If they do not, they are the baseline: of now, however it was before.
- While durations are about the baseline, the limit grows: quickly at first, and after some steps in a row.
- When they are far above it, the limit falls to where they would be the baseline. If they do not fall with it, the
  handler has become slower by itself, and what they are is the baseline.
- If most calls run into their deadline, there are no durations, and the limit is halved.

The same idea, with a baseline that is only the least duration seen so far, is TCP Vegas.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import Final

from rmqd.clock import Clock
from rmqd.consumer.handling.failures import Call
from rmqd.handler_api import Batch

INTERVAL_SECONDS: Final = 0.5  # at least
LEAST_CALLS: Final = 40  # in an interval, or twice the limit
FEW_CALLS: Final = 10  # while the limit grows fast
BUSY_SHARE: Final = 0.75  # of the limit, that calls take on average
GROWS_BELOW: Final = 1.08  # of the baseline: at the knee itself a call takes as long as below it
FALLS_ABOVE: Final = 1.18  # so the limit comes to rest at most so far beyond the knee
FELL: Final = 0.93  # of what it was before: by less a duration has not fallen
ROSE: Final = 1.15
WORSE: Final = 0.93  # of the calls a second that there were before
GROWTH: Final = 1.1
FAST_GROWTH: Final = 1.5
FAST_AFTER: Final = 2  # steps in a row
TRIAL_EVERY: Final = 16  # intervals
TRIAL_SHARE: Final = 0.75  # of the limit
KNOWN_FOR: Final = 24  # intervals, in which the limit does not grow again to what was too much


class AutoConcurrency:
    """The limit of one group in this process."""

    def __init__(self, most: int, clock: Clock) -> None:
        self.limit = 1
        self._most = most
        self._clock = clock
        self._baseline = 0.0  # seconds; 0: not measured yet
        self._steps = FAST_AFTER  # by which the limit has grown in a row
        self._since_trial = 0
        self._too_much, self._known_for = most + 1, 0  # a limit beyond the knee, and for how many intervals that holds
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
        if began >= self._from:
            self._calls += 1
            self._seconds += self._clock.monotonic() - began

    def ran_out(self, began: float) -> None:
        """A call did not end at its deadline. How long it would have taken is not known."""
        self._expired += began >= self._from

    def _note(self) -> float:
        """Add up how many calls were under way, for how long."""
        now = self._clock.monotonic()
        self._busy_seconds += self._under_way * (now - self._noted)
        self._noted = now
        return now

    def look(self) -> int:
        """Take what was measured into account, if that is enough by now. Returns by how much the limit has changed."""
        now, limit = self._note(), self.limit
        least = FEW_CALLS if self._steps >= FAST_AFTER else LEAST_CALLS
        ended = self._calls + self._expired
        if now - self._from < INTERVAL_SECONDS or ended < max(least, 2 * limit):
            return 0
        duration = self._seconds / self._calls if self._calls else 0.0
        if self._busy_seconds >= BUSY_SHARE * limit * (now - self._began):
            if 2 * self._expired > ended:
                self._retreat()
            else:
                self._judge(duration)
        elif self._before is not None:  # messages became few: nothing is to be compared
            self.limit = self._before[0] if self._is_trial else limit
            self._before, self._is_trial = None, False
        self._begin(duration if self.limit != limit else 0.0)
        return self.limit - limit

    def _begin(self, settling_seconds: float) -> None:
        """Begin an interval, once the calls that began under another limit have about ended."""
        self._began = self._note()
        self._from = self._began + settling_seconds
        self._calls, self._expired, self._seconds, self._busy_seconds = 0, 0, 0.0, 0.0

    def _judge(self, duration: float) -> None:
        if self._before is not None:
            self._compare(duration, *self._before)
            return
        if self.limit == 1:
            self._baseline = duration
        self._known_for -= 1
        if self._known_for <= 0:
            self._too_much = self._most + 1
        self._since_trial += 1
        ratio = duration / self._baseline
        if ratio > FALLS_ABOVE:
            self._lower(self.limit / ratio, duration)
        elif ratio < GROWS_BELOW and self.limit < self._too_much - 1:
            self._grow()
        elif self._since_trial >= TRIAL_EVERY:
            self._is_trial = True
            self._lower(self.limit * TRIAL_SHARE, duration)
        else:
            self._steps = 0

    def _retreat(self) -> None:
        """Most calls do not even end: fewer of them may. There are no durations to compare."""
        self.limit = max(1, self.limit // 2)
        self._steps, self._before, self._is_trial = 0, None, False

    def _compare(self, duration: float, former_limit: int, former: float) -> None:
        """What a lower limit has shown."""
        share, fell_to = self.limit / former_limit, duration / former
        was_trial, self._before, self._is_trial = self._is_trial, None, False
        if fell_to > ROSE:  # something else has changed meanwhile, which the next interval shows
            pass
        elif fell_to > FELL:  # calls were below the knee, or the handler is slower by itself
            self._baseline = duration
            self.limit, self._too_much = former_limit, self._most + 1
        elif was_trial and fell_to <= share * GROWS_BELOW:  # as calls do: they are beyond the knee still
            self._is_trial = True
            self._lower(self.limit * TRIAL_SHARE, duration)
        elif not was_trial and share >= WORSE * fell_to:
            self._too_much, self._known_for = former_limit, KNOWN_FOR
        else:  # fewer calls a second: these are below the knee
            self._baseline = duration
            self.limit = max(self.limit, ceil(former_limit * fell_to))
        self._since_trial = 0

    def _grow(self) -> None:
        growth = FAST_GROWTH if self._steps >= FAST_AFTER else GROWTH
        self._steps += 1
        self.limit = min(self._too_much - 1, max(self.limit + 1, int(self.limit * growth)))

    def _lower(self, to: float, duration: float) -> None:
        lower = max(1, min(self.limit - 1, round(to)))
        self._steps = 0
        if lower == self.limit:  # it is 1
            self._is_trial, self._since_trial = False, 0
            return
        self._before, self.limit = (self.limit, duration), lower
