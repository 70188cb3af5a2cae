"""`postgresql` and `sql` behind PgBouncer in transaction mode: groups share sessions, and do not disturb each other."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import psycopg
import pytest

from tests.handlers.messages import batch_of, decided
from tests.nightly.handlers.test_table_changes import started
from tests.servers.fixtures import leave_out
from tests.servers.postgresql import PostgresqlServer
from tests.servers.process import ServerMissing, ServerProcess, find_program
from tests.servers.shops import Shop

pytestmark = pytest.mark.process


class PgBouncer(ServerProcess):
    """A pool of two sessions over a PostgreSQL."""

    def __init__(self, over: PostgresqlServer) -> None:
        self._over = over
        self._program = find_program("pgbouncer", "pgbouncer", Path("/usr/sbin"))
        super().__init__("pgbouncer", users=("postgres", "nobody"))

    def prepare(self) -> None:
        settings = f"listen_addr=127.0.0.1\nlisten_port={self.port}\nauth_type=any\npool_mode=transaction\n"
        settings += "default_pool_size=2\nignore_startup_parameters=extra_float_digits\nunix_socket_dir=\n"
        databases = f"[databases]\n* = host=127.0.0.1 port={self._over.port} user=rmqd\n"
        (self.directory / "pgbouncer.ini").write_text(f"{databases}[pgbouncer]\n{settings}")

    def command(self) -> Sequence[str | Path]:
        return [self._program, "pgbouncer.ini"]

    def is_ready(self) -> bool:
        try:
            psycopg.connect(f"postgresql://rmqd@127.0.0.1:{self.port}/postgres", connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True


@pytest.fixture
def pooled(postgresql: PostgresqlServer, request: pytest.FixtureRequest) -> Iterator[Shop]:
    """An empty database behind the pool."""
    try:
        server = PgBouncer(postgresql)
    except ServerMissing as error:
        leave_out(str(error), request)
    with server:
        name = postgresql.database().rpartition("/")[2]
        yield Shop("postgresql", f"postgresql+psycopg://rmqd@127.0.0.1:{server.port}/{name}", None)


@pytest.mark.parametrize(("plugin", "mode"), [("postgresql", "insert"), ("postgresql", "copy"), ("sql", "insert")])
async def test_two_groups_behind_one_pool_lose_nothing(pooled: Shop, plugin: str, mode: str) -> None:
    tables = ("orders", "invoices")
    for table in tables:
        pooled.query(f"CREATE TABLE {table} (id text PRIMARY KEY, {table}_body text)")
    async with AsyncExitStack() as stack:
        handlers = []
        for table in tables:
            columns = {"id": "body", f"{table}_body": "body"}
            options = {"table": table, "columns": columns, "key": ["id"], "mode": mode, "retry_for": "5s"}
            handlers.append(await stack.enter_async_context(started(plugin, pooled, **options)))
        batches = [batch_of(*(b"%d" % number for number in range(at, at + 5))) for at in range(0, 200, 5)]
        for place in range(0, len(batches), 4):
            await asyncio.gather(*(one.handle(batch) for one in handlers for batch in batches[place : place + 4]))

    assert [decided(batch) for batch in batches if decided(batch)] == []
    assert [pooled.query(f"SELECT count(*) FROM {table}") for table in tables] == [[(200,)]] * 2
