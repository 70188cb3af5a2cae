"""Errors of the source as Spark shows them: the reason, without pages of tracebacks."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

from rmqd.errors import RmqdError


@contextlib.contextmanager
def reason_first() -> Iterator[None]:
    """Have Spark show an RmqdError by its own text, in place of a traceback with the text at its end. Also a decorator.

    Spark asks for that by a variable of its process, which ends with the error.
    """
    try:
        yield
    except RmqdError:
        if str(getattr(sys.modules["__main__"].__spec__, "name", "")).startswith("pyspark."):
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise
