"""Finds the columns of its source that a pipeline uses, so that executors decode only those.

Spark does not report them to a Python source, and creates the source before the pipeline is known. So the driver asks
Spark's optimizer, and writes the result next to the pause file. The source's processes on the driver read it when the
query starts. Unused columns are null in all rows.
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
_CHOOSES: Final = ("Project", "Aggregate")  # the nodes above one of these can use only the columns that it names
_PASSES: Final = ("Filter",)


def used_columns(frame: DataFrame, source: str) -> frozenset[str] | None:
    """Return the columns of a source that a frame's rows depend on; None if unknown. `source` is its format."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    found: frozenset[str] = frozenset()
    try:
        session = frame.sparkSession._jsparkSession  # exists only in the classic API, which the driver uses
        plan = session.sessionState().optimizer().execute(frame._jdf.queryExecution().analyzed())
        for names in _uses(plan, source, None):
            if names is None:
                return None
            found |= names
    except (Py4JError, PySparkException) as error:  # these methods of Spark are not public
        log.warning("spark.all_columns_read", error=str(error).partition("\n")[0])
        return None
    return found


def note_used_columns(pause_file: str, names: frozenset[str] | None) -> None:
    """Store the names for `noted_columns`. Raises OSError."""
    path = Path(pause_file + _SUFFIX)
    if names is None:
        path.unlink(missing_ok=True)
    else:
        path.write_text(json.dumps(sorted(names)))


def noted_columns(pause_file: str) -> frozenset[str] | None:
    """Return the stored names; None for all columns."""
    with suppress(OSError):
        return frozenset(json.loads(Path(pause_file + _SUFFIX).read_text()))
    return None


def _uses(plan: Any, source: str, wanted: frozenset[str] | None) -> Iterator[frozenset[str] | None]:
    """For each read of the source in a plan, yield the columns that are used, or None for all.

    `wanted` are the columns that the nodes above name, up to the first node that selects columns; None if none does.
    The optimizer puts such a node directly above a source, with at most filters between them.
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
