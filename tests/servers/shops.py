"""Databases of three dialects, a new empty one for each test. The fixture `shop` is one of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sqlalchemy import NullPool, create_engine, text

from tests.servers.mariadb import MariadbServer
from tests.servers.postgresql import PostgresqlServer
from tests.servers.process import ServerProcess

DIALECTS: Final = ("sqlite", "postgresql", "mariadb")
DAILY_DIALECTS: Final = ("sqlite", "postgresql")


@dataclass(frozen=True, slots=True)
class Shop:
    """A database."""

    dialect: str
    url: str
    server: ServerProcess | None
    """None for a file."""

    def query(self, statement: str, parameters: Mapping[str, object] | None = None) -> list[tuple[Any, ...]]:
        """Run a statement in its own transaction. Returns its rows, if it has any."""
        engine = create_engine(self.url, poolclass=NullPool)
        with engine.begin() as connection:
            found = connection.execute(text(statement), parameters or {})
            return [tuple(row) for row in found] if found.returns_rows else []


def sqlite(folder: Path) -> Shop:
    """A file of SQLite."""
    return Shop("sqlite", f"sqlite:///{folder / 'shop.db'}", None)


def on_postgresql(server: PostgresqlServer) -> Shop:
    """A database of a PostgreSQL."""
    return Shop("postgresql", server.database().replace("postgresql:", "postgresql+psycopg:"), server)


def on_mariadb(server: MariadbServer) -> Shop:
    """A database of a MariaDB."""
    return Shop("mariadb", server.database(), server)
