"""A data engineer's jobs, from the documents' own blocks: windows, a handler, an archive, and writing.

They run unchanged except for the addresses of RocketMQ and the files, and each reports how long it took. Two are cells
of a notebook, and two are groups of `rmqd spark run`. Each is a separate process, so that every line counts that it,
Java or Spark's workers write.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
import yaml

from tests.spark.embedded_broker import EmbeddedBroker
from tests.spark.fixtures import SHORT_LIFE, TOP
from tests.spark.needed import need

need("pyspark", "pyarrow")

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(400)]  # three JVMs; a busy machine takes minutes

NOISE: Final = 5
"""The most lines that a job may write in addition to its expected output."""
SECONDS: Final = 300.0
ADDRESS: Final = "127.0.0.1:9876"
ENDED: Final = "-- the cell has ended: "
# the environment, not the job: a free port, and a JVM that lives for a minute
CONF: Final = f"""
spark.ui.port 0
spark.driver.extraJavaOptions {SHORT_LIFE}
"""
REFUNDS: Final = """
rows = [("o-1", "ada", 2.5), ("o-2", "bob", 1.0)]
spark.createDataFrame(rows, "order_id string, customer string, amount double").createOrReplaceTempView("refunds")
"""
WRITTEN: Final = f"""
import json
rows = spark.read.format("rocketmq").options(nameserver="{ADDRESS}", subscribe="refunds", columns="*").load().collect()
print(json.dumps([[row.keys, row.tags, row.sharding_key, json.loads(row.body)["amount"]] for row in rows]))
"""


def block(page: str, language: str, part: str) -> str:
    """Return the first code block of a page that contains `part`."""
    text = (TOP / "docs" / page).read_text()
    found = re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return str(next(one for one in found if part in one))


def run(folder: Path, command: list[str]) -> list[str]:
    """Return each line that a process and its children write, for a user who has configured neither Spark nor Java."""
    (folder / "spark-defaults.conf").write_text(CONF)
    inherited = {name: text for name, text in os.environ.items() if not name.startswith(("JAVA", "SPARK", "PYSPARK"))}
    path = os.pathsep.join(map(str, (TOP, TOP / "rmqd" / "spark" / "discovery")))  # as an installed wheel is found
    ours = {"PYTHONPATH": path, "SPARK_CONF_DIR": str(folder), "SPARK_LOCAL_IP": "127.0.0.1"}
    with (folder / "log").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, *command],
            cwd=folder,
            env={**inherited, **ours},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        code = process.wait(SECONDS)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # its JVM, if it is still running
    text = (folder / "log").read_bytes().decode(errors="replace")
    assert code == 0, text
    lines = (line.rpartition("\r")[2] for line in text.split("\n"))  # a progress bar is overwritten
    return [line for line in lines if line.strip()]


@dataclass(frozen=True, slots=True)
class Cell:
    """The duration and the output of a job."""

    seconds: float
    lines: list[str]

    @property
    def noise(self) -> list[str]:
        """The lines outside of the expected tables."""
        return [line for line in self.lines if not line.startswith(("|", "+"))]


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """A broker with orders. No message is an hour old: test_batch_reader has older ones."""
    with EmbeddedBroker(tmp_path_factory.mktemp("broker")) as broker:
        broker.create_topic("orders", 2)
        broker.create_topic("refunds", 2)
        broker.send("orders", "first", tags="open")
        broker.send("orders", "second", "third", tags="paid", queue_id=1)
        yield broker


@pytest.fixture(scope="module")
def notebook(filled: EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Cell]:
    """A notebook that has run from its first cell, which makes a session as documented, to its last."""
    cells = {
        "session": block("spark.md", "python spark", "getOrCreate"),
        "windows": block("spark.md", "python spark", "orders_per_minute"),
        "refunds": REFUNDS,
        "writing": block("spark.md", "python spark", 'spark.table("refunds")'),
        "written": WRITTEN,
        "end": "spark.stop()\n",
    }
    assert all(ADDRESS in cells[name] for name in ("session", "windows", "writing"))
    ending = f"print('{ENDED}', time.perf_counter() - began, flush=True)\n"
    code = "import time\n" + "".join(f"began = time.perf_counter()\n{cell}{ending}" for cell in cells.values())
    folder = tmp_path_factory.mktemp("notebook")
    (folder / "notebook.py").write_text(code.replace(ADDRESS, filled.nameserver).replace("/data", str(folder)))
    ran: list[Cell] = []
    lines: list[str] = []
    for line in run(folder, ["-u", "notebook.py"]):
        if line.startswith(ENDED):
            ran.append(Cell(float(line.removeprefix(ENDED)), lines))
            lines = []
        else:
            lines.append(line)
    return dict(zip(cells, ran, strict=True))


def run_group(broker: EmbeddedBroker, folder: Path, text: str) -> Cell:
    """Run the only group of a configuration from the first message to the last.

    Its noise is the output of Java and Spark's workers, and rmqd's warnings.
    """
    for there, here in ((ADDRESS, broker.nameserver), ("/var/lib/rmqd", str(folder)), ("/data", str(folder))):
        text = text.replace(there, here)
    (folder / "rmqd.yaml").write_text(text)
    [name] = yaml.safe_load(text)["groups"]
    overrides = {
        f"groups.{name}.spark.trigger": "available_now",
        f"groups.{name}.consume_from_where": "first_offset",
        "state_dir": str(folder / "state"),
        "log.format": "json",
    }
    command = ["-m", "rmqd", "spark", "run", name, "-c", "rmqd.yaml"]
    command += [word for key, value in overrides.items() for word in ("--set", f"{key}={value}")]
    began = time.perf_counter()
    lines = run(folder, command)
    return Cell(time.perf_counter() - began, [noise for line in lines for noise in noise_in(line)])


def noise_in(line: str) -> list[str]:
    """Return the noise in a line of output. rmqd's own events are noise only if they warn of something."""
    try:
        event: dict[str, str] = json.loads(line)
    except ValueError:
        return [line]
    if event["event"] == "spark.output_read":
        return event["text"].splitlines()
    return [] if event["level"] == "info" else [line]


