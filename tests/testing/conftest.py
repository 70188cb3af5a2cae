"""The fixtures of rmqd's test kit. They replace the suite's `rocketmq`, which is a real cluster."""

from pathlib import Path

import pytest

from rmqd.testing.plugin import make_batch, make_message, rocketmq, run_handler
from tests.testing.user_folder import UserFolder

__all__ = ["make_batch", "make_message", "rocketmq", "run_handler"]


@pytest.fixture
def folder(tmp_path: Path) -> UserFolder:
    """Return an empty folder."""
    return UserFolder(tmp_path)
