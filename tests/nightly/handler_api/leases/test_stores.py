"""The stores of claims on servers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rmqd.handler_api.leases import postgresql_store
from rmqd.handler_api.leases.lease_opening import StoreName, create_claim_store
from rmqd.handler_api.leases.lease_store import ClaimState, ClaimStoreError, ClaimTerms
from tests.client.remoting.silent_line import SilentLine
from tests.handler_api.leases.test_stores import (
    CONFIRMED,
    HELD,
    LONG,
    OURS,
    A,
    B,
    C,
    open_one,
    test_a_confirmation_is_forgotten_after_its_time_and_purged,
    test_a_confirmation_that_is_repeated_after_a_lost_response_has_lost_nothing,
    test_a_lease_that_is_over_gives_the_claim_free_and_one_that_is_renewed_does_not,
    test_a_release_never_takes_a_confirmation_away,
    test_a_release_that_comes_late_leaves_the_next_claim_alone,
    test_each_text_is_a_key_of_its_own_in_every_store,
    test_groups_know_nothing_of_each_other,
    test_of_many_that_claim_at_once_each_message_has_one,
    test_what_is_released_can_be_claimed_and_only_by_its_token,
    test_who_was_too_late_hears_that_its_claim_was_lost_and_what_it_did_is_confirmed,
)
from tests.servers.postgresql import PostgresqlServer
from tests.servers.redis import RedisServer
from tests.waiting import eventually

__all__ = [
    "open_one",
    "test_a_confirmation_is_forgotten_after_its_time_and_purged",
    "test_a_confirmation_that_is_repeated_after_a_lost_response_has_lost_nothing",
    "test_a_lease_that_is_over_gives_the_claim_free_and_one_that_is_renewed_does_not",
    "test_a_release_never_takes_a_confirmation_away",
    "test_a_release_that_comes_late_leaves_the_next_claim_alone",
    "test_each_text_is_a_key_of_its_own_in_every_store",
    "test_groups_know_nothing_of_each_other",
    "test_of_many_that_claim_at_once_each_message_has_one",
    "test_what_is_released_can_be_claimed_and_only_by_its_token",
    "test_who_was_too_late_hears_that_its_claim_was_lost_and_what_it_did_is_confirmed",
]

SERVERS = [pytest.param(name, marks=pytest.mark.process) for name in ("redis", "postgresql")]


@pytest.fixture(params=SERVERS)
def store_name(request: pytest.FixtureRequest) -> StoreName:
    """The stores on servers."""
    name: StoreName = request.param
    return name


@pytest.mark.process
async def test_a_postgresql_that_is_away_says_so_and_is_used_once_it_is_back(
    postgresql: PostgresqlServer, database: str
) -> None:
    store = create_claim_store("postgresql", database, ClaimTerms("shop", "1", LONG, LONG))
    other = create_claim_store("postgresql", database, ClaimTerms("shop", "2", LONG, LONG))
    await store.claim([A, B], "1:1")
    await store.confirm([A], "1:1")
    postgresql.kill()
    try:
        with pytest.raises(ClaimStoreError, match="PostgreSQL: "):
            await store.claim([C], "1:2")
    finally:
        postgresql.start()

    async def claimed() -> list[ClaimState]:
        while True:
            try:
                return await other.claim([A, B], "2:1")
            except ClaimStoreError:  # a connection of before
                continue

    assert await claimed() == [CONFIRMED, HELD]
    await store.close()
    await other.close()


@pytest.mark.process
async def test_a_postgresql_that_falls_silent_says_so_and_is_used_by_new_connections(
    postgresql: PostgresqlServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a primary whose host is gone without a word, while its name leads to its successor already."""
    monkeypatch.setattr(postgresql_store, "CALL_SECONDS", 1.0)
    async with SilentLine(postgresql.port) as line:
        url = database.replace(f"127.0.0.1:{postgresql.port}", line.address)
        store = create_claim_store("postgresql", url, ClaimTerms("shop", "1", LONG, LONG))
        await asyncio.gather(*(store.claim([("orders", str(number))], "1:1") for number in range(20)))
        await eventually(lambda: line.open > 1, "it has several connections")
        accepted = line.accepted
        line.swallow()

        with pytest.raises(ClaimStoreError, match=r"PostgreSQL: .* did not respond for 1 s"):
            await store.claim([A], "1:2")
        assert await store.claim([A], "1:3") == [OURS]
        assert line.accepted > accepted
        await store.close()


@pytest.mark.process
async def test_a_redis_that_is_away_says_so_and_is_used_once_it_is_back(redis_server: RedisServer) -> None:
    store = create_claim_store("redis", redis_server.url, ClaimTerms("shop", "1", LONG, LONG))
    await store.claim([A], "1:1")
    redis_server.kill()
    try:
        with pytest.raises(ClaimStoreError, match="Redis: "):
            await store.claim([A], "1:2")
    finally:
        redis_server.start()
    assert await store.claim([A], "1:3") == [OURS]
    await store.close()


async def test_a_file_that_cannot_be_written_says_so_with_its_path(tmp_path: Path) -> None:
    place = tmp_path / "claims.sqlite3"
    place.write_text("this is no database, and it is longer than a header of one would be: " + "x" * 100)
    store = create_claim_store("sqlite", str(place), ClaimTerms("shop", "1", LONG, LONG))

    with pytest.raises(ClaimStoreError, match=r"claims\.sqlite3: file is not a database"):
        await store.claim([A], "1:1")
    place.unlink()
    assert await store.claim([A], "1:2") == [OURS]
    await store.close()


async def test_many_may_create_one_file_at_once(tmp_path: Path) -> None:
    """SQLite refuses those that are not first; all of them wait."""
    for number in range(20):
        place = str(tmp_path / f"{number}.sqlite3")
        stores = [create_claim_store("sqlite", place, ClaimTerms("shop", str(owner), LONG, LONG)) for owner in range(6)]
        answers = await asyncio.gather(*(store.claim([A], f"{owner}:1") for owner, store in enumerate(stores)))
        assert [answers.count([OURS]), answers.count([HELD])] == [1, 5]
        for store in stores:
            await store.close()
