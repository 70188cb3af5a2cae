"""The group that a handler runs in. It writes marks in the way that the handler's connection needs."""

from __future__ import annotations

from collections.abc import Callable

from rmqd.handler_api.once.once_mark import HandledMark
from rmqd.wire.message_queue import Identity
from rmqd.wire.messages.message import Message, Once, OnceInGroup


def once_for_group(group: str, identity: Callable[[], Identity] | None = None) -> OnceInGroup:
    """Return the group of a handler; `group` is its name at the brokers. `identity` is called at each use, because it
    is known late.
    """
    return _GroupOnce(group, identity or (lambda: Identity("", "", group)))


class _GroupOnce:
    def __init__(self, group: str, identity: Callable[[], Identity]) -> None:
        self._group = group
        self._identity = identity

    @property
    def identity(self) -> Identity:
        """The group's complete name."""
        return self._identity()

    def __call__(self, message: Message, connection: object) -> Once:
        """Return a block that writes the message's mark."""
        packages = {kind.__module__.partition(".")[0] for kind in type(connection).__mro__}
        mark = HandledMark(self._group, message)
        if "psycopg" in packages:
            from rmqd.handler_api.once.psycopg_connection import PsycopgOnce

            return PsycopgOnce(mark, connection)
        if "sqlalchemy" in packages:
            from rmqd.handler_api.once.sqlalchemy_connection import SQLAlchemyOnce

            return SQLAlchemyOnce(mark, connection)
        raise TypeError(
            f"message.once was given a {type(connection).__module__}.{type(connection).__qualname__}; expected a "
            "connection of psycopg, or a connection or session of SQLAlchemy"
        )
