"""Fixtures of tests of commands about dead letters."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rmqd.client.remoting.remoting_client import RemotingClient
from tests.nightly.cli.dead_letters import Commands
from tests.rocketmq import RealCluster


@pytest.fixture
def commands(rocketmq: RealCluster, group: str, tmp_path: Path) -> Commands:
    """The `rmqd dlq` commands for a new group."""
    return Commands(rocketmq, group, tmp_path / "state")


@pytest.fixture
async def remoting() -> AsyncIterator[RemotingClient]:
    """A client for single requests."""
    client = RemotingClient()
    yield client
    await client.close()
