"""The servers themselves: their data after a kill, and empty new databases."""

from __future__ import annotations

import pytest

from tests.servers.postgresql import PostgresqlServer

pytestmark = pytest.mark.process


def test_a_killed_postgresql_restarts_with_its_rows(postgresql: PostgresqlServer, database: str) -> None:
    postgresql.execute(database, "CREATE TABLE orders (id int)")
    postgresql.execute(database, "INSERT INTO orders VALUES (%s)", (7,))

    postgresql.restart()

    assert postgresql.execute(database, "SELECT id FROM orders") == [(7,)]
    assert postgresql.execute(postgresql.database(), "SELECT to_regclass('orders')") == [(None,)]
