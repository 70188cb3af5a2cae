"""Fixtures of tests of whole groups."""

from __future__ import annotations

from tests.smoke.conftest import way

__all__ = ["way"]
