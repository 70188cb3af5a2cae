"""`make demo`, where nobody watches."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.integration.rmqd_process import TOP
from tests.rocketmq.demo import UNATTENDED_MESSAGES


@pytest.mark.rocketmq
def test_demo_shows_messages_at_a_handler() -> None:
    """It starts a RocketMQ of its own, shows what was sent at the handler, and ends with 0."""
    command = [sys.executable, "-m", "tests.rocketmq.demo"]
    done = subprocess.run(command, cwd=TOP, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    shown = [line for line in done.stderr.splitlines() if "message.handled" in line]
    assert len(shown) == UNATTENDED_MESSAGES, done.stderr
    assert "keys=order-1 " in shown[0]
