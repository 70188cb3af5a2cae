"""The handler `celery`: a batch is acknowledged when Celery's broker has all of its tasks.

Celery's connections block, so they are used in threads.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, ClassVar, Final, Self

from pydantic import Field, SecretStr, model_validator

from rmqd import Batch
from rmqd_handlers.away import ON_INVALID, RETRY_FOR, OnInvalid, acknowledge_written, try_again, valid
from rmqd_handlers.message_values import InvalidBodyError, MessageValue, ParsedMessage, as_text, parse_value
from rmqd_handlers.option_kinds import MAX_CONNECTIONS, DurationSeconds, HandlerOptions, option, require


@dataclass(frozen=True, slots=True)
class CeleryTask:
    id: str
    """The task's id, which is the same whenever the message is sent again."""
    args: list[Any]
    kwargs: dict[str, Any]


def _plain(value: Any) -> Any:
    """Convert a value to plain JSON: a Decimal becomes a float, bytes become text. Raises InvalidBodyError."""
    try:
        match value:
            case bytes() | str():
                return as_text(value)
            case Decimal():
                return float(value)
            case list():
                return [_plain(inner) for inner in value]
            case dict():
                return {as_text(key): _plain(inner) for key, inner in value.items()}
    except RecursionError:
        raise InvalidBodyError("the body is nested too deeply") from None
    return value


OWN_SETTINGS: Final = {
    "broker_url": "use the option url",
    "broker_write_url": "use the option url",
    "task_publish_retry": "use the option retry_for",
    "result_backend": "this handler does not wait for results",
}
"""Settings that the option `client` must not contain, with the reason."""


class CelerySettingError(ValueError):
    """Celery does not have this setting."""


BODY = parse_value("body")


class Celery:
    """Sends each message as a task to Celery workers. It does not wait for their results."""

    calls_limited_by: ClassVar[str] = "max_connections"

    class Options(HandlerOptions):
        url: SecretStr = Field(
            description="Celery's broker: redis://user:password@host:6379/0, amqp://user:password@host:5672/vhost, or "
            "another URL that Celery supports"
        )
        task: str = Field(description="the task's name: shop.tasks.pack", min_length=1)
        queue: str | None = option(None, "Celery's queue; default: as in task_routes, or celery")
        args: list[MessageValue] = option(
            [],
            "the task's positional arguments: a JSON path into the body, a field such as msg_id, or "
            "properties.NAME; the default is the body as text, if kwargs is not set either",
        )
        kwargs: dict[str, MessageValue] = option({}, "the task's keyword arguments and their values")
        task_id: MessageValue = option("msg_id", "the task's id; workers recognize a redelivered message by it")
        client: dict[str, Any] = option(
            {}, "Celery settings by name, such as {task_default_priority: 5, broker_use_ssl: true}"
        )
        on_invalid: OnInvalid = ON_INVALID
        timeout: DurationSeconds = option("5s", "timeout for connecting to the broker, and for its responses", gt=0)
        max_connections: int = MAX_CONNECTIONS
        retry_for: DurationSeconds = RETRY_FOR

        @model_validator(mode="after")
        def _fit(self) -> Self:
            for name in sorted(self.client.keys() & OWN_SETTINGS.keys()):
                raise ValueError(f"{name} cannot be set in client: {OWN_SETTINGS[name]}")
            return self

    def __init__(self, options: Options) -> None:
        require("celery", "celery")
        self._options = options
        self._args = options.args if options.args or options.kwargs else [BODY]
        self._url = options.url.get_secret_value()
        self._slots = asyncio.Semaphore(options.max_connections)
        self._idle: deque[Any] = deque()  # producers, each with a connection
        self._app: Any  # a Celery app without registered tasks

    async def start(self) -> None:
        """Connect now: a wrong password, or an unavailable broker, fails the start instead of each message."""
        from celery import Celery as App
        from celery.app.defaults import SETTING_KEYS

        settings = dict(self._options.client)
        if unknown := sorted(settings.keys() - SETTING_KEYS):
            raise CelerySettingError(f"unknown Celery setting: {', '.join(unknown)}")
        self._app = App("rmqd", set_as_current=False, broker=self._url)
        transport = {**self._transport_options(), **settings.pop("broker_transport_options", {})}
        self._app.conf.update(settings, broker_transport_options=transport, task_publish_retry=False)
        self._idle.append(await asyncio.to_thread(self._connected))

    def _transport_options(self) -> dict[str, Any]:
        seconds = self._options.timeout
        if self._url.startswith(("amqp", "pyamqp")):
            # otherwise the broker confirms nothing, and tasks that it refuses are lost
            return {"confirm_publish": True, "read_timeout": seconds, "write_timeout": seconds}
        if self._url.startswith(("redis", "sentinel")):
            return {"socket_timeout": seconds, "socket_connect_timeout": seconds}
        return {}

    async def stop(self) -> None:
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        while self._idle:
            self._idle.popleft().connection.release()
        self._app.close()

    async def handle(self, batch: Batch) -> None:
        from kombu.exceptions import OperationalError

        tasks = deque(task for _, task in valid(batch, self._task, self._options.on_invalid))
        if tasks:
            # retries in place skip the tasks that the broker already has
            await try_again(lambda: self._send(tasks), (OperationalError,), self._options.retry_for, "celery")
            acknowledge_written(batch)

    def _task(self, opened: ParsedMessage) -> CeleryTask:
        task_id = self._options.task_id.required(opened, ", which is used as the id of its task")
        return CeleryTask(
            as_text(task_id),
            [_plain(value(opened)) for value in self._args],
            {name: _plain(value(opened)) for name, value in self._options.kwargs.items()},
        )

    async def _send(self, tasks: deque[CeleryTask]) -> None:
        async with self._slots:
            await asyncio.to_thread(self._send_all, tasks)

    def _send_all(self, tasks: deque[CeleryTask]) -> None:
        """Send the tasks, and remove each task from `tasks` when the broker has it.

        Raises OperationalError, or EncodeError if the values of a task cannot be encoded.
        """
        from kombu.exceptions import EncodeError, OperationalError

        try:
            producer = self._idle.popleft()
        except IndexError:
            producer = self._connected()
        options = {"queue": self._options.queue} if self._options.queue else {}
        try:
            while tasks:
                task = tasks[0]
                self._app.send_task(
                    self._options.task, task.args, task.kwargs, task_id=task.id, producer=producer, **options
                )
                tasks.popleft()
        except BaseException as error:
            producer.connection.release()
            if isinstance(error, Exception) and not isinstance(error, EncodeError | OperationalError):
                # for example full memory, a missing permission, or a queue that the settings do not allow
                raise OperationalError(str(error) or type(error).__name__) from error
            raise
        self._idle.append(producer)

    def _connected(self) -> Any:
        """Return a producer with a new connection. Raises OperationalError if the broker is unavailable."""
        from kombu.exceptions import OperationalError

        # the URL is passed here, because CELERY_BROKER_URL in the environment would override the app's setting
        connection = self._app.connection_for_write(url=self._url, connect_timeout=self._options.timeout)
        try:
            return self._app.amqp.Producer(connection.channel(), auto_declare=False)
        except Exception as error:
            connection.release()
            raise OperationalError(str(error) or type(error).__name__) from error
