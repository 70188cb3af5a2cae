"""Finds which columns of its source a pipeline uses, so that executors decode no others.

Spark tells a Python source nothing of that, and makes the source before the pipeline is known. So the driver asks
Spark's optimizer, and writes the answer beside the pause file, where the source's processes on the driver read it when
the query begins. A column that is not used is null for all rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import structlog

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = structlog.get_logger(__name__)

_SUFFIX: Final = ".columns"
_CHOOSES: Final = ("Project", "Aggregate")  # above one of these nothing has other columns than it names
_PASSES: Final = ("Filter",)


def used_columns(frame: DataFrame, source: str) -> frozenset[str] | None:
    """Which columns of the source of this format decide about a frame's rows; None where that is not to be told."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    found: frozenset[str] = frozenset()
    try:
        session = frame.sparkSession._jsparkSession  # of the classic API, which a driver of ours has
        plan = session.sessionState().optimizer().execute(frame._jdf.queryExecution().analyzed())
        for names in _uses(plan, source, None):
            if names is None:
                return None
            found |= names
    except (Py4JError, PySparkException) as error:  # these are no public methods of Spark's
        log.warning("spark.all_columns_read", error=str(error).partition("\n")[0])
        return None
    return found


def note_used_columns(pause_file: str, names: frozenset[str] | None) -> None:
    """Write them down for `noted_columns`. Raises OSError."""
    path = Path(pause_file + _SUFFIX)
    if names is None:
        path.unlink(missing_ok=True)
    else:
        path.write_text(json.dumps(sorted(names)))


def noted_columns(pause_file: str) -> frozenset[str] | None:
    """What was written down; None for all columns."""
    with suppress(OSError):
        return frozenset(json.loads(Path(pause_file + _SUFFIX).read_text()))
    return None


def _uses(plan: Any, source: str, wanted: frozenset[str] | None) -> Iterator[frozenset[str] | None]:
    """For each place where a plan reads the source: the columns that are used, or None for all.

    `wanted` are the columns that the nodes above name, up to the first that chooses among them; None where none does.
    The optimizer puts such a node right above a source, with filters between them at most.
    """
    kind = plan.nodeName()
    if kind == "StreamingRelationV2" and plan.sourceName() == source:
        yield None if wanted is None else wanted & _names(plan.outputSet())
        return
    if kind in _CHOOSES:
        wanted = _names(plan.references())
    elif kind in _PASSES and wanted is not None:
        wanted |= _names(plan.references())
    else:
        wanted = None
    children = plan.children()
    for place in range(children.size()):
        yield from _uses(children.apply(place), source, wanted)


def _names(attributes: Any) -> frozenset[str]:
    listed = attributes.toSeq()
    return frozenset(listed.apply(place).name() for place in range(listed.size()))
