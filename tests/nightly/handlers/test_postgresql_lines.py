"""Connections to PostgreSQL: all components detect a vanished host after the same time."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import pytest

from rmqd.handler_api.leases.lease_store import ClaimTerms
from rmqd.handler_api.leases.postgresql_store import PostgresqlClaims
from rmqd_handlers.postgresql import PostgreSql
from rmqd_handlers.sql import Sql
from tests.handlers.messages import orders
from tests.handlers.sql_orders import COLUMNS, ORDERS
from tests.servers.postgresql import PostgresqlServer

pytestmark = pytest.mark.process

WANTED: Final = {
    socket.TCP_KEEPIDLE: 10,
    socket.TCP_KEEPINTVL: 5,
    socket.TCP_KEEPCNT: 3,
    socket.TCP_USER_TIMEOUT: 25_000,
}


def lines_to(port: int) -> list[dict[int, int]]:
    """The TCP options of this process's connections to a local port."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # a descriptor may be closed, as the folder's is
            if not stat.S_ISSOCK(os.stat(f"/proc/self/fd/{name}").st_mode):
                continue
            with socket.socket(fileno=os.dup(int(name))) as line:
                if line.family == socket.AF_INET and line.getpeername()[1] == port:
                    assert line.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
                    found.append({option: line.getsockopt(socket.IPPROTO_TCP, option) for option in WANTED})
    return found


@asynccontextmanager
async def connected(user: str, url: str) -> AsyncIterator[None]:
    """A component with connections to PostgreSQL."""
    options = {"table": "orders", "columns": COLUMNS}
    if user == "claims":
        claims = PostgresqlClaims(url, ClaimTerms("shop", "1", 60.0, 60.0))
        await claims.claim([("orders", "a")], "1:1")
        yield
        await claims.close()
    elif user == "sql":
        sql = Sql(Sql.Options.model_validate({**options, "url": url.replace("postgresql:", "postgresql+psycopg:")}))
        await sql.start()
        await sql.handle(orders({"id": "1", "cents": 1}))
        yield
        await sql.stop()
    else:
        postgresql = PostgreSql(PostgreSql.Options.model_validate({**options, "url": url}))
        await postgresql.start()
        await postgresql.handle(orders({"id": "1", "cents": 1}))
        yield
        await postgresql.stop()


@pytest.mark.parametrize("user", ["claims", "sql", "postgresql"])
async def test_all_components_detect_a_vanished_host_after_the_same_time(
    postgresql: PostgresqlServer, database: str, user: str
) -> None:
    postgresql.execute(database, ORDERS)
    async with connected(user, database):
        lines = lines_to(postgresql.port)

    assert lines
    assert all(line == WANTED for line in lines)


async def test_keepalive_options_of_the_url_take_precedence(postgresql: PostgresqlServer, database: str) -> None:
    postgresql.execute(database, ORDERS)
    async with connected("postgresql", f"{database}?keepalives_idle=77"):
        lines = lines_to(postgresql.port)

    assert lines
    assert all(line == {**WANTED, socket.TCP_KEEPIDLE: 77} for line in lines)
