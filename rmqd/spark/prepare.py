"""Prepares the environment of a process for a Spark session."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Final

from rmqd.spark.session.spark_process import Java, provide_java

PYTHON: Final = "PYSPARK_PYTHON"
LOGGING: Final = "LOG4J_CONFIGURATION_FILE"
SET_BY_PREPARE: Final = ("JAVA_HOME", PYTHON, LOGGING)
QUIET: Final = Path(__file__).with_name("log4j2.properties")
_SUFFIXES: Final = frozenset((".properties", ".xml", ".yaml", ".yml", ".json", ".jsn"))


def prepare() -> Java:
    """Call `provide_programs`, and suppress lines in Spark's log that need no action.

    Without a log configuration, Spark starts with four lines about that and about Hadoop's native library. A log
    configuration in the environment or in Spark's configuration folder is kept. Raises errors of `provide_programs`.
    """
    if not _is_told_how_to_log():
        os.environ.setdefault(LOGGING, str(QUIET))
    return provide_programs()


def provide_programs() -> Java:
    """Make sure that a session in this process finds Java, and that Spark's Python processes use this Python.

    By default Spark takes `python3` from PATH, which in a virtual environment that is not activated is a Python without
    rmqd. Raises RmqdError if Java is missing or too old.
    """
    os.environ.setdefault(PYTHON, sys.executable)
    return provide_java()


def _is_told_how_to_log() -> bool:
    """Return whether Spark's configuration folder has a file for log4j, which the environment would override."""
    folder = os.environ.get("SPARK_CONF_DIR")
    if not folder:
        installed = importlib.util.find_spec("pyspark")
        home = os.environ.get("SPARK_HOME") or (os.path.dirname(installed.origin or "") if installed else "")
        folder = os.path.join(home, "conf")
    return any(path.suffix in _SUFFIXES for path in Path(folder).glob("log4j2*"))
