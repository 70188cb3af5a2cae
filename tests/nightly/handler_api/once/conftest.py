"""The group's context, as in the daily tests."""

from __future__ import annotations

from tests.handler_api.once.conftest import in_group

__all__ = ["in_group"]
