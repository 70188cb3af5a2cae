"""The fixtures of the daily tests of the kit."""

from __future__ import annotations

from tests.testing.conftest import folder, make_batch, make_message, rocketmq, run_handler

__all__ = ["folder", "make_batch", "make_message", "rocketmq", "run_handler"]
