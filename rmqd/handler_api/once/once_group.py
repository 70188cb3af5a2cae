"""`message.once` of one group. It selects the code for the handler's connection: psycopg or SQLAlchemy."""

from __future__ import annotations

from collections.abc import Callable

from rmqd.handler_api.once.once_mark import HandledMark
from rmqd.wire.message_queue import Identity
from rmqd.wire.messages.message import Message, Once, OnceInGroup


def once_for_group(group: str, identity: Callable[[], Identity] | None = None) -> OnceInGroup:
    """Return the `message.once` of a group, whose name at the brokers is `group`. Each use calls `identity` for the
    group's complete name, because this name is not known when the handler is created.
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
        """Return a context manager that writes the message's mark. Raises TypeError for an unknown connection."""
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
