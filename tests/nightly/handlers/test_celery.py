"""`celery` while its broker is unavailable, and its settings."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from kombu.exceptions import OperationalError

from rmqd_handlers.celery import Celery, CelerySettingError
from tests.handlers.messages import batch_of, decided, meant
from tests.handlers.test_celery import queued, started
from tests.servers.redis import RedisServer

pytestmark = pytest.mark.process


async def test_calls_wait_until_a_killed_broker_is_restarted(redis_server: RedisServer, redis_client: Any) -> None:
    async with started(redis_server, max_connections=3) as handler:
        await asyncio.gather(*(handler.handle(batch_of(b"%d" % n, first=n)) for n in range(6)))
        redis_server.kill()
        waiting = [asyncio.create_task(handler.handle(batch_of(b"%d" % n, first=n))) for n in range(6, 12)]
        await asyncio.to_thread(redis_server.start)
        await asyncio.gather(*waiting)

    assert {args for _, args in queued(redis_client)} == {f"['{n}']" for n in range(12)}


async def test_a_batch_fails_if_the_broker_stays_unavailable(redis_server: RedisServer, redis_client: Any) -> None:
    async with started(redis_server, retry_for="100ms") as handler:
        redis_server.kill()
        batch = batch_of(b"1")
        try:
            with pytest.raises(OperationalError):
                await handler.handle(batch)
        finally:
            redis_server.start()
        assert decided(batch) == {}  # so that it is retried as a whole
        await handler.handle(batch)

    assert queued(redis_client) == [(batch[0].msg_id, "['1']")]


async def test_an_unreachable_broker_fails_the_start(redis_server: RedisServer) -> None:
    with pytest.raises(OperationalError):
        async with started(redis_server, url="redis://127.0.0.1:1/0"):
            pass


async def test_the_environment_does_not_override_the_url(
    redis_server: RedisServer, redis_client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CELERY_BROKER_URL", "redis://127.0.0.1:1/0")
    async with started(redis_server) as handler:
        await handler.handle(batch_of(b"1"))

    assert len(queued(redis_client)) == 1


async def test_an_unknown_celery_setting_fails_the_start(redis_server: RedisServer) -> None:
    with pytest.raises(CelerySettingError, match="task_defualt_priority"):
        async with started(redis_server, client={"task_defualt_priority": 5}):
            pass


async def test_a_message_waits_while_memory_is_full(redis_server: RedisServer, redis_client: Any) -> None:
    async with started(redis_server, retry_for="0s") as handler:
        redis_client.config_set("maxmemory", 1)
        with pytest.raises(OperationalError, match="used memory") as raised:
            await handler.handle(batch_of(b"1"))
        redis_client.config_set("maxmemory", 0)
    assert meant(raised.value) == "again"


async def test_a_message_waits_while_the_user_lacks_a_permission(redis_server: RedisServer, redis_client: Any) -> None:
    async with started(redis_server, retry_for="0s") as handler:
        redis_client.execute_command("ACL", "SETUSER", "default", "-ping")
        try:
            for _ in range(2):  # the second call creates a producer
                with pytest.raises(OperationalError, match="ping") as raised:
                    await handler.handle(batch_of(b"1"))
                assert meant(raised.value) == "again"
        finally:
            redis_client.execute_command("ACL", "SETUSER", "default", "+@all")


async def test_no_message_is_blamed_for_a_queue_that_the_settings_forbid() -> None:
    options = {"url": "memory://", "task": "pack", "queue": "orders", "retry_for": "0s"}
    handler = Celery(Celery.Options.model_validate(options | {"client": {"task_create_missing_queues": False}}))
    await handler.start()
    with pytest.raises(OperationalError, match="orders") as raised:
        await handler.handle(batch_of(b"1"))
    await handler.stop()
    assert meant(raised.value) == "again"


async def test_a_task_has_the_body_by_default(redis_server: RedisServer, redis_client: Any) -> None:
    batch = batch_of("grüße".encode(), b"\xff")
    async with started(redis_server, queue=None) as handler:
        await handler.handle(batch)

    assert queued(redis_client, "celery") == [(batch[0].msg_id, "['grüße']")]
    [(place, (outcome, reason))] = decided(batch).items()
    assert (place, outcome) == (1, "dead_letter")
    assert "not UTF-8" in reason


async def test_a_task_has_the_configured_id(redis_server: RedisServer, redis_client: Any) -> None:
    batch = batch_of(b'{"id": 7}', b'{"other": 1}', b"no JSON")
    async with started(redis_server, task_id="$.id") as handler:
        await handler.handle(batch)

    assert [task_id for task_id, _ in queued(redis_client)] == ["7"]
    assert {place: outcome for place, (outcome, _) in decided(batch).items()} == {1: "dead_letter", 2: "dead_letter"}


async def test_tasks_are_in_the_order_of_their_batch(redis_server: RedisServer, redis_client: Any) -> None:
    batch = batch_of(*(b"%d" % n for n in range(50)))
    async with started(redis_server) as handler:
        await handler.handle(batch)

    assert queued(redis_client) == [(message.msg_id, f"['{n}']") for n, message in enumerate(batch)]
