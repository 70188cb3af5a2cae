"""The connections to Celery's broker. They block, so all of this runs in threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, Final

from .tasks import Task

OURS: Final = {
    "broker_url": "use the option url",
    "broker_write_url": "use the option url",
    "task_publish_retry": "use the option retry_for",
    "result_backend": "this handler does not wait for results",
}
"""Settings that `client` cannot contain, with the reason."""


class SettingError(ValueError):
    """Celery does not have this setting."""


class Sender:
    """A Celery app without tasks, with a pool of connections."""

    def __init__(self, url: str, timeout_seconds: float, settings: Mapping[str, Any]) -> None:
        """Raises SettingError."""
        from celery import Celery
        from celery.app.defaults import SETTING_KEYS

        if unknown := sorted(settings.keys() - SETTING_KEYS):
            raise SettingError(f"unknown Celery setting: {', '.join(unknown)}")
        self._url = url
        self._timeout_seconds = timeout_seconds
        self._app = Celery("rmqd", set_as_current=False, broker=url)
        given = dict(settings)
        transport = {**self._transport_options(), **given.pop("broker_transport_options", {})}
        self._app.conf.update(given, broker_transport_options=transport, task_publish_retry=False)
        self._idle: deque[Any] = deque()

    def connect(self) -> None:
        """Open a first connection. Raises OperationalError if the broker is unavailable."""
        self._idle.append(self._connected())

    def send(self, name: str, queue: str | None, tasks: deque[Task]) -> None:
        """Send the tasks. Each is removed from `tasks` when the broker has it. Raises OperationalError."""
        from kombu.exceptions import OperationalError

        try:
            producer = self._idle.popleft()
        except IndexError:
            producer = self._connected()
        try:
            while tasks:
                task = tasks[0]
                options = {"queue": queue} if queue else {}
                self._app.send_task(name, task.args, task.kwargs, task_id=task.id, producer=producer, **options)
                tasks.popleft()
        except BaseException as error:
            connection = producer.connection
            connection.release()
            if isinstance(error, (*connection.connection_errors, *connection.channel_errors)):
                # kombu does not convert some errors, such as full memory or a missing permission
                raise OperationalError(str(error)) from error
            raise
        self._idle.append(producer)

    def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            self._idle.popleft().connection.release()
        self._app.close()

    def _connected(self) -> Any:
        from kombu.exceptions import OperationalError

        # with an explicit URL, because CELERY_BROKER_URL in the environment would override it
        connection = self._app.connection_for_write(url=self._url, connect_timeout=self._timeout_seconds)
        try:
            return self._app.amqp.Producer(connection.channel(), auto_declare=False)
        except connection.connection_errors as error:
            connection.release()
            raise OperationalError(str(error)) from error
        except BaseException:
            connection.release()
            raise

    def _transport_options(self) -> dict[str, Any]:
        seconds = self._timeout_seconds
        if self._url.startswith(("amqp", "pyamqp")):
            # otherwise the broker confirms nothing, and tasks that it refuses are lost
            return {"confirm_publish": True, "read_timeout": seconds, "write_timeout": seconds}
        if self._url.startswith(("redis", "sentinel")):
            return {"socket_timeout": seconds, "socket_connect_timeout": seconds}
        return {}
