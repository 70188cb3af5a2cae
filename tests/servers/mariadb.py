"""A MariaDB in a temporary directory, as a process of the test run."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pymysql

from tests.servers.process import ServerProcess, find_program

SETTINGS: Final = (
    "--bind-address=127.0.0.1",
    "--innodb-flush-log-at-trx-commit=2",  # a killed process loses no data, because the kernel has its writes
    "--innodb-buffer-pool-size=16M",
    "--innodb-log-file-size=8M",
    "--performance-schema=off",
    "--skip-name-resolve",
    "--skip-grant-tables",  # users would have to be created first
    "--skip-networking=0",  # --skip-grant-tables turns networking off
)
_numbers = itertools.count(1)


class MariadbServer(ServerProcess):
    """A MariaDB that accepts any user without a password. It refuses to run as root."""

    def __init__(self) -> None:
        """Raises ServerMissing."""
        self._program = find_program("mariadbd", "mariadb-server-core", Path("/usr/sbin"))
        super().__init__("mariadb", users=("mysql", "nobody"))

    def prepare(self) -> None:
        """An empty folder is enough: without users, the server needs no system tables."""
        self.run(["mkdir", "-p", "data"])

    def command(self) -> Sequence[str | Path]:
        places = (
            f"--datadir={self.directory / 'data'}",
            f"--socket={self.directory / 'socket'}",
            f"--port={self.port}",
        )
        return [self._program, "--no-defaults", *places, *SETTINGS]

    def is_ready(self) -> bool:
        try:
            self._connect().close()
        except pymysql.err.OperationalError:
            return False
        return True

    def close(self) -> None:
        """Kill the server: a stop takes long, its data is not needed, and it leaves no shared memory behind."""
        self.kill()
        super().close()

    def database(self) -> str:
        """Create an empty database. Returns its URL for SQLAlchemy."""
        name = f"test_{next(_numbers)}"
        self.execute("", f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
        return f"mariadb+pymysql://rmqd@127.0.0.1:{self.port}/{name}"

    def execute(self, url: str, statement: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Run a statement in its own transaction. Returns its rows, if it has any."""
        with self._connect(url.rpartition("/")[2]) as connection, connection.cursor() as cursor:
            cursor.execute(statement, parameters or None)
            return list(cursor.fetchall())

    def _connect(self, database: str = "") -> pymysql.Connection[Any]:
        return pymysql.connect(
            host="127.0.0.1", port=self.port, user="rmqd", database=database or None, autocommit=True, connect_timeout=2
        )
