"""Chooses how marks are written, by the kind of the handler's connection."""

from __future__ import annotations

from collections.abc import Callable

from rmqd.once.mark import Mark
from rmqd.wire.messages.message import Message
from rmqd.wire.messages.once import Once


def once_of(group: str) -> Callable[[Message, object], Once]:
    """What `message.once` calls in a handler of a group."""

    def once(message: Message, connection: object) -> Once:
        packages = {kind.__module__.partition(".")[0] for kind in type(connection).__mro__}
        mark = Mark(group, message)
        if "psycopg" in packages:
            from rmqd.once.psycopg_connection import PsycopgOnce

            return PsycopgOnce(mark, connection)
        if "sqlalchemy" in packages:
            from rmqd.once.sqlalchemy_connection import SQLAlchemyOnce

            return SQLAlchemyOnce(mark, connection)
        raise TypeError(
            f"message.once was given a {type(connection).__module__}.{type(connection).__qualname__}; accepted: a "
            "connection of psycopg, or a connection or session of SQLAlchemy"
        )

    return once