@pytest.fixture
def judge(request: pytest.FixtureRequest, capfd: pytest.CaptureFixture[str]) -> Callable[[Cell], None]:
    """Return a function that reports a job's duration, and fails if the job wrote too many unexpected lines."""

    def judge(job: Cell) -> None:
        with capfd.disabled():
            sys.stdout.write(f"\n{request.node.name}: {job.seconds:.1f} s, {len(job.noise)} lines of noise\n")
        assert len(job.noise) <= NOISE, "\n".join(job.noise)

    return judge


def test_a_session(notebook: Mapping[str, Cell], judge: Callable[[Cell], None]) -> None:
    """Spark already knows the format of an installed wheel, and does not warn that another one replaces it.

    The cell also reads a table, and archives with a stream.
    """
    judge(notebook["session"])
    assert not [line for line in notebook["session"].lines if "replaced" in line]
    shown = "\n".join(notebook["session"].lines)
    assert sorted(re.findall(r"\|(\w+)\| +(\d+)\|", shown)) == [("open", "1"), ("paid", "2")]


def test_windows(notebook: Mapping[str, Cell], judge: Callable[[Cell], None]) -> None:
    """A row for each minute and tag."""
    judge(notebook["windows"])
    counts: Counter[str] = Counter()
    for tag, count in re.findall(r"\| *(\w+)\| +(\d+)\|$", "\n".join(notebook["windows"].lines), re.MULTILINE):
        counts[tag] += int(count)
    assert counts == {"open": 1, "paid": 2}


def test_writing(notebook: Mapping[str, Cell], judge: Callable[[Cell], None]) -> None:
    """A row is a message, in JSON."""
    for name in ("refunds", "writing", "written"):
        judge(notebook[name])
    [found] = map(json.loads, notebook["written"].lines)
    assert sorted(found) == [["o-1", "refund", "ada", 2.5], ["o-2", "refund", "bob", 1.0]]


def test_the_sessions_end(notebook: Mapping[str, Cell], judge: Callable[[Cell], None]) -> None:
    """All cells used the session of the first one."""
    judge(notebook["end"])


def test_a_handler(filled: EmbeddedBroker, tmp_path: Path, judge: Callable[[Cell], None]) -> None:
    """It handles the messages of two tags, and the group's offsets are committed."""
    judge(run_group(filled, tmp_path, block("spark.md", "yaml", "order-mailer")))
    handled = [json.loads(line)["body"] for line in (tmp_path / "orders.jsonl").read_text().splitlines()]
    assert sorted(handled) == ["second", "third"]
    assert filled.offsets("order-mailer", "orders") == {0: 1, 1: 2}


def test_an_archive(filled: EmbeddedBroker, tmp_path: Path, judge: Callable[[Cell], None]) -> None:
    """Messages of two topics, in folders by date and topic."""
    filled.send("refunds", "fourth")
    judge(run_group(filled, tmp_path, block("pipelines.md", "yaml", "orders-archive")))
    import pyarrow.dataset  # type: ignore[import-untyped]  # imports pandas, which would delay test collection

    archive = pyarrow.dataset.dataset(tmp_path / "archive", format="parquet", partitioning="hive").to_table()
    bodies = sorted((row["topic"], bytes(row["body"])) for row in archive.select(["topic", "body"]).to_pylist())
    assert bodies[:3] == [("orders", b"first"), ("orders", b"second"), ("orders", b"third")]
    assert ("refunds", b"fourth") in bodies
    assert filled.offsets("orders-archive", "orders") == {0: 1, 1: 2}
