"""The handler `celery`: a batch is acknowledged when Celery's broker has all of its tasks."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator

from rmqd import Batch
from rmqd_handlers.away import RETRY_FOR, try_again
from rmqd_handlers.extras import need
from rmqd_handlers.message_values import InvalidBodyError, MessageValue, parse_value
from rmqd_handlers.refused import ON_INVALID, OnInvalid, acknowledge_written, refuse
from rmqd_handlers.units import DurationSeconds

from .sending import OURS, Sender
from .tasks import Task, task_of

BODY = parse_value("body")


class Celery:
    """Sends each message as a task to Celery workers. It does not wait for their results."""

    calls_limited_by: ClassVar[str] = "max_connections"

    class Options(BaseModel):
        model_config = ConfigDict(extra="forbid", validate_default=True)

        url: SecretStr = Field(
            description="Celery's broker: redis://user:password@host:6379/0, amqp://user:password@host:5672/vhost, or "
            "another URL that Celery supports"
        )
        task: str = Field(description="the task's name: shop.tasks.pack", min_length=1)
        queue: str | None = Field(None, description="Celery's queue; default: as in task_routes, or celery")
        args: list[MessageValue] = Field(
            default_factory=list,
            description="the task's positional arguments: a JSON path into the body, a field such as msg_id, or "
            "properties.NAME; the default is the body as text, if kwargs is not set either",
        )
        kwargs: dict[str, MessageValue] = Field(
            default_factory=dict, description="the task's keyword arguments and their values"
        )
        task_id: MessageValue = Field(
            "msg_id",  # type: ignore[assignment]
            description="the task's id, with which workers recognise a redelivered message",
        )
        client: dict[str, Any] = Field(
            default_factory=dict,
            description="Celery settings by name, such as {task_default_priority: 5, broker_use_ssl: true}",
        )
        on_invalid: OnInvalid = ON_INVALID
        timeout: Annotated[DurationSeconds, Field(gt=0)] = Field(
            "5s",  # type: ignore[assignment]
            description="timeout for connecting to the broker, and for its responses",
        )
        max_connections: Annotated[int, Field(ge=1, le=1000)] = Field(
            4, description="connections of this process; further batches wait for one"
        )
        retry_for: DurationSeconds = RETRY_FOR

        @model_validator(mode="after")
        def _fit(self) -> Self:
            for name in sorted(self.client.keys() & OURS.keys()):
                raise ValueError(f"{name} cannot be set in client: {OURS[name]}")
            return self

    def __init__(self, options: Options) -> None:
        need("celery", "celery")
        self._options = options
        self._args = options.args if options.args or options.kwargs else [BODY]
        self._slots = asyncio.Semaphore(options.max_connections)
        self._sender: Sender

    async def start(self) -> None:
        """Connect now: a wrong password, or an unavailable broker, fails the start instead of each message."""
        one = self._options
        self._sender = Sender(one.url.get_secret_value(), one.timeout, one.client)
        await asyncio.to_thread(self._sender.connect)

    async def stop(self) -> None:
        await asyncio.to_thread(self._sender.close)

    async def handle(self, batch: Batch) -> None:
        from kombu.exceptions import OperationalError

        tasks: deque[Task] = deque()
        for message in batch:
            try:
                tasks.append(task_of(message, self._options.task_id, self._args, self._options.kwargs))
            except InvalidBodyError as error:
                refuse(batch, message, error, self._options.on_invalid)
        if tasks:
            # retries in place skip the tasks that the broker already has
            await try_again(lambda: self._send(tasks), (OperationalError,), self._options.retry_for, "celery")
            acknowledge_written(batch)

    async def _send(self, tasks: deque[Task]) -> None:
        async with self._slots:
            await asyncio.to_thread(self._sender.send, self._options.task, self._options.queue, tasks)
