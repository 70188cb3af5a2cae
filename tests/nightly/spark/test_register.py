"""The checks of `register` before anything is read."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from rmqd.errors import RmqdError
from rmqd.spark import check_python, check_versions
from tests.spark.needed import need

need("pyspark", "pyarrow")

import pyspark  # noqa: E402

pytestmark = pytest.mark.process

TOP = Path(__file__).parents[3]


def test_an_old_pyspark_is_named_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """PySpark 4.1 has no limits for Python sources."""
    check_versions()
    monkeypatch.setattr(pyspark, "__version__", "4.1.2")
    with pytest.raises(RmqdError, match=r"needs PySpark 4.2 or later, but 4.1.2 is installed.*run pip install '"):
        check_versions()


LOOK_UP = """
import io
from pyspark.sql.worker import lookup_data_sources
out = io.BytesIO()
lookup_data_sources._main(io.BytesIO(), out)
print(out.getvalue())
"""


def looked_up(tmp_path: Path, **modules: str) -> subprocess.CompletedProcess[str]:
    """Return what Spark's own search finds if the wheel and these modules are installed; without a JVM."""
    wheel = tomllib.loads((TOP / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    for source, place in wheel["force-include"].items():
        (tmp_path / place).write_text((TOP / source).read_text())
    for name, text in modules.items():
        (tmp_path / f"{name}.py").write_text(text)
    path = os.pathsep.join([str(tmp_path), str(TOP)])
    return subprocess.run(
        [sys.executable, "-c", LOOK_UP],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )


def test_spark_finds_the_format_automatically(tmp_path: Path) -> None:
    """Spark finds a module at the wheel's top."""
    found = looked_up(tmp_path).stdout
    assert "rocketmq" in found
    assert "RocketMQSource" in found


def test_a_failed_import_does_not_hide_other_formats(tmp_path: Path) -> None:
    """If the module raised, Spark would find no format."""
    done = looked_up(tmp_path, pyarrow="raise ImportError('no pyarrow here', name='pyarrow')")
    assert "rocketmq" not in done.stdout
    assert "Spark will not know the format rocketmq: pyarrow is not installed" in done.stderr


def test_a_python_without_rmqd_is_named_with_what_to_do(tmp_path: Path) -> None:
    """Spark takes python3 from PATH by default."""
    other = tmp_path / "python3"
    other.write_text("#!/bin/sh\necho \"ModuleNotFoundError: No module named 'rmqd'\" >&2\nexit 1\n")
    other.chmod(0o755)
    with pytest.raises(
        RmqdError, match=r"with .*/python3, and this fails there: ModuleNotFoundError.*set PYSPARK_PYTHON"
    ):
        check_python(str(other))
    check_python(sys.executable)
