"""What `register` looks at before anything is read."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rmqd.errors import RmqdError
from rmqd.spark import check_python, check_versions
from tests.spark.needed import need

need("pyspark", "pyarrow")

import pyspark  # noqa: E402


def test_an_old_pyspark_is_named_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """4.1 has no limits for Python sources."""
    check_versions()
    monkeypatch.setattr(pyspark, "__version__", "4.1.2")
    with pytest.raises(RmqdError, match=r"needs PySpark 4.2 or later, and 4.1.2 is installed here.*pip install -U"):
        check_versions()


def test_a_python_without_rmqd_is_named_with_what_to_do(tmp_path: Path) -> None:
    """Spark takes python3 from PATH where nobody says otherwise."""
    other = tmp_path / "python3"
    other.write_text("#!/bin/sh\necho \"ModuleNotFoundError: No module named 'rmqd'\" >&2\nexit 1\n")
    other.chmod(0o755)
    with pytest.raises(RmqdError, match=r"started by .*/python3, and there: ModuleNotFoundError.*set PYSPARK_PYTHON"):
        check_python(str(other))
    check_python(sys.executable)
