"""`redis`: entries as the messages have them, and nothing lost while Redis is away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import redis

from rmqd import testing
from rmqd.handler_api.once.once_group import once_of
from rmqd.testing import RocketMQ
from rmqd.wire.message_queue import Identity
from rmqd.wire.messages.message import once_in_group
from rmqd_handlers.redis import RedisHandler
from tests.handlers.messages import batch_of, decided, make_batch, make_message, meant
from tests.handlers.options import not_refused
from tests.servers.redis import RedisServer
from tests.waiting import eventually

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


@asynccontextmanager
async def redis_that_says(answer: str) -> AsyncIterator[str]:
    """The URL of a server that answers EVAL so, and all else with OK."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while count := int((await reader.readline())[1:] or 0):
            parts = [await reader.readexactly(int((await reader.readline())[1:]) + 2) for _ in range(count)]
            writer.write(f"{answer if parts[0].startswith(b'EVAL') else '+OK'}\r\n".encode())
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0?protocol=2"


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


async def test_an_entry_has_the_fields_that_are_named(redis_server: RedisServer, redis_client: Any) -> None:
    fields = {"id": "$.id", "cents": "$.cents", "lines": "$.lines", "colour": "properties.colour", "none": "$.none"}
    batch = batch_of(b'{"id": "7", "cents": 1.10, "lines": ["a", 1.50]}', b"no JSON", b'{"other": 1}')
    async with started(redis_server, fields=fields) as handler:
        await handler.handle(batch)

    [(_, entry)] = redis_client.xrange("orders")
    assert entry == {b"id": b"7", b"cents": b"1.10", b"lines": b'["a",1.50]'}
    assert {place: outcome for place, (outcome, _) in decided(batch).items()} == {1: "dead_letter", 2: "dead_letter"}
    assert "not JSON" in decided(batch)[1][1]


async def test_a_message_is_an_element_of_a_list_that_keeps_the_newest(
    redis_server: RedisServer, redis_client: Any
) -> None:
    for mode, both, newest in (("list", b"1 2 3", b"2 3"), ("list_left", b"3 2 1", b"3 2")):
        for options, expected in (({}, both), ({"max_length": 2}, newest)):
            redis_client.delete("orders")
            async with started(redis_server, mode=mode, **options) as handler:
                await handler.handle(batch_of(b"1", b"2", b"3"))
            assert redis_client.lrange("orders", 0, -1) == expected.split(), (mode, options)


@pytest.mark.parametrize("mode", ["stream", "list"])
async def test_a_message_that_comes_again_is_left_out_for_so_long(
    redis_server: RedisServer, redis_client: Any, mode: str
) -> None:
    for options, expected in (({"remember": "1h"}, 2), ({}, 6)):
        redis_client.flushall()
        async with started(redis_server, mode=mode, **options) as handler:
            for _ in range(3):
                await handler.handle(batch_of(b"1", b"2"))
        assert (redis_client.xlen("orders") if mode == "stream" else redis_client.llen("orders")) == expected


async def test_what_is_remembered_is_of_a_cluster_group_and_topic(redis_server: RedisServer, redis_client: Any) -> None:
    """An empty value is none. What 0.1.0 remembered, which is the value alone, counts for each."""
    redis_client.set("rmqd:{orders}:7", 1)
    options = {"mode": "list", "remember": "1h", "remember_by": "properties.k", "value": "topic"}
    async with started(redis_server, **options) as handler:
        for cluster, group, topic in (("c1", "g1", "t1"), ("c2", "g1", "t1"), ("c1", "g2", "t1"), ("c1", "g1", "t2")):
            once_in_group.set(once_of(group, partial(Identity, cluster, "", group)))
            for number, value in enumerate(("7", "8", "8", "", "")):
                message = testing.make_message(topic=topic, properties={"k": value}, msg_id=f"m{number}")
                await handler.handle(make_batch(message))
    assert redis_client.lrange("orders", 0, -1) == [b"t1"] * 9 + [b"t2"] * 3


async def test_a_redis_that_is_killed_and_comes_back_is_waited_for(
    redis_server: RedisServer, redis_client: Any
) -> None:
    async with started(redis_server, mode="list", remember="1h", max_connections=3) as handler:
        await asyncio.gather(*(handler.handle(batch_of(b"%d" % n, first=n)) for n in range(6)))
        redis_server.kill()
        waiting = [asyncio.create_task(handler.handle(batch_of(b"%d" % n, first=n))) for n in range(6, 12)]
        await asyncio.to_thread(redis_server.start)
        await asyncio.gather(*waiting)

    assert sorted(map(int, redis_client.lrange("orders", 0, -1))) == list(range(12))


async def test_full_memory_is_waited_for_and_told_in_the_words_of_redis(
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
async def test_any_other_state_of_redis_counts_no_attempt(state: str) -> None:
    async with redis_that_says(state) as url, started(None, url=url, retry_for="0s") as handler:
        with pytest.raises(redis.ResponseError) as raised:
            await handler.handle(batch_of(b"1"))
    assert meant(raised.value) == "again"


async def test_the_node_of_a_cluster_that_has_the_key_is_used(redis_server: RedisServer, redis_client: Any) -> None:
    async with redis_that_says(f"-MOVED 7 127.0.0.1:{redis_server.port}") as url, started(None, url=url) as handler:
        await handler.handle(batch_of(b"1", b"2"))
    assert redis_client.xlen("orders") == 2


def test_what_stands_behind_a_message_that_is_retried_is_added_once(
    redis_server: RedisServer, redis_client: Any
) -> None:
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


async def test_what_could_not_be_added_is_not_remembered(redis_server: RedisServer, redis_client: Any) -> None:
    redis_client.set("orders", "text")
    async with started(redis_server, remember="1h") as handler:
        with pytest.raises(redis.ResponseError):
            await handler.handle(batch_of(b"1"))
        redis_client.delete("orders")
        await handler.handle(batch_of(b"1"))

    assert redis_client.xlen("orders") == 1


async def test_a_redis_that_is_away_fails_the_start(redis_server: RedisServer) -> None:
    with pytest.raises(redis.ConnectionError):
        async with started(redis_server, url="redis://127.0.0.1:1/0"):
            pass


def test_wrong_options_are_refused() -> None:
    wrong: list[dict[str, object]] = [
        {"key": ""},
        {"url": "rediss:/redis.example.org:6379/0"},
        {"mode": "set"},
        {"value": "body"},
        {"mode": "list", "fields": {"a": "keys"}},
        {"fields": {"a": "no such field"}},
        {"remember": "0s"},
        {"max_length": -1},
    ]

    assert not_refused(RedisHandler.Options, wrong, url="redis://localhost", key="orders") == []
