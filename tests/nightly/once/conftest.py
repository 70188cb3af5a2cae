"""The group's context, as in the daily tests."""

from tests.once.conftest import in_group

__all__ = ["in_group"]
