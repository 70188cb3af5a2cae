"""The jumping clock: its wall time, its monotonic time, and its callbacks."""

from __future__ import annotations

import time

from rmqd.testing.test_group import JumpingClock


def test_only_the_wall_time_jumps() -> None:
    clock = JumpingClock()
    before, wall = time.monotonic(), clock.wall()
    clock.jump_to(wall + 3600)
    assert 3600 <= clock.wall() - wall < 3660
    assert clock.monotonic() - before < 60
    assert 3590 < clock.jumped_seconds <= 3600


def test_the_wall_time_never_jumps_back() -> None:
    clock = JumpingClock()
    clock.jump_to(clock.wall() - 3600)
    assert clock.jumped_seconds == 0


def test_due_callbacks_are_called_in_the_order_of_their_times() -> None:
    clock, called = JumpingClock(), list[str]()
    clock.call_later(20, called.append, "twenty")
    clock.call_later(10, called.append, "ten")
    clock.call_later(30, called.append, "thirty")
    due = clock.next_due()
    assert due is not None
    assert due - clock.wall() <= 10
    clock.jump_to(clock.wall() + 20)
    assert called == ["ten", "twenty"]
    clock.jump_to(clock.wall() + 10)
    assert called == ["ten", "twenty", "thirty"]
    assert clock.next_due() is None
