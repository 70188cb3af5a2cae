"""What a test of deploy/ needs from outside of Python: skipped loudly where it is missing, failed where CI is set."""

from __future__ import annotations

import os
import shutil
from typing import NoReturn

import pytest


def require(program: str, *, package: str) -> str:
    """The program's path. `package` is what to install on Debian for it."""
    path = shutil.which(program)
    if path is None:
        missing(f"{program} is not installed: apt-get install {package}")
    return path


def missing(reason: str) -> NoReturn:
    """End the test: it cannot show anything here."""
    if os.environ.get("CI"):
        pytest.fail(f"CI is set: {reason}", pytrace=False)
    pytest.skip(reason)
