"""`redis`: replicas, long streams, and a Redis that is unavailable."""

from __future__ import annotations

import json
from typing import Any

import pytest
import redis

from tests.handlers.messages import batch_of, decided
from tests.handlers.test_redis import started
from tests.servers.redis import RedisServer

pytestmark = pytest.mark.process


async def test_a_stream_keeps_about_as_many_as_it_may(redis_server: RedisServer, redis_client: Any) -> None:
    async with started(redis_server, max_length=10) as handler:
        await handler.handle(batch_of(*[b"x"] * 1000))

    assert 10 <= redis_client.xlen("orders") <= 200  # whole nodes of 100 are dropped


async def test_a_redis_that_stays_away_fails_the_batch(redis_server: RedisServer, redis_client: Any) -> None:
    async with started(redis_server, mode="list", retry_for="100ms") as handler:
        redis_server.kill()
        batch = batch_of(b"1")
        try:
            with pytest.raises(redis.ConnectionError):
                await handler.handle(batch)
        finally:
            redis_server.start()
        assert decided(batch) == {}  # so that it is retried as a whole
        await handler.handle(batch)

    assert redis_client.lrange("orders", 0, -1) == [b"1"]


async def test_a_batch_waits_for_replicas(redis_server: RedisServer, redis_client: Any) -> None:
    options: dict[str, Any] = {"mode": "list", "remember": "1h", "wait_replicas": 1, "timeout": "1s"}
    # without a file: a replica that is told to end while it writes its first one refuses, and goes on
    arguments = ["--appendonly", "no", "--replicaof", "127.0.0.1", str(redis_server.port)]
    with RedisServer(*arguments) as replica, replica.client() as asked:
        async with started(redis_server, **options) as handler:
            await handler.handle(batch_of(b"1"))
            assert asked.lrange("orders", 0, -1) == [b"1"]
        async with started(replica, retry_for="0s") as handler:
            with pytest.raises(redis.ReadOnlyError):
                await handler.handle(batch_of(b"2"))
    async with started(redis_server, **options, retry_for="0s") as handler:
        with pytest.raises(Exception, match="0 of 1 replicas"):
            await handler.handle(batch_of(b"3"))


async def test_a_batch_that_waits_for_replicas_is_added_once(redis_server: RedisServer, redis_client: Any) -> None:
    options: dict[str, Any] = {"mode": "list", "wait_replicas": 1, "timeout": "200ms", "retry_for": "1s"}
    async with started(redis_server, **options) as handler:
        with pytest.raises(Exception, match="0 of 1 replicas"):
            await handler.handle(batch_of(b"1"))

    assert redis_client.lrange("orders", 0, -1) == [b"1"]


async def test_a_key_of_another_type_fails_the_batch(redis_server: RedisServer, redis_client: Any) -> None:
    redis_client.set("orders", "text")
    async with started(redis_server) as handler:
        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            await handler.handle(batch_of(b"1"))


async def test_what_is_remembered_can_be_a_value(redis_server: RedisServer, redis_client: Any) -> None:
    async with started(redis_server, mode="list", remember="1h", remember_by="$.id") as handler:
        await handler.handle(batch_of(b'{"id": 1}', b'{"id": 2}', b'{"id": 1}'))
        await handler.handle(batch_of(b'{"id": 2}', first=7))

    assert [json.loads(element)["id"] for element in redis_client.lrange("orders", 0, -1)] == [1, 2]
