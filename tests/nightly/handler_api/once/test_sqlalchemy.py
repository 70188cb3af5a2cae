"""Records of handled messages by SQLAlchemy on PostgreSQL, by parallel threads."""

from __future__ import annotations

import contextlib
import contextvars
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.dialects import mysql
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.pool import NullPool
from sqlalchemy.schema import CreateTable

from rmqd import AlreadyHandled
from rmqd.handler_api.once.once_group import once_for_group
from rmqd.handler_api.once.sqlalchemy_connection import HANDLED
from rmqd.wire.message_queue import Identity
from rmqd.wire.messages.message import once_in_group
from tests.handler_api.once.test_psycopg import message_of
from tests.handler_api.once.test_sqlalchemy import COUNT, INSERT, attempt, url

__all__ = ["url"]


@pytest.mark.process
def test_parallel_messages_are_all_handled_at_the_first_use(database: str) -> None:
    """Two transactions that create the table at the same time do not count as handled."""
    engine = create_engine(database.replace("postgresql:", "postgresql+psycopg:"), pool_size=8)
    together = threading.Barrier(8)

    def handle(number: int) -> None:
        with engine.begin() as connection:
            connection.execute(text("SELECT 1"))
            together.wait(20)
            with message_of(f"m{number}").once(connection):
                pass

    contexts = [contextvars.copy_context() for _ in range(8)]
    with ThreadPoolExecutor(8) as threads:
        for future in [threads.submit(context.run, handle, at) for at, context in enumerate(contexts)]:
            future.result()
    with engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM rmqd_handled")).scalar() == 8
    engine.dispose()


def test_a_table_that_ignores_case_does_not_confuse_messages(url: str) -> None:
    """As MySQL's default collations do. Messages and records of rmqd 0.1.0 in another case do not count as handled."""
    texts = ", ".join(f"{name} text COLLATE NOCASE" for name in ("consumer_group", "topic", "msg_id"))
    engine = create_engine(url, poolclass=NullPool)
    with engine.begin() as connection:
        connection.execute(text(f"CREATE TABLE rmqd_handled ({texts}, PRIMARY KEY (consumer_group, topic, msg_id))"))
        connection.execute(text("INSERT INTO rmqd_handled VALUES ('SHOP', 'T1', 'a')"))
    token = once_in_group.set(once_for_group("shop", partial(Identity, "c1", "", "shop")))
    with engine.begin() as connection:
        attempt(connection)
    with engine.begin() as connection, pytest.raises(AlreadyHandled):
        attempt(connection)
    with engine.begin() as connection, pytest.raises(RuntimeError, match="binary collation"):  # noqa: SIM117
        with message_of("A").once(connection):
            pass
    once_in_group.reset(token)
    made = str(CreateTable(HANDLED).compile(dialect=mysql.dialect()))
    assert made.count("VARCHAR(255) COLLATE utf8mb4_bin NOT NULL") == 3


@pytest.mark.parametrize("kind", ["connection", "session"])
async def test_an_asynchronous_connection_or_session_may_be_used(url: str, kind: str) -> None:
    engine = create_async_engine(url.replace("sqlite:", "sqlite+aiosqlite:"))

    async def once() -> None:
        async with AsyncSession(engine) as session, engine.connect() as connection:
            one = connection if kind == "connection" else session
            async with message_of("a").once(one):
                await one.execute(INSERT)
            await one.commit()

    await once()
    with pytest.raises(AlreadyHandled):
        await once()
    async with engine.connect() as connection:
        assert (await connection.execute(COUNT)).scalar() == 1
    await engine.dispose()


def test_a_dropped_table_is_created_again(url: str) -> None:
    """The next attempt after the failed one creates it."""
    engine = create_engine(url, poolclass=NullPool)
    for _ in range(2):
        with engine.begin() as connection, contextlib.suppress(AlreadyHandled):
            attempt(connection)
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE rmqd_handled"))
    with pytest.raises(OperationalError), engine.begin() as connection:
        attempt(connection)
    with engine.begin() as connection:
        attempt(connection)
