"""Records of handled messages by SQLAlchemy on PostgreSQL, by parallel threads."""

from __future__ import annotations

import contextvars
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import create_engine, text

from tests.handler_api.once.test_psycopg import message_of


@pytest.mark.process
def test_different_messages_side_by_side_are_all_handled_at_the_first_use(database: str) -> None:
    """That two make the table at once is no mark of either's."""
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
