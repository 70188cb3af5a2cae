"""The moments at which the campaign `spark_tables` kills: start, any time, copy, transaction, or after it."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import psycopg

from tests.waiting import Patience

Looking = psycopg.Connection[tuple[Any, ...]]

STARTING, ANY, COPY, TRANSACTION, NOTED = "starting", "any", "copy", "transaction", "noted"
MOMENTS: Final = (STARTING, ANY, COPY, TRANSACTION, NOTED)
CALM_SECONDS: Final = 4.0
CATCH_SECONDS: Final = 60.0  # timeout for a moment of a group with messages
POLL_SECONDS: Final = 0.002


class Moments:
    """Waits for a moment of a group, and prolongs a transaction."""

    def __init__(self, url: str, chance: random.Random) -> None:
        self._url = url
        self._chance = chance

    @contextlib.contextmanager
    def at(self, moment: str, group: str, table: str) -> Iterator[None]:
        """Run the block at that moment. In a transaction the group waits for a table lock until the block ends."""
        if moment == STARTING:
            time.sleep(self._chance.uniform(0.5, 2 * CALM_SECONDS))
            yield
        elif moment == ANY:
            time.sleep(self._chance.uniform(0.0, CALM_SECONDS))
            yield
        else:
            with contextlib.closing(psycopg.connect(self._url, autocommit=True)) as looking:
                if moment == TRANSACTION:
                    with contextlib.closing(psycopg.connect(self._url)) as holding:
                        holding.execute(f"LOCK TABLE {table} IN SHARE MODE".encode())  # blocks new rows
                        catch(lambda: _waits_for(looking, table), f"{group} waits for its table")
                        yield
                elif moment == COPY:
                    catch(lambda: _copies(looking, group), f"a task of {group} copies rows")
                    yield
                else:
                    before = _written_at(looking, group)
                    catch(lambda: _written_at(looking, group) != before, f"{group} has noted a batch")
                    yield

    def written_at(self, group: str) -> Any:
        """Return when the group's last batch was written; None if there is none."""
        with psycopg.connect(self._url, autocommit=True) as looking:
            return _written_at(looking, group)


def catch(question: Callable[[], object], what: str) -> None:
    """Poll fast, because a moment may be short."""
    patience = Patience(CATCH_SECONDS)
    while not question():
        assert not patience.is_over(), f"not within {CATCH_SECONDS:g} s: {what}"
        time.sleep(POLL_SECONDS)


def _written_at(looking: Looking, group: str) -> Any:
    if not _one(looking, "SELECT to_regclass('rmqd_batches') IS NOT NULL"):
        return None
    return _one(looking, "SELECT max(written_at) FROM rmqd_batches WHERE writer = %s", group)


def _waits_for(looking: Looking, table: str) -> Any:
    return _one(looking, "SELECT count(*) FROM pg_locks WHERE relation = %s::regclass AND NOT granted", table)


def _copies(looking: Looking, group: str) -> Any:
    statement = (
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s AND state = 'active' AND query LIKE 'COPY%%'"
    )
    return _one(looking, statement, f"rmqd {group}")


def _one(looking: Looking, statement: str, *parameters: str) -> Any:
    row = looking.execute(statement.encode(), parameters or None).fetchone()
    assert row is not None
    return row[0]
