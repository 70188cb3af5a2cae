"""What is not there is said loudly, and fails where CI is set."""

from __future__ import annotations

import importlib
import os

import pytest


def need(*modules: str) -> None:
    """Leave a test module out where one of these cannot be imported; call it before importing what needs them."""
    for module in modules:
        try:
            importlib.import_module(module)
        except ImportError as error:
            if os.environ.get("CI"):
                pytest.fail(f"no {module}, and CI is set: {error}", pytrace=False)
            pytest.skip(f"NOT TESTED WITH SPARK: {error}; pip install -e '.[spark]'", allow_module_level=True)
