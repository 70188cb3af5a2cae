"""Guarantees of every claim store: one owner at a time, and no claim on a confirmed message."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import sqlite3
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path

import pytest

from rmqd.handler_api.leases.lease_opening import StoreName, create_claim_store
from rmqd.handler_api.leases.lease_store import ClaimState, ClaimStore, ClaimStoreError, ClaimTerms, claim_key_of
from tests.servers.redis import RedisServer
from tests.waiting import eventually

OURS, HELD, CONFIRMED = ClaimState.OURS, ClaimState.HELD, ClaimState.CONFIRMED
A, B, C = ("orders", "a"), ("orders", "b"), ("invoices", "a")
SOON, LONG = 0.05, 60.0

Open = Callable[..., ClaimStore]
STORES = [
    "sqlite",
    pytest.param("redis", marks=pytest.mark.process),
    pytest.param("postgresql", marks=pytest.mark.process),
]


@pytest.fixture
def store_name() -> StoreName:
    """The store of the daily tests; tests/nightly has the others."""
    return "sqlite"


@pytest.fixture
async def open_one(store_name: StoreName, request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Open]:
    """`open_one(owner, lease_seconds=…, keep_seconds=…, group=…)`: stores over the same file or server."""
    url = str(tmp_path / "state" / "claims.sqlite3")
    if store_name == "redis":
        server: RedisServer = request.getfixturevalue("redis_server")
        url = server.url
    elif store_name == "postgresql":
        url = request.getfixturevalue("database")
    opened: list[ClaimStore] = []

    def open_it(owner: str, lease_seconds: float = LONG, keep_seconds: float = LONG, group: str = "shop") -> ClaimStore:
        opened.append(create_claim_store(store_name, url, ClaimTerms(group, owner, lease_seconds, keep_seconds)))
        return opened[-1]

    yield open_it
    for store in opened:
        await store.close()


@pytest.mark.parametrize("store_name", STORES)
async def test_one_owner_has_a_claim_until_it_is_confirmed(open_one: Open) -> None:
    first, second = open_one("1"), open_one("2")

    assert await first.claim([A, B], "1:1") == [OURS, OURS]
    assert await second.claim([B, C, A], "2:1") == [HELD, OURS, HELD]
    assert await first.confirm([A], "1:1") == 0
    assert await second.claim([A, B], "2:2") == [CONFIRMED, HELD]


@pytest.mark.parametrize("store_name", STORES)
async def test_a_record_of_0_1_0_counts_for_its_topic(open_one: Open) -> None:
    """It names the topic alone, without the cluster."""
    old, new = open_one("1"), open_one("2")
    await old.claim([A, B], "1:1")
    await old.confirm([A], "1:1")
    keys = [("c1/~/shop/orders", name) for name in "abc"]
    assert await new.claim(keys, "2:1", ["orders"] * 3) == [CONFIRMED, HELD, OURS]
    assert await new.claim(keys, "2:2", ["invoices", "", "orders"]) == [OURS, OURS, OURS]


async def test_a_claim_is_free_after_a_release_with_its_token(open_one: Open) -> None:
    first, second = open_one("1"), open_one("2")
    await first.claim([A, B], "1:1")

    await second.release([(A, "2:1")])
    assert await second.claim([A], "2:2") == [HELD]
    await first.release([(A, "1:1"), (B, "1:7")])
    assert await second.claim([A, B], "2:3") == [OURS, HELD]


async def test_a_late_release_does_not_affect_the_next_claim(open_one: Open) -> None:
    """The same owner may claim again before its release has arrived."""
    first, second = open_one("1"), open_one("2")
    await first.claim([A], "1:1")

    assert await first.claim([A], "1:2") == [OURS]
    await first.release([(A, "1:1")])
    assert await second.claim([A], "2:1") == [HELD]


async def test_a_release_or_renewal_does_not_remove_a_confirmation(open_one: Open) -> None:
    first, second = open_one("1"), open_one("2")
    await first.claim([A], "1:1")
    await first.confirm([A], "1:1")

    await first.release([(A, "1:1")])
    await first.renew([(A, "1:1")])
    assert await second.claim([A], "2:1") == [CONFIRMED]


async def test_an_expired_lease_frees_the_claim_and_a_renewed_lease_does_not(open_one: Open) -> None:
    lease_seconds = await _claim_and_renew(open_one)
    dead, second = open_one("1", lease_seconds), open_one("3")
    await dead.claim([A], "1:1")

    await _until_free(second, "3:1")  # a lease that began after the renewed one
    assert await second.claim([A, B], "3:2") == [OURS, HELD]


NAMES = ["", "a\0b", "a\nb", "\ud800", "x" * 201, "\u00fc" * 101, secrets.token_hex(3000), "order 17 \u00fc"]


async def test_each_text_is_a_separate_key_in_every_store(open_one: Open) -> None:
    """Also a text with a NUL, half of a surrogate pair, or more bytes than an index accepts."""
    first, second = open_one("1"), open_one("2")
    keys = [claim_key_of(topic, name) for name in NAMES for topic in ("orders", name)]

    assert await first.claim(keys, "1:1") == [OURS] * len(keys)
    assert await second.claim(keys, "2:1") == [HELD] * len(keys)
    assert len(set(keys)) == len(keys)
    assert claim_key_of("orders", "order 17 \u00fc") == ("orders", "order 17 \u00fc")


async def _until_free(store: ClaimStore, token: str) -> None:
    async def is_ours() -> bool:
        return await store.claim([A], token) == [OURS]

    await eventually(is_ours, "the claim has expired")


async def _claim_and_renew(open_one: Open) -> float:
    """Claim B, and renew the claim before its lease expires. Returns the lease, long enough for a busy machine."""
    renewing, lease_seconds = open_one("2", LONG), SOON
    while True:
        begun = time.monotonic()
        assert await open_one("2", lease_seconds).claim([B], "2:1") == [OURS]
        await renewing.renew([(B, "2:1")])
        if time.monotonic() - begun < lease_seconds:
            return lease_seconds
        lease_seconds *= 2


async def test_a_late_confirmation_counts_the_lost_claims_and_is_recorded(open_one: Open) -> None:
    slow, second = open_one("1", SOON), open_one("2")
    await slow.claim([A, B], "1:1")
    await _until_free(second, "2:1")

    assert await slow.confirm([A, B], "1:1") == 1
    await second.release([(A, "2:1")])
    assert await second.claim([A, B], "2:2") == [CONFIRMED, CONFIRMED]


async def test_a_confirmation_repeated_after_a_lost_response_counts_no_loss(open_one: Open) -> None:
    first, second = open_one("1", SOON), open_one("2")
    await first.claim([A, B], "1:1")
    await first.confirm([A, B], "1:1")
    assert await first.confirm([A, B], "1:1") == 0
    await second.claim([C], "2:1")
    await second.confirm([C], "2:1")
    assert await first.confirm([C], "1:2") == 1


async def test_a_confirmation_expires_and_is_purged(open_one: Open) -> None:
    first, second = open_one("1", LONG, SOON), open_one("2")
    await first.claim([A], "1:1")
    await first.confirm([A], "1:1")

    await _until_free(second, "2:1")
    await first.claim([B], "1:2")
    await first.purge()
    assert await second.claim([A, B], "2:2") == [OURS, HELD]


async def test_the_claims_of_groups_are_separate(open_one: Open) -> None:
    await open_one("1").claim([A], "1:1")

    assert await open_one("2", group="shop2").claim([A], "2:1") == [OURS]


async def test_concurrent_claims_give_each_message_one_owner(open_one: Open) -> None:
    """In any order of the messages, and without a deadlock."""
    stores = [open_one(str(number)) for number in range(4)]
    keys = [("orders", str(number)) for number in range(50)]

    answers = await asyncio.gather(
        *(store.claim(keys if number % 2 else keys[::-1], f"{number}:1") for number, store in enumerate(stores))
    )

    won = [answer if number % 2 else answer[::-1] for number, answer in enumerate(answers)]
    assert [sum(one[place] is OURS for one in won) for place in range(50)] == [1] * 50


PROCESS = """
import asyncio, sys
from rmqd.handler_api.leases.lease_opening import create_claim_store
from rmqd.handler_api.leases.lease_store import ClaimTerms

