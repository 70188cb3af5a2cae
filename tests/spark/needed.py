"""Skips test modules whose dependencies are missing; in CI they fail instead."""

from __future__ import annotations

import importlib
import os

import pytest


def need(*modules: str) -> None:
    """Skip a test module if one of these modules is missing. Call this before the imports that need them."""
    for module in modules:
        try:
            importlib.import_module(module)
        except ImportError as error:
            if os.environ.get("CI"):
                pytest.fail(f"no {module}, and CI is set: {error}", pytrace=False)
            pytest.skip(f"NOT TESTED WITH SPARK: {error}; pip install -e '.[spark]'", allow_module_level=True)
