"""Records by SQLAlchemy, in SQLite files and in PostgreSQL."""

from __future__ import annotations

import contextlib
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from rmqd import AlreadyHandled
from rmqd.handler_api.once.once_group import once_for_group
from rmqd.wire.message_queue import Identity
from rmqd.wire.messages.message import once_in_group
from tests.handler_api.once.test_psycopg import message_of

INSERT = text("INSERT INTO orders VALUES ('a')")
COUNT = text("SELECT count(*) FROM orders")


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A database with a table of orders."""
    url = f"sqlite:///{tmp_path}/shop.db"
    with create_engine(url, poolclass=NullPool).begin() as connection:
        connection.execute(text("CREATE TABLE orders (id text)"))
    return url


def attempt(connection: Connection | Session, *, fails: bool = False) -> None:
    with message_of("a").once(connection):
        connection.execute(INSERT)
        if fails:
            raise ZeroDivisionError


@pytest.mark.parametrize("kind", ["connection", "session"])
def test_a_second_attempt_raises_already_handled(url: str, kind: str) -> None:
    engine = create_engine(url, poolclass=NullPool)

    with pytest.raises(ZeroDivisionError), engine.begin() as connection:
        attempt(connection, fails=True)
    for is_first in (True, False, False):
        with Session(engine) as session, engine.connect() as connection:
            one = connection if kind == "connection" else session
            if is_first:
                attempt(one)
            else:
                with pytest.raises(AlreadyHandled):
                    attempt(one)
            one.commit()
    with engine.connect() as connection:
        assert connection.execute(COUNT).scalar() == 1


def test_a_record_of_0_1_0_counts(url: str) -> None:
    """It names only the topic, without the cluster."""
    token = once_in_group.set(once_for_group("shop", partial(Identity, "c1", "", "shop")))
    with create_engine(url, poolclass=NullPool).begin() as connection:
        attempt(connection)
        connection.execute(text("UPDATE rmqd_handled SET topic = 't1'"))
    with create_engine(url, poolclass=NullPool).begin() as connection, pytest.raises(AlreadyHandled):
        attempt(connection)
    once_in_group.reset(token)


@pytest.mark.process
def test_an_existing_record_leaves_a_postgresql_transaction_usable(database: str) -> None:
    """PostgreSQL needs a savepoint for that."""
    engine = create_engine(database.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (id text)"))
        attempt(connection)
    with engine.begin() as connection:
        with pytest.raises(AlreadyHandled):
            attempt(connection)
        connection.execute(text("INSERT INTO orders VALUES ('another')"))
    with engine.connect() as connection:
        assert connection.execute(COUNT).scalar() == 2
    engine.dispose()


def test_a_message_without_a_group_is_new_only_at_the_first_attempt(url: str) -> None:
    """Its record has the same name as in 0.1.0."""
    once_in_group.set(once_for_group("", lambda: Identity("", "", "")))
    for is_known in (False, True):
        with (
            pytest.raises(AlreadyHandled) if is_known else contextlib.nullcontext(),
            create_engine(url, poolclass=NullPool).begin() as connection,
        ):
            attempt(connection)
