"""How large micro-batches are, by how long the last one took."""

from __future__ import annotations

from rmqd.spark.pace import GROWTH, Pace


def after(pace: Pace, seconds: float, count: int | None = None) -> int:
    """The size after a batch of so many messages, all that it may have unless said."""
    pace.began(pace.size(0.0) if count is None else count, 0.0)
    pace.ended(seconds)
    return pace.size(seconds)


def test_full_batches_grow_to_what_fits() -> None:
    """Step by step, and no further than what fits into the target."""
    pace = Pace(10, target_seconds=2.0)
    assert pace.size(0.0) == 10
    assert after(pace, 0.1) == 10 * GROWTH
    assert after(pace, 0.5) == 320
    assert after(pace, 2.0) == 320


def test_a_slow_batch_makes_the_next_one_smaller() -> None:
    """Though not below what keeps all slots busy: the first batch pays for the start of Spark's processes."""
    pace = Pace(10, target_seconds=2.0)
    assert after(pace, 0.1) == 80
    assert after(pace, 4.0) == 40
    assert after(pace, 60.0) == 10


def test_a_small_batch_says_nothing() -> None:
    """An idle group's batches have one message each, in the time that Spark takes for any."""
    pace = Pace(10, target_seconds=2.0)
    assert after(pace, 0.1) == 80
    assert after(pace, 0.3, count=1) == 80


def test_a_fixed_size_stays() -> None:
    """max_offsets_per_trigger."""
    pace = Pace(10, fixed=500)
    assert after(pace, 60.0) == 500
    assert after(pace, 0.01) == 500


def test_a_rate_is_kept_to() -> None:
    """What was taken too much is waited for, and what an idle time would have allowed is lost."""
    pace = Pace(10, fixed=1000, per_second=100, target_seconds=2.0)
    assert pace.size(0.0) == 100
    pace.began(150, 0.0)  # a message of each queue at least
    pace.ended(0.1)
    assert pace.size(0.1) == 0
    assert pace.size(0.4) == 0
    assert pace.size(1.0) == 50
    assert pace.size(100.0) == 200
