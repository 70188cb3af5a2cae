"""The fixtures and the event loop of the client's daily tests."""

from __future__ import annotations

from tests.client.conftest import clock, flowing, no_task_left, peer, pytest_asyncio_loop_factories, remoting

__all__ = ["clock", "flowing", "no_task_left", "peer", "pytest_asyncio_loop_factories", "remoting"]
