"""The kit's own fixtures, in the place of the suite's `rocketmq`, which is a real one."""

from pathlib import Path

import pytest

from rmqd.testing.plugin import make_batch, make_message, rocketmq, run_handler
from tests.testing.user_folder import UserFolder

__all__ = ["make_batch", "make_message", "rocketmq", "run_handler"]


@pytest.fixture
def folder(tmp_path: Path) -> UserFolder:
    """Empty."""
    return UserFolder(tmp_path)
