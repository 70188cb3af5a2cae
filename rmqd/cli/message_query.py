"""`rmqd message query`: shows the messages of a topic with a key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from rmqd.cli.against_cluster import Asked, against_cluster
from rmqd.cli.cluster import wrapped
from rmqd.cli.look import look
from rmqd.cli.message_text import as_document, body_text, written_time
from rmqd.cli.render import say_json, say_table

if TYPE_CHECKING:
    from rmqd.client.looks.brokers import Brokers
    from rmqd.client.looks.messages import Found, FoundMessage

HELP = """\
Brokers find a message some moments after it was sent.

Example: rmqd message query orders order-4711 -o json
"""
_MOST_BODY = 60


@against_cluster
def query(
    asked: Asked,
    topic: Annotated[str, typer.Argument(help="The topic")],
    key: Annotated[str, typer.Argument(help="One of the message's keys")],
    most: Annotated[int, typer.Option("--most", min=1, max=64, help="Limit for each broker, newest first")] = 32,
) -> None:
    """Show the messages of a topic with a key."""

    async def ask(brokers: Brokers, namespace: str) -> Found:
        from rmqd.client.looks.messages import find_by_key
        from rmqd.errors import RmqdError

        found, errors = await find_by_key(brokers, wrapped(topic, namespace), key, most=most)
        if not found and not errors:
            raise RmqdError(f"no broker has a message of {topic} with the key {key}, or it is not indexed yet")
        return found, errors

    def as_json(found: list[FoundMessage]) -> None:
        say_json([as_document(one) for one in found])

    look(asked.target(), ask, as_json if asked.as_json else _as_table)


def _as_table(found: list[FoundMessage]) -> None:
    rows = [
        (
            written_time(one.stored_at_ms),
            one.broker,
            str(one.queue),
            str(one.offset),
            one.msg_id,
            one.tags or "-",
            body_text(one.body)[:_MOST_BODY],
        )
        for one in found
    ]
    say_table(("stored", "broker", "queue", "offset", "id", "tags", "body"), rows)