async def main():
    store = create_claim_store("sqlite", sys.argv[1], ClaimTerms("shop", "1", 60, 60))
    await store.claim([("orders", "a"), ("orders", "b")], "1:1")
    await store.confirm([("orders", "a")], "1:1")
    print("confirmed", flush=True)
    for number in range(1_000_000):
        await store.claim([("orders", str(number))], "1:2")
asyncio.run(main())
"""


@pytest.mark.process
async def test_a_file_keeps_the_claims_and_confirmations_of_a_killed_process(tmp_path: Path) -> None:
    """The process is killed while it writes."""
    place = tmp_path / "claims.sqlite3"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROCESS, str(place), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"confirmed\n"
    await eventually(lambda: place.with_name(f"{place.name}-wal").stat().st_size > 0, "the process writes")
    os.kill(process.pid, signal.SIGKILL)
    await process.wait()

    store = create_claim_store("sqlite", str(place), ClaimTerms("shop", "2", LONG, LONG))
    assert await store.claim([A, B], "2:1") == [CONFIRMED, HELD]
    await store.close()


async def test_a_file_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "claims.sqlite3"
    with closing(sqlite3.connect(path)) as file:
        file.execute("PRAGMA user_version = 1")
    store = create_claim_store("sqlite", str(path), ClaimTerms("shop", "ours", LONG, LONG))
    with pytest.raises(ClaimStoreError, match=r"claims\.sqlite3 was written by a newer rmqd \(format 1\)"):
        await store.claim([A], "token")
    await store.close()


async def test_a_damaged_file_is_named_and_stays(open_one: Open, tmp_path: Path) -> None:
    """Text that is not UTF-8, or no database at all. When the file is moved away, the store continues."""
    store, path = open_one("1"), tmp_path / "state" / "claims.sqlite3"
    await store.claim([A], "1:1")
    await store.close()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE claims SET token = CAST(X'FF' AS TEXT)")
    for content in (path.read_bytes(), b"\xff" * 4096):
        path.write_bytes(content)
        for ask in (store.claim, store.confirm):
            with pytest.raises(ClaimStoreError, match=r"^/.*claims\.sqlite3: .*; the file is damaged: .* move it away"):
                await ask([A], "1:1")
        assert path.read_bytes() == content
    path.rename(tmp_path / "damaged")
    assert await store.claim([A], "1:2") == [OURS]
