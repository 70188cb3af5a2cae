"""Figures: the fields of a snapshot. The declaration of a field says how its values are merged and exported.

A snapshot is a dataclass of statistics. `counter`, `gauge`, `histogram` and `figure` declare its fields. The
declarations determine how `merge_two` combines snapshots of several processes, and how the daemon renders
/metrics. So a new figure is one new field.

A counter only increases. The counters of ended consumers and processes are added to the current ones, because an
exported counter must never decrease. All other figures describe the present, and an ended process has none.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any, Final, Literal, TypeVar, cast

from rmqd.runtime.histogram import HistogramSnapshot

T = TypeVar("T")
Rule = Callable[[Any, Any], Any]
"""Merges the values of two processes."""
_FIGURE: Final = "figure"


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric family. Names end in their unit (seconds, bytes), or in `_total` if the metric is a counter."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    by: tuple[str, ...] = ()
    """Labels in addition to the labels of the snapshot. Their values come from closed sets, from the configuration or
    from the cluster's own names, never from messages.
    """
    keys: Sequence[str] = ()
    """The values of the label `by` that always have a series, even if their value is 0."""
    read: Callable[[Any], Any] | None = None
    """Returns the exported value of a snapshot. None exports the value of the field."""
    over_queues: Rule | None = None
    """Combines the known values of a topic's queues. Without it, the metric exists only for single queues."""
    worst: str = ""
    """The name of the metric for the queues with the greatest lag, if single queues have no series."""

    def value(self, snapshot: object, name: str) -> Any:
        """Return a number or a HistogramSnapshot; with `by`, one for each label value. None is not exported."""
        value = getattr(snapshot, name) if self.read is None else self.read(snapshot)
        if self.keys and value is not None:
            return dict.fromkeys(self.keys, 0) | ({value: 1} if isinstance(value, str) else value)
        return value


@dataclass(frozen=True, slots=True)
class Figure:
    """The declaration of a snapshot's field. Without a rule, the value of one process represents all processes."""

    rule: Rule | None
    metric: Metric | None = None
    is_counter: bool = False


def figure(rule: Rule | None, metric: Metric | None = None, *, is_counter: bool = False, **default: Any) -> Any:
    """Declare a field of a snapshot. `default` is passed to `dataclasses.field`."""
    return field(metadata={_FIGURE: Figure(rule, metric, is_counter)}, **default)


def counter(
    name: str,
    help: str,  # noqa: A002 as in Prometheus
    by: str = "",
    keys: Sequence[str] = (),
    start: float | None = 0,
    read: Callable[[Any], Any] | None = None,
) -> Any:
    """Declare a number that only increases, from `start`. With labels `by`, the field maps label values to numbers.

    If `start` is None, the field has only label values that were counted. The metric has all `keys` anyway.
    """
    metric = Metric(name, "counter", help, tuple(by.split()), keys, read)
    if by:
        known = () if start is None else keys
        return figure(add_each, metric, is_counter=True, default_factory=lambda: dict.fromkeys(known, start))
    return figure(operator.add, metric, is_counter=True, default=start)


def gauge(
    name: str,
    help: str,  # noqa: A002 as in Prometheus
    rule: Rule | None = None,
    by: str = "",
    keys: Sequence[str] = (),
    read: Callable[[Any], Any] | None = None,
    over_queues: Rule | None = None,
    worst: str = "",
    **default: Any,
) -> Any:
    """Declare a current value. For a text, the series of this label value is 1, and series of other `keys` are 0."""
    return figure(rule, Metric(name, "gauge", help, tuple(by.split()), keys, read, over_queues, worst), **default)


def histogram(
    name: str,
    help: str,  # noqa: A002 as in Prometheus
    by: str = "",
    read: Callable[[Any], Any] | None = None,
) -> Any:
    """Declare a HistogramSnapshot. With labels `by`, the field maps label values to such snapshots."""
    metric = Metric(name, "histogram", help, tuple(by.split()), read=read)
    return figure(add_each if by else HistogramSnapshot.merge, metric, is_counter=True)


@cache
def figures_of(snapshot: Any) -> Mapping[str, Figure]:
    """Return the declarations of a snapshot's fields, by name."""
    return {one.name: one.metadata[_FIGURE] for one in fields(snapshot) if _FIGURE in one.metadata}


def merge_two(one: T, other: T, base: T | None = None, *, gauges: bool = True, counters: bool = True) -> T:
    """Merge two snapshots. Figures without a rule are copied from `base`, or from `one` without `base`."""
    values = {
        name: figure.rule(getattr(one, name), getattr(other, name))
        for name, figure in figures_of(cast(Any, type(one))).items()
        if figure.rule is not None and (counters if figure.is_counter else gauges)
    }
    return cast(T, replace(cast(Any, one if base is None else base), **values))


def add_counters(one: T, past: T | None) -> T:
    """Return a snapshot plus the counters of an ended consumer or process."""
    return one if past is None else merge_two(one, past, gauges=False)


def sum_of_known(values: Iterable[int | None]) -> int | None:
    """Return the sum of the known values; None if all values are unknown (None)."""
    found = [value for value in values if value is not None]
    return sum(found) if found else None


def largest_known(values: Iterable[float | None]) -> float | None:
    """Return the largest known value; None if all values are unknown (None)."""
    return max((value for value in values if value is not None), default=None)


def if_known(rule: Rule) -> Rule:
    """Return a rule that applies `rule` only to two known values. None stands for an unknown value."""

    def merge(one: Any, other: Any) -> Any:
        return other if one is None else one if other is None else rule(one, other)

    return merge


def add_each(one: dict[Any, Any], other: dict[Any, Any]) -> dict[Any, Any]:
    """Return the sums of the numbers or histograms in two mappings, by key."""
    total = dict(one)
    for key, value in other.items():
        if key not in total:
            total[key] = value
        else:
            total[key] = total[key].merge(value) if isinstance(value, HistogramSnapshot) else total[key] + value
    return total


def unique_values(one: Sequence[Any], other: Sequence[Any]) -> tuple[Any, ...]:
    """Return the values of both sequences in order, each value once."""
    return tuple(dict.fromkeys((*one, *other)))
