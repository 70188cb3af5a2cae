"""`redis`: entries of streams and lists, and no message lost while Redis is unavailable."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import redis

from rmqd_handlers.redis import RedisHandler
from tests.handlers.messages import batch_of, decided, make_batch, make_message
from tests.handlers.options import not_refused
from tests.servers.redis import RedisServer

pytestmark = pytest.mark.process


@asynccontextmanager
async def started(server: RedisServer | None, **options: object) -> AsyncIterator[RedisHandler]:
    url = {} if server is None else {"url": server.url}
    handler = RedisHandler(RedisHandler.Options.model_validate({**url, "key": "orders", **options}))
    await handler.start()
    try:
        yield handler
    finally:
        await handler.stop()


async def test_a_message_is_an_entry_of_a_stream(redis_server: RedisServer, redis_client: Any) -> None:
    message = make_message(b"\xff", keys="grüße")
    async with started(redis_server) as handler:
        await handler.handle(make_batch(message))

    [(_, entry)] = redis_client.xrange("orders")
    assert entry == {
        b"body": b"\xff",
        b"topic": b"orders",
        b"msg_id": message.msg_id.encode(),
        b"keys": "grüße".encode(),
        b"born_timestamp": b"1767225600000",
    }


async def test_an_entry_has_the_configured_fields(redis_server: RedisServer, redis_client: Any) -> None:
    fields = {"id": "$.id", "cents": "$.cents", "lines": "$.lines", "colour": "properties.colour", "none": "$.none"}
    batch = batch_of(b'{"id": "7", "cents": 1.10, "lines": ["a", 1.50]}', b"no JSON", b'{"other": 1}')
    async with started(redis_server, fields=fields) as handler:
        await handler.handle(batch)

    [(_, entry)] = redis_client.xrange("orders")
    assert entry == {b"id": b"7", b"cents": b"1.10", b"lines": b'["a",1.50]'}
    assert {place: outcome for place, (outcome, _) in decided(batch).items()} == {1: "dead_letter", 2: "dead_letter"}
    assert "not JSON" in decided(batch)[1][1]


async def test_a_message_is_a_list_element_and_max_length_keeps_the_newest(
    redis_server: RedisServer, redis_client: Any
) -> None:
    for mode, both, newest in (("list", b"1 2 3", b"2 3"), ("list_left", b"3 2 1", b"3 2")):
        for options, expected in (({}, both), ({"max_length": 2}, newest)):
            redis_client.delete("orders")
            async with started(redis_server, mode=mode, **options) as handler:
                await handler.handle(batch_of(b"1", b"2", b"3"))
            assert redis_client.lrange("orders", 0, -1) == expected.split(), (mode, options)


@pytest.mark.parametrize("mode", ["stream", "list"])
async def test_a_repeated_message_is_skipped_while_it_is_remembered(
    redis_server: RedisServer, redis_client: Any, mode: str
) -> None:
    for options, expected in (({"remember": "1h"}, 2), ({}, 6)):
        redis_client.flushall()
        async with started(redis_server, mode=mode, **options) as handler:
            for _ in range(3):
                await handler.handle(batch_of(b"1", b"2"))
        assert (redis_client.xlen("orders") if mode == "stream" else redis_client.llen("orders")) == expected


async def test_calls_wait_until_a_killed_redis_is_restarted(redis_server: RedisServer, redis_client: Any) -> None:
    async with started(redis_server, mode="list", remember="1h", max_connections=3) as handler:
        await asyncio.gather(*(handler.handle(batch_of(b"%d" % n, first=n)) for n in range(6)))
        redis_server.kill()
        waiting = [asyncio.create_task(handler.handle(batch_of(b"%d" % n, first=n))) for n in range(6, 12)]
        await asyncio.to_thread(redis_server.start)
        await asyncio.gather(*waiting)

    assert sorted(map(int, redis_client.lrange("orders", 0, -1))) == list(range(12))


async def test_an_unreachable_redis_fails_the_start(redis_server: RedisServer) -> None:
    with pytest.raises(redis.ConnectionError):
        async with started(redis_server, url="redis://127.0.0.1:1/0"):
            pass


def test_wrong_options_are_refused() -> None:
    wrong: list[dict[str, object]] = [
        {"key": ""},
        {"url": "rediss:/redis.example.org:6379/0"},
        {"url": "redis://localhost/orders"},  # the client would use database 0
        {"url": "redis://localhost:six/0"},
        {"mode": "set"},
        {"value": "body"},
        {"mode": "list", "fields": {"a": "keys"}},
        {"fields": {"a": "no such field"}},
        {"remember": "0s"},
        {"max_length": -1},
    ]

    assert not_refused(RedisHandler.Options, wrong, url="redis://localhost", key="orders") == []
    right = "redis://localhost:6379/2/", "redis://:p%40ss@[::1]/?db=2", "unix:///run/redis.sock?db=2"
    assert not_refused(RedisHandler.Options, [{"url": url} for url in right], key="orders") == [
        {"url": url} for url in right
    ]
