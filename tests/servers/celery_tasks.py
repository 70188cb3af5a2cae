"""A task for Celery's own worker: it adds its arguments to the list `done` of its broker, a Redis."""

from __future__ import annotations

import json
from typing import Any

from celery import Celery
from redis import Redis

app = Celery("tests")
app.conf.broker_connection_retry_on_startup = True


@app.task(name="tests.note", bind=True)  # type: ignore[untyped-decorator]
def note(task: Any, *args: object, **kwargs: object) -> None:
    """Note the id and the arguments."""
    with Redis.from_url(app.conf.broker_url) as client:
        client.rpush("done", json.dumps({"id": task.request.id, "args": args, "kwargs": kwargs}))
