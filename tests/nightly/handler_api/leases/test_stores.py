"""Lease stores on servers, and SQLite files."""

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
    test_a_claim_is_free_after_a_release_with_its_token,
    test_a_confirmation_expires_and_is_purged,
    test_a_confirmation_repeated_after_a_lost_response_counts_no_loss,
    test_a_late_confirmation_counts_the_lost_claims_and_is_recorded,
    test_a_late_release_does_not_affect_the_next_claim,
    test_a_release_or_renewal_does_not_remove_a_confirmation,
    test_an_expired_lease_frees_the_claim_and_a_renewed_lease_does_not,
    test_concurrent_claims_give_each_message_one_owner,
    test_each_text_is_a_separate_key_in_every_store,
    test_the_claims_of_groups_are_separate,
)
from tests.servers.postgresql import PostgresqlServer
from tests.servers.redis import RedisServer
from tests.waiting import eventually

__all__ = [
    "open_one",
    "test_a_claim_is_free_after_a_release_with_its_token",
    "test_a_confirmation_expires_and_is_purged",
    "test_a_confirmation_repeated_after_a_lost_response_counts_no_loss",
    "test_a_late_confirmation_counts_the_lost_claims_and_is_recorded",
    "test_a_late_release_does_not_affect_the_next_claim",
    "test_a_release_or_renewal_does_not_remove_a_confirmation",
    "test_an_expired_lease_frees_the_claim_and_a_renewed_lease_does_not",
    "test_concurrent_claims_give_each_message_one_owner",
    "test_each_text_is_a_separate_key_in_every_store",
    "test_the_claims_of_groups_are_separate",
]

SERVERS = [pytest.param(name, marks=pytest.mark.process) for name in ("redis", "postgresql")]


@pytest.fixture(params=SERVERS)
def store_name(request: pytest.FixtureRequest) -> StoreName:
    """The stores on servers."""
    name: StoreName = request.param
    return name


@pytest.mark.process
async def test_an_unavailable_postgresql_is_an_error_and_is_used_after_its_restart(
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
            except ClaimStoreError:  # an old connection
                continue

    assert await claimed() == [CONFIRMED, HELD]
    await store.close()
    await other.close()


@pytest.mark.process
async def test_a_silent_postgresql_is_an_error_and_is_used_over_new_connections(
    postgresql: PostgresqlServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a primary whose host has vanished, and whose name already resolves to its successor."""
    monkeypatch.setattr(postgresql_store, "CALL_SECONDS", 1.0)
    async with SilentLine(postgresql.port) as line:
        url = database.replace(f"127.0.0.1:{postgresql.port}", line.address)
        store = create_claim_store("postgresql", url, ClaimTerms("shop", "1", LONG, LONG))
        await asyncio.gather(*(store.claim([("orders", str(number))], "1:1") for number in range(20)))
        await eventually(lambda: line.open > 1, "the store has several connections")
        accepted = line.accepted
        line.swallow()

        with pytest.raises(ClaimStoreError, match=r"PostgreSQL: .* did not respond for 1 s"):
            await store.claim([A], "1:2")
        assert await store.claim([A], "1:3") == [OURS]
        assert line.accepted > accepted
        await store.close()


@pytest.mark.process
async def test_an_id_that_the_encoding_of_a_postgresql_lacks_is_an_error(
    postgresql: PostgresqlServer, database: str
) -> None:
    postgresql.execute(database, "CREATE DATABASE in_latin1 ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    store = create_claim_store("postgresql", postgresql.url("in_latin1"), ClaimTerms("shop", "1", LONG, LONG))
    assert await store.claim([("orders", "\u00fc")], "1:1") == [OURS]
    with pytest.raises(ClaimStoreError, match=r"PostgreSQL: .*u20ac.*; use a database with the encoding UTF8"):
        await store.claim([("orders", "\u20ac")], "1:2")
    await store.close()


@pytest.mark.process
async def test_an_unavailable_redis_is_an_error_and_is_used_after_its_restart(redis_server: RedisServer) -> None:
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


async def test_parallel_stores_may_create_the_same_file(tmp_path: Path) -> None:
    """SQLite refuses all but the first; the others wait."""
    for number in range(20):
        place = str(tmp_path / f"{number}.sqlite3")
        stores = [create_claim_store("sqlite", place, ClaimTerms("shop", str(owner), LONG, LONG)) for owner in range(6)]
        answers = await asyncio.gather(*(store.claim([A], f"{owner}:1") for owner, store in enumerate(stores)))
        assert [answers.count([OURS]), answers.count([HELD])] == [1, 5]
        for store in stores:
            await store.close()
