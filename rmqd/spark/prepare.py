"""What a process needs in its environment before it makes a Spark session."""

from __future__ import annotations

import os
import sys

from rmqd.spark.java import Java, provide_java


def prepare() -> Java:
    """See that a session made in this process finds a Java, and that Spark's Python processes are of this Python.

    Spark takes `python3` from PATH where nobody says otherwise, which in a virtual environment that is not activated is
    one without rmqd. Raises RmqdError where there is no Java, or where it is too old.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    return provide_java()
