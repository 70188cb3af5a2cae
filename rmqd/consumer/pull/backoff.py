"""How long a pull loop waits before it asks again."""

from __future__ import annotations

from typing import Final

from rmqd.backoff import doubled, spread
from rmqd.errors import FlowControlError, GoAwayError, RmqdError, SystemBusyError

EXCEPTION_DELAY_SECONDS: Final = 1.0  # Java: pullTimeDelayMillsWhenException
BROKER_FLOW_CONTROL_SECONDS: Final = 0.02  # Java: PULL_TIME_DELAY_MILLS_WHEN_BROKER_FLOW_CONTROL
UNHELD_DELAY_SECONDS: Final = 0.1
MOST_UNHELD_SECONDS: Final = 1.0
MOST_FLOW_CONTROL_SECONDS: Final = 1.0
MOST_BUSY_SECONDS: Final = 8.0


def after_error() -> float:
    """Seconds after a failure of which nothing more is known."""
    return spread(EXCEPTION_DELAY_SECONDS)


class PullBackoff:
    """Of one queue. What a broker says again and again, it is asked less and less often."""

    def __init__(self) -> None:
        self._refusals = 0  # one after the other
        self._went_away = False  # that was the last answer
        self._unheld = 0

    def answered(self) -> None:
        """The broker gave messages, or held the pull until there were some."""
        self._refusals = self._unheld = 0
        self._went_away = False

    def after_nothing(self) -> float:
        """Seconds after an answer that says "nothing" without waiting, as of a broker that shuts down, or of a slave
        that has not got as far."""
        self._unheld += 1
        return doubled(UNHELD_DELAY_SECONDS, self._unheld, MOST_UNHELD_SECONDS)

    def after(self, error: RmqdError, *, at_master: bool) -> float:
        """Seconds after a failure; spread, so that the queues of a broker that comes back do not ask all at once.

        A slave that is not to be read (slaveReadEnable: false) says that it is busy, and no more: the master that is
        waited for may be back any moment.
        """
        if isinstance(error, GoAwayError):
            is_first, self._went_away = not self._went_away, True
            return 0.0 if is_first else after_error()
        if isinstance(error, FlowControlError):
            self._refusals += 1
            return doubled(BROKER_FLOW_CONTROL_SECONDS, self._refusals, MOST_FLOW_CONTROL_SECONDS)
        if isinstance(error, SystemBusyError) and at_master:
            self._refusals += 1
            return spread(doubled(EXCEPTION_DELAY_SECONDS, self._refusals, MOST_BUSY_SECONDS))
        return after_error()
