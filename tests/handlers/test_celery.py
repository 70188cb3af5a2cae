"""`celery`: tasks with the ids of messages, run by Celery's own worker."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from rmqd_handlers.celery import Celery
from tests.handlers.messages import make_batch, make_message
from tests.handlers.options import not_refused
from tests.servers.celery_worker import CeleryWorker
from tests.servers.redis import RedisServer
from tests.waiting import wait_until

pytestmark = pytest.mark.process


@asynccontextmanager
async def started(server: RedisServer, **options: object) -> AsyncIterator[Celery]:
    given = {"url": server.url, "task": "tests.note", "queue": "orders", **options}
    handler = Celery(Celery.Options.model_validate(given))
    await handler.start()
    try:
        yield handler
    finally:
        await handler.stop()


def queued(client: Any, queue: str = "orders") -> list[tuple[str, Any]]:
    """The id and the arguments of each waiting task, oldest first."""
    found = [json.loads(element) for element in reversed(client.lrange(queue, 0, -1))]
    return [(one["headers"]["id"], one["headers"]["argsrepr"]) for one in found]


async def test_a_worker_runs_the_task_of_a_message(redis_server: RedisServer, redis_client: Any) -> None:
    body = '{"id": 7, "cents": 1.10, "lines": [{"sku": "ü-1", "n": 0.5}], "none": null}'.encode()
    message = make_message(body, keys="order-7", properties={"colour": "grün"})
    kwargs = {"order": "$", "colour": "properties.colour", "missing": "$.no.such"}
    async with started(redis_server, args=["$.id", "$.cents", "keys"], kwargs=kwargs) as handler:
        await handler.handle(make_batch(message))
        await handler.handle(make_batch(message))

    with CeleryWorker(redis_server.url, "orders"):
        wait_until(lambda: redis_client.llen("done") == 2, "both are done", 60)
    first, again = (json.loads(element) for element in redis_client.lrange("done", 0, -1))
    assert (
        first
        == again
        == {
            "id": message.msg_id,
            "args": [7, 1.1, "order-7"],
            "kwargs": {"order": json.loads(body), "colour": "grün", "missing": None},
        }
    )


def test_wrong_options_are_refused() -> None:
    wrong: list[dict[str, object]] = [
        {"task": ""},
        {"args": ["no such field"]},
        {"kwargs": {"a": "no such field"}},
        {"task_id": "no such field"},
        {"client": {"broker_url": "redis://other"}},
        {"client": {"task_publish_retry": True}},
        {"client": {"result_backend": "rpc://"}},
        {"timeout": "0s"},
    ]

    assert not_refused(Celery.Options, wrong, url="redis://localhost", task="shop.tasks.pack") == []
