"""What a process needs in its environment before it makes a Spark session."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Final

from rmqd.spark.java import Java, provide_java

PYTHON: Final = "PYSPARK_PYTHON"
LOGGING: Final = "LOG4J_CONFIGURATION_FILE"
SET_BY_PREPARE: Final = ("JAVA_HOME", PYTHON, LOGGING)
QUIET: Final = Path(__file__).with_name("log4j2.properties")
_SUFFIXES: Final = frozenset((".properties", ".xml", ".yaml", ".yml", ".json", ".jsn"))


def prepare() -> Java:
    """Do what `provide_programs` does, and see that a session made in this process logs what matters.

    Where nobody says how Spark is to log, it begins with four lines about that and Hadoop's native library. What the
    environment, or Spark's folder of configuration, says already stays. Raises RmqdError as `provide_programs` does.
    """
    if not _is_told_how_to_log():
        os.environ.setdefault(LOGGING, str(QUIET))
    return provide_programs()


def provide_programs() -> Java:
    """See that a session made in this process finds a Java, and that Spark's Python processes are of this Python.

    Spark takes `python3` from PATH where nobody says otherwise, which in a virtual environment that is not activated is
    one without rmqd. Raises RmqdError where there is no Java, or where it is too old.
    """
    os.environ.setdefault(PYTHON, sys.executable)
    return provide_java()


def _is_told_how_to_log() -> bool:
    """Whether Spark's folder of configuration has a file for log4j: the environment's would come before it."""
    folder = os.environ.get("SPARK_CONF_DIR")
    if not folder:
        installed = importlib.util.find_spec("pyspark")
        home = os.environ.get("SPARK_HOME") or (os.path.dirname(installed.origin or "") if installed else "")
        folder = os.path.join(home, "conf")
    return any(path.suffix in _SUFFIXES for path in Path(folder).glob("log4j2*"))
