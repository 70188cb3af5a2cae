"""A PostgreSQL in a temporary directory, as a process of the test run instead of a service."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import psycopg

from tests.servers.process import ServerProcess, find_program

SETTINGS: Final = {
    "fsync": "off",  # a killed process loses no data, because the kernel has its writes
    "shared_buffers": "16MB",
    "max_connections": "60",
    "autovacuum": "off",
    "unix_socket_directories": "",
    "listen_addresses": "127.0.0.1",
}
_numbers = itertools.count(1)


class PostgresqlServer(ServerProcess):
    """A PostgreSQL whose superuser `rmqd` needs no password. It refuses to run as root."""

    def __init__(self, directory: Path | None = None) -> None:
        """With a directory, the server uses the data of an earlier one there. Raises ServerMissing."""
        newest = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: float(path.parent.name))
        self._initdb = find_program("initdb", "postgresql", *newest[-1:])
        super().__init__("postgresql", users=("postgres", "nobody"), directory=directory)

    def prepare(self) -> None:
        if (self.directory / "data" / "PG_VERSION").exists():
            return
        self.run([self._initdb, "-D", "data", "-U", "rmqd", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"])

    def command(self) -> Sequence[str | Path]:
        settings = [part for name, value in SETTINGS.items() for part in ("-c", f"{name}={value}")]
        return [self._initdb.with_name("postgres"), "-D", "data", "-p", str(self.port), *settings]

    def is_ready(self) -> bool:
        try:
            psycopg.connect(self.url("postgres"), connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def stop(self, by: signal.Signals = signal.SIGINT) -> None:
        """SIGINT is its fast shutdown: clients are disconnected."""
        super().stop(by)

    def database(self, options: str = "") -> str:
        """Create an empty database, with options of CREATE DATABASE. Returns its URL."""
        name = f"test_{next(_numbers)}"
        self.execute(self.url("postgres"), f"CREATE DATABASE {name} {options}")
        return self.url(name)

    def url(self, database: str) -> str:
        """The URL of a database for clients."""
        return f"postgresql://rmqd@127.0.0.1:{self.port}/{database}"

    def execute(self, url: str, statement: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Run a statement in its own transaction. Returns its rows, if it has any."""
        with psycopg.connect(url, autocommit=True) as connection:
            cursor = connection.execute(statement.encode(), parameters or None)
            return cursor.fetchall() if cursor.description else []
