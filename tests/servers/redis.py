"""A Redis that writes each command to its file before the response, so that a killed server loses no data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from tests.servers.process import ServerProcess, find_program


class RedisServer(ServerProcess):
    """Has one database, 0, without a password."""

    def __init__(self, *arguments: str) -> None:
        """`arguments` are further arguments of redis-server. Raises ServerMissing."""
        self._program = find_program("redis-server", "redis-server")
        self._arguments = arguments
        super().__init__("redis")

    def command(self) -> Sequence[str | Path]:
        options = ["--bind", "127.0.0.1", "--port", str(self.port), "--dir", ".", "--save", ""]
        stored = ["--appendonly", "yes", "--appendfsync", "always"]
        return [self._program, *options, *stored, *self._arguments]

    def is_ready(self) -> bool:
        try:
            with self.client() as client:
                return bool(client.ping())
        except RedisConnectionError:  # also while it loads its file
            return False

    @property
    def url(self) -> str:
        """The URL for clients."""
        return f"redis://127.0.0.1:{self.port}/0"

    def client(self) -> Redis:
        """A new connection, which the caller must close."""
        return Redis(port=self.port, decode_responses=False)
