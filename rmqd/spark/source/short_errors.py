"""Shows errors of the source in Spark without pages of tracebacks."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

from rmqd.errors import RmqdError


@contextlib.contextmanager
def reason_first() -> Iterator[None]:
    """Make Spark show the text of an RmqdError instead of a traceback. Also a decorator.

    Spark reads an environment variable of the process, which ends with the error.
    """
    try:
        yield
    except RmqdError:
        if str(getattr(sys.modules["__main__"].__spec__, "name", "")).startswith("pyspark."):
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise
