"""Histogram: what is counted where, and adding up."""

from __future__ import annotations

import pickle

import pytest

from rmqd.runtime.histogram import Histogram, HistogramSnapshot


def test_a_value_counts_in_the_range_whose_upper_bound_it_reaches() -> None:
    """An upper bound belongs to its own range; what is above all bounds counts last."""
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 9.0):
        histogram.observe(value)
    assert histogram.snapshot() == HistogramSnapshot((1.0, 2.0), (2, 2, 1), 14.0)
    assert histogram.snapshot().count == 5


def test_a_count_stands_for_as_many_values() -> None:
    """One call for a batch gives what a call for each message would give."""
    histogram = Histogram((1.0,))
    histogram.observe(0.5, 3)
    assert histogram.snapshot() == HistogramSnapshot((1.0,), (3, 0), 1.5)


def test_a_snapshot_stays_as_it_was() -> None:
    """Later observations do not reach it, and it survives a trip to another process."""
    histogram = Histogram((1.0,))
    snapshot = histogram.snapshot()
    histogram.observe(0.5)
    assert snapshot.count == 0
    assert pickle.loads(pickle.dumps(histogram.snapshot())) == histogram.snapshot()


def test_snapshots_add_up() -> None:
    """Two processes' counts become one; different bounds cannot be added."""
    one, other = HistogramSnapshot((1.0,), (1, 2), 3.0), HistogramSnapshot((1.0,), (10, 20), 30.0)
    assert one.merge(other) == HistogramSnapshot((1.0,), (11, 22), 33.0)
    with pytest.raises(ValueError, match="bounds"):
        one.merge(HistogramSnapshot((2.0,), (1, 2), 3.0))


def test_bounds_must_grow() -> None:
    """Bounds in another order would count wrongly in silence."""
    with pytest.raises(ValueError, match="ascending order"):
        Histogram((2.0, 1.0))


def test_quantiles_are_interpolated_as_prometheus_does() -> None:
    """Inside of a range; above the last bound it is that bound; of nothing there is none."""
    histogram = Histogram((1.0, 2.0, 4.0))
    assert histogram.snapshot().quantile(0.5) is None
    for value in (0.5, 1.5, 1.5, 3.0):
        histogram.observe(value)
    assert histogram.snapshot().quantile(0.25) == 1.0
    assert histogram.snapshot().quantile(0.5) == 1.5
    assert histogram.snapshot().quantile(1.0) == 4.0
    histogram.observe(100.0, 96)
    assert histogram.snapshot().quantile(0.99) == 4.0


def test_what_came_since_an_earlier_snapshot() -> None:
    """A count that fell, as its process is gone, is none that came."""
    histogram = Histogram((1.0,))
    histogram.observe(0.5, 3)
    earlier = histogram.snapshot()
    histogram.observe(2.0)
    assert histogram.snapshot().since(earlier).counts == (0, 1)
    assert earlier.since(histogram.snapshot()).counts == (0, 0)
