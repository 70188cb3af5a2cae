"""Messages that a group skips because of a new start offset, or must handle again because of a reset."""

from __future__ import annotations

from tests.simulation.judging.passed import Passed, Reset
from tests.simulation.ledger import Ledger, Stored
from tests.simulation.loop import SimulatedLoop
from tests.simulation.timeline import Timeline


def test_messages_below_the_first_start_offset_stay_skipped_after_a_second_start() -> None:
    """Seed 9721287: a broker crashed again, and the first commit after the crash counts as another start."""
    passed = _passed()
    passed.begin_anew("a", 1, 4, at=21.0)
    passed.begin_anew("a", 1, 11, at=28.0)
    assert not passed.was_passed(Stored("a", 1, 3), by=20.0)
    assert passed.was_passed(Stored("a", 1, 3), by=23.0)
    assert not passed.was_passed(Stored("a", 1, 4), by=23.0)
    assert passed.was_passed(Stored("a", 1, 10), by=28.0)
    assert not passed.was_passed(Stored("a", 0, 3), by=28.0)


def test_messages_from_a_lower_second_start_offset_on_must_be_handled() -> None:
    passed = _passed()
    passed.begin_anew("a", 1, 11, at=21.0)
    passed.begin_anew("a", 1, 5, at=28.0)
    assert passed.is_passed(Stored("a", 1, 4))
    assert not passed.is_passed(Stored("a", 1, 5))


def test_a_reset_repeats_messages_only_after_it_was_reported() -> None:
    """Seed 826550634: flow control paused the pulls, so the owner committed for 3 s more."""
    passed, place = _passed(), Stored("a", 1, 20)
    passed.reset(Reset(6.3, "a", 1, 15, end=94))
    assert passed.must_come_again(place, by=9.2) == 6.3
    passed.report("a", 1, at=9.2)
    assert passed.must_come_again(place, by=9.3) == float("-inf")
    assert passed.must_come_again(place, by=11.3) == 6.3


def _passed() -> Passed:
    loop = SimulatedLoop()
    timeline = Timeline(loop)
    loop.close()
    ledger = Ledger(timeline, 16, repeats_in_place=True, is_manual=False)
    return Passed(ledger, lambda reset: False, lambda at: False)
