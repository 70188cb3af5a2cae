"""The size of micro-batches, by the duration of the previous ones."""

from __future__ import annotations

from pathlib import Path

from rmqd.spark.handlers.group_source import BatchDurations, store_batch_duration
from rmqd.spark.handlers.range_outcome import MAX_BATCH_MESSAGES, MAX_GROWTH_FACTOR, BatchSizer


def run(pace: BatchSizer, batches: int, *, own: float, each: float, waiting: int = MAX_BATCH_MESSAGES) -> list[int]:
    """The sizes of batches that take `own` seconds, and `each` for every message."""
    sizes = []
    for _ in range(batches):
        size = min(pace.next_size(0.0), waiting)
        pace.batch_started(size, 0.0)
        pace.batch_ended(own + size * each)
        sizes.append(size)
    return sizes


def test_batches_grow_to_the_target_time() -> None:
    """Sizes grow step by step. Spark's own part of a batch does not count."""
    sizes = run(BatchSizer(10, target_seconds=2.0), 40, own=0.3, each=0.001)
    assert sizes[:3] == [10, 10 * MAX_GROWTH_FACTOR, 10 * MAX_GROWTH_FACTOR**2]
    assert all(1800 <= size <= 2200 for size in sizes[4:])


def test_a_slow_handler_has_small_batches() -> None:
    """No batch takes much longer than the target."""
    sizes = run(BatchSizer(10, target_seconds=2.0), 40, own=0.3, each=0.1)
    assert max(sizes) <= 80
    assert all(18 <= size <= 22 for size in sizes[5:])


def test_a_busy_machine_does_not_keep_batches_small() -> None:
    """Spark alone may take longer than the target, for example while its processes start."""
    pace = BatchSizer(4, target_seconds=2.0)
    run(pace, 1, own=13.0, each=0.0)
    assert pace.next_size(0.0) == 4
    sizes = run(pace, 20, own=2.3, each=0.0001)
    assert all(9_000 <= size <= 21_000 for size in sizes[5:])


def test_batch_sizes_follow_a_change() -> None:
    """The handler becomes slower by a hundred times, and then Spark becomes slower."""
    pace = BatchSizer(4, target_seconds=2.0)
    run(pace, 20, own=0.3, each=0.0001)
    assert all(150 <= size <= 400 for size in run(pace, 30, own=0.3, each=0.01)[22:])
    assert all(90 <= size <= 250 for size in run(pace, 30, own=5.0, each=0.01)[15:])
    assert all(150 <= size <= 250 for size in run(pace, 20, own=0.3, each=0.01)[5:])


def test_a_small_batch_does_not_change_the_next_size() -> None:
    """Batches of an idle group have a message or two, and take Spark's minimum time."""
    pace = BatchSizer(10, target_seconds=2.0)
    before = run(pace, 10, own=0.3, each=0.001)[-1]
    run(pace, 50, own=0.3, each=0.001, waiting=2)
    assert pace.next_size(0.0) >= 0.9 * before


def test_the_time_until_the_next_trigger_does_not_count(tmp_path: Path) -> None:
    """The driver reports how long a batch took. Each report counts once."""
    times = BatchDurations(str(tmp_path / "pause"))
    pace = BatchSizer(10, target_seconds=2.0)
    assert times.take_latest() is None
    for batch, size in enumerate((10, 80, 640)):
        store_batch_duration(str(tmp_path / "pause"), batch, 0.3)
        pace.batch_started(size, 0.0)
        pace.batch_ended(60.0, times.take_latest())
        assert times.take_latest() is None
    assert pace.next_size(60.0) == 5120


def test_a_fixed_size_is_kept() -> None:
    """The option is max_offsets_per_trigger."""
    assert set(run(BatchSizer(10, fixed_messages=500), 5, own=1.0, each=1.0)) == {500}


def test_a_rate_limit_is_kept() -> None:
    """Messages above the limit delay the next batch. Unused idle time is lost."""
    pace = BatchSizer(10, fixed_messages=1000, max_messages_per_second=100, target_seconds=2.0)
    assert pace.next_size(0.0) == 100
    pace.batch_started(150, 0.0)  # at least one message of each queue
    pace.batch_ended(0.1)
    assert pace.next_size(0.1) == 0
    assert pace.next_size(0.4) == 0
    assert pace.next_size(1.0) == 50
    assert pace.next_size(100.0) == 200
