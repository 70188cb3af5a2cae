"""A Redis that writes each command to its file before it answers, so that a killed one loses nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from tests.servers.process import ServerProcess, find_program


class RedisServer(ServerProcess):
    """It has one database, 0, without a password."""

    def __init__(self, *arguments: str) -> None:
        """`arguments` are further ones of redis-server. Raises ServerMissing."""
        self._program = find_program("redis-server", "redis-server")
        self._arguments = arguments
        super().__init__("redis")

    def command(self) -> Sequence[str | Path]:
        options = ["--bind", "127.0.0.1", "--port", str(self.port), "--dir", ".", "--save", "", "--appendonly", "yes"]
        return [self._program, *options, *self._arguments]

    def is_ready(self) -> bool:
        try:
            with self.client() as client:
                return bool(client.ping())
        except RedisConnectionError:  # also while it loads its file
            return False

    @property
    def url(self) -> str:
        """Where a client connects to."""
        return f"redis://127.0.0.1:{self.port}/0"

    def client(self) -> Redis:
        """A connection of the test's own, to be closed by it."""
        return Redis(port=self.port, decode_responses=False)
