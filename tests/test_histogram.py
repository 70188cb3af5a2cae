"""The ranges of a histogram, and sums of histograms."""

from __future__ import annotations

import pickle

import pytest

from rmqd.runtime.histogram import Histogram, HistogramSnapshot


def test_a_value_counts_in_the_first_range_whose_upper_bound_is_not_lower() -> None:
    """An upper bound belongs to its own range. Values above all bounds count in the last range."""
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 9.0):
        histogram.observe(value)
    assert histogram.snapshot() == HistogramSnapshot((1.0, 2.0), (2, 2, 1), 14.0)
    assert histogram.snapshot().count == 5


def test_observing_with_a_count_equals_as_many_observations() -> None:
    """One call for a batch has the same effect as a call for each message."""
    histogram = Histogram((1.0,))
    histogram.observe(0.5, 3)
    assert histogram.snapshot() == HistogramSnapshot((1.0,), (3, 0), 1.5)


def test_a_snapshot_does_not_change() -> None:
    """Later observations do not change it, and it can be pickled."""
    histogram = Histogram((1.0,))
    snapshot = histogram.snapshot()
    histogram.observe(0.5)
    assert snapshot.count == 0
    assert pickle.loads(pickle.dumps(histogram.snapshot())) == histogram.snapshot()


def test_snapshots_add_up() -> None:
    """The counts of two processes are added. Snapshots with different bounds cannot be added."""
    one, other = HistogramSnapshot((1.0,), (1, 2), 3.0), HistogramSnapshot((1.0,), (10, 20), 30.0)
    assert one.merge(other) == HistogramSnapshot((1.0,), (11, 22), 33.0)
    with pytest.raises(ValueError, match="bounds"):
        one.merge(HistogramSnapshot((2.0,), (1, 2), 3.0))


def test_bounds_must_grow() -> None:
    """With bounds in another order, the counts would be wrong without an error."""
    with pytest.raises(ValueError, match="ascending order"):
        Histogram((2.0, 1.0))


def test_quantiles_are_interpolated_as_prometheus_does() -> None:
    """Interpolated inside a range; the last bound for values above it; None without values."""
    histogram = Histogram((1.0, 2.0, 4.0))
    assert histogram.snapshot().quantile(0.5) is None
    for value in (0.5, 1.5, 1.5, 3.0):
        histogram.observe(value)
    assert histogram.snapshot().quantile(0.25) == 1.0
    assert histogram.snapshot().quantile(0.5) == 1.5
    assert histogram.snapshot().quantile(1.0) == 4.0
    histogram.observe(100.0, 96)
    assert histogram.snapshot().quantile(0.99) == 4.0


def test_since_returns_the_counts_after_an_earlier_snapshot() -> None:
    """A count that fell, because its process has ended, counts as 0."""
    histogram = Histogram((1.0,))
    histogram.observe(0.5, 3)
    earlier = histogram.snapshot()
    histogram.observe(2.0)
    assert histogram.snapshot().since(earlier).counts == (0, 1)
    assert earlier.since(histogram.snapshot()).counts == (0, 0)
