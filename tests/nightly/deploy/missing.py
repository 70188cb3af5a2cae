"""Programs that tests of deploy/ need: tests without them are skipped with a reason, and fail if CI is set."""

from __future__ import annotations

import os
import shutil
from typing import NoReturn

import pytest


def require(program: str, *, package: str) -> str:
    """The program's path. `package` is its Debian package."""
    path = shutil.which(program)
    if path is None:
        missing(f"{program} is not installed: apt-get install {package}")
    return path


def missing(reason: str) -> NoReturn:
    """Skip the test; fail it if CI is set."""
    if os.environ.get("CI"):
        pytest.fail(f"CI is set: {reason}", pytrace=False)
    pytest.skip(reason)
