"""The time of a pop by the broker's clock, converted to the clock of a process that may read it late."""

from __future__ import annotations

import pytest

from rmqd.consumer.pop.pop_loop import CLOCK_DIFFERENCE_VALID_SECONDS, PopClock

SOON = 0.001


class Pops:
    """Pops by a broker whose clock shows `ahead` seconds more than this process's."""

    def __init__(self, ahead: float = 0.0) -> None:
        self.now = 1000.0
        self.ahead = ahead
        self._time = PopClock()

    def dated(self, *, held: float = 0.0, read_after: float = SOON) -> float:
        """The error of the computed time of a pop, in seconds, if it was held and then read after a delay."""
        asked_at = self.now
        self.now += held
        popped_at = self.now
        self.now += read_after
        return self._time.popped_at(round((popped_at + self.ahead) * 1000), asked_at, self.now) - popped_at


def test_a_pop_that_is_read_late_gets_the_same_time_as_one_read_soon() -> None:
    for ahead in [0.0, 3e7, -500.0]:
        pops = Pops(ahead)
        assert pops.dated() == pytest.approx(0, abs=0.002)
        assert pops.dated(held=10.0, read_after=40.0) == pytest.approx(0, abs=0.002)
        assert [pops.dated(read_after=5.0) for _ in range(8)] == pytest.approx([0] * 8, abs=0.002)


def test_the_first_pop_gets_the_time_when_it_was_read() -> None:
    assert Pops().dated(held=10.0, read_after=4.0) == pytest.approx(4.0, abs=0.002)


def test_all_pops_that_are_read_after_a_long_delay_get_the_right_time() -> None:
    """A suspended process finds several responses when it resumes."""
    pops = Pops()
    pops.dated()
    assert pops.dated(read_after=10 * CLOCK_DIFFERENCE_VALID_SECONDS) == pytest.approx(0, abs=0.002)
    pops.now -= 5 * CLOCK_DIFFERENCE_VALID_SECONDS
    assert pops.dated(read_after=5 * CLOCK_DIFFERENCE_VALID_SECONDS) == pytest.approx(0, abs=0.002)


def test_a_clock_that_is_set_forward_is_followed_at_once() -> None:
    pops = Pops()
    pops.dated()
    pops.ahead = 30.0
    assert pops.dated() == pytest.approx(0, abs=0.002)
    assert pops.dated(held=10.0, read_after=20.0) == pytest.approx(0, abs=0.002)


def test_a_clock_that_is_set_back_is_followed_once_a_pop_is_older_than_its_request() -> None:
    pops = Pops()
    pops.dated()
    pops.ahead = -30.0
    assert pops.dated(held=10.0) == pytest.approx(0, abs=0.002)
    assert pops.dated(held=10.0, read_after=20.0) == pytest.approx(0, abs=0.002)


def test_a_clock_that_is_set_back_by_less_than_pops_are_held_is_followed_in_minutes() -> None:
    """Until then messages seem to be invisible for a shorter time than they are."""
    pops = Pops()
    pops.dated()
    pops.ahead = -5.0
    assert pops.dated(held=10.0) == pytest.approx(-5.0, abs=0.002)
    while pops.now < 1000.0 + 2 * CLOCK_DIFFERENCE_VALID_SECONDS + 20.0:
        late = pops.dated(held=10.0)
    assert late == pytest.approx(0, abs=0.002)
