"""`redis`: replicas, long streams, and a Redis that is unavailable."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import redis

from rmqd import testing
from rmqd.handler_api.once.once_group import once_for_group
from rmqd.testing import RocketMQ
from rmqd.wire.message_queue import Identity
from rmqd.wire.messages.message import once_in_group
from rmqd_handlers.redis import RedisHandler
from tests.handlers.messages import batch_of, decided, make_batch, meant
from tests.handlers.test_redis import started
from tests.servers.redis import RedisServer
from tests.waiting import eventually

pytestmark = pytest.mark.process


async def test_a_stream_keeps_about_max_length_entries(redis_server: RedisServer, redis_client: Any) -> None:
    async with started(redis_server, max_length=10) as handler:
        await handler.handle(batch_of(*[b"x"] * 1000))

    assert 10 <= redis_client.xlen("orders") <= 200  # Redis removes whole nodes of 100


async def test_a_batch_fails_if_redis_stays_unavailable(redis_server: RedisServer, redis_client: Any) -> None:
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
    # no append-only file: a replica refuses to end while it writes its first one
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


async def test_a_remembered_batch_is_a_write(redis_server: RedisServer, redis_client: Any) -> None:
    """Since Redis 7.2, WAIT waits for the last write of its connection, and returns at once if there was none."""
    async with started(redis_server, mode="list", remember="1h") as handler:
        await handler.handle(batch_of(b"1"))
        (mark,) = redis_client.scan_iter("rmqd:*")
        redis_client.pexpire(mark, 60_000)
        before = redis_client.info("persistence")["rdb_changes_since_last_save"]
        await handler.handle(batch_of(b"1"))

    assert redis_client.info("persistence")["rdb_changes_since_last_save"] > before
    assert 0 < redis_client.pttl(mark) <= 60_000
    assert redis_client.lrange("orders", 0, -1) == [b"1"]


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


async def test_remember_by_may_be_a_value_of_the_body(redis_server: RedisServer, redis_client: Any) -> None:
    async with started(redis_server, mode="list", remember="1h", remember_by="$.id") as handler:
        await handler.handle(batch_of(b'{"id": 1}', b'{"id": 2}', b'{"id": 1}'))
        await handler.handle(batch_of(b'{"id": 2}', first=7))

    assert [json.loads(element)["id"] for element in redis_client.lrange("orders", 0, -1)] == [1, 2]


@asynccontextmanager
async def redis_that_says(answer: str | Callable[[list[bytes]], str]) -> AsyncIterator[str]:
    """The URL of a server with this response to EVAL, and OK for other commands."""
    answered = answer if callable(answer) else lambda _: answer

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while count := int((await reader.readline())[1:] or 0):
            parts = [await reader.readexactly(int((await reader.readline())[1:]) + 2) for _ in range(count)]
            writer.write(f"{answered(parts) if parts[0].startswith(b'EVAL') else '+OK'}\r\n".encode())
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0?protocol=2"


async def test_values_are_remembered_by_cluster_group_and_topic(redis_server: RedisServer, redis_client: Any) -> None:
    """Blank values are not remembered. Values from 0.1.0, stored alone, count for all groups, but not in replays."""
    redis_client.set("rmqd:{orders}:7", 1)
    options = {"mode": "list", "remember": "1h", "remember_by": "properties.k", "value": "topic"}
    async with started(redis_server, **options) as handler:
        for cluster, group, topic in (("c1", "g1", "t1"), ("c2", "g1", "t1"), ("c1", "g2", "t1"), ("c1", "g1", "t2")):
            once_in_group.set(once_for_group(group, partial(Identity, cluster, "", group)))
            for number, value in enumerate(("7", "8", "8", "", " ", " ")):
                message = testing.make_message(topic=topic, properties={"k": value}, msg_id=f"m{number}")
                await handler.handle(make_batch(message))
        once_in_group.set(once_for_group("g1", partial(Identity, "c1", "", "g1", replay="r1")))
        await handler.handle(make_batch(testing.make_message(topic="again", properties={"k": "7"})))
    assert redis_client.lrange("orders", 0, -1) == [b"t1"] * 12 + [b"t2"] * 4 + [b"again"]


async def test_calls_wait_while_memory_is_full_and_log_the_error_of_redis(
    redis_server: RedisServer, redis_client: Any, caplog: pytest.LogCaptureFixture
) -> None:
    redis_client.config_set("maxmemory", 1)
    async with started(redis_server) as handler:
        waiting = asyncio.create_task(handler.handle(batch_of(b"1")))
        await eventually(lambda: waiting.done() or bool(caplog.records), "the handler waits")
        redis_client.config_set("maxmemory", 0)
        await waiting
    assert "used memory > 'maxmemory'" in vars(caplog.records[0])["error"]
    assert redis_client.xlen("orders") == 1


@pytest.mark.parametrize("state", ["-WRONGTYPE of another kind", "-CLUSTERDOWN the cluster is down"])
async def test_other_errors_of_redis_count_no_attempt(state: str) -> None:
    async with redis_that_says(state) as url, started(None, url=url, retry_for="0s") as handler:
        with pytest.raises(redis.ResponseError) as raised:
            await handler.handle(batch_of(b"1"))
    assert meant(raised.value) == "again"


async def test_the_cluster_node_with_the_key_is_used(redis_server: RedisServer, redis_client: Any) -> None:
    async with redis_that_says(f"-MOVED 7 127.0.0.1:{redis_server.port}") as url, started(None, url=url) as handler:
        await handler.handle(batch_of(b"1", b"2"))
    assert redis_client.xlen("orders") == 2


async def test_records_are_on_the_node_of_a_key_with_braces() -> None:
    """A cluster hashes only the text in the first braces."""
    asked: list[list[bytes]] = []

    def answer(parts: list[bytes]) -> str:
        keys = parts[3 : 3 + int(parts[2])]
        asked.append(keys)
        tags = {found[1] for key in keys if (found := re.search(rb"\{([^}]+)\}", key))}
        return ":1" if len(tags) == 1 else "-CROSSSLOT Keys in request don't hash to the same slot"

    async with redis_that_says(answer) as url, started(None, url=url, key="{shop}:orders", remember="1h") as handler:
        await handler.handle(batch_of(b"1"))
        await handler.handle(batch_of(b"2"))
    assert len(asked) == 3


def test_messages_after_a_retried_message_are_added_once(redis_server: RedisServer, redis_client: Any) -> None:
    options = {"url": redis_server.url, "key": "orders", "fields": {"id": "$.id"}, "on_invalid": "retry"}
    with RocketMQ() as running:
        running.create_topic("orders")
        for body in ('{"id": 1}', "no JSON", '{"id": 2}', '{"id": 3}'):
            running.send("orders", body)
        keys: dict[str, Any] = {"consume_mode": "orderly", "consume_message_batch_max_size": 10}
        keys |= {"max_reconsume_times": 2, "suspend_current_queue_time": "10ms"}
        running.run_handler(RedisHandler, topic="orders", group="stream", options=options, **keys)
        assert len(running.dead_letters("stream")) == 1

    assert [entry[b"id"] for _, entry in redis_client.xrange("orders")] == [b"1", b"2", b"3"]


async def test_a_message_that_was_not_added_is_not_remembered(redis_server: RedisServer, redis_client: Any) -> None:
    redis_client.set("orders", "text")
    async with started(redis_server, remember="1h") as handler:
        with pytest.raises(redis.ResponseError):
            await handler.handle(batch_of(b"1"))
        redis_client.delete("orders")
        await handler.handle(batch_of(b"1"))

    assert redis_client.xlen("orders") == 1
