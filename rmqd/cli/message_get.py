"""`rmqd message get`: shows one message by its id, and its copies in retry topics and dead letters."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from rmqd.cli.against_cluster import Asked, against_cluster
from rmqd.cli.cluster import wrapped
from rmqd.cli.look import look
from rmqd.cli.message_text import as_document, as_lines
from rmqd.cli.render import say, say_json

if TYPE_CHECKING:
    from rmqd.client.looks.brokers import Brokers
    from rmqd.client.looks.messages import Found, FoundMessage

HELP = """\
A producer's id is searched in all topics, including copies in retry topics and dead letters. --topic restricts the~
search, and is faster. Brokers find a message some moments after it was sent.

Example: rmqd message get 7F000001DA3C5F8D4BC40070B2E30001
"""


@against_cluster
def get(
    asked: Asked,
    msg_id: Annotated[str, typer.Argument(metavar="ID", help="The message's id")],
    topic: Annotated[str | None, typer.Option("--topic", help="Search only this topic")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Print only the body of the first copy, unchanged")] = False,
) -> None:
    """Show a message by its id."""

    async def ask(brokers: Brokers, namespace: str) -> Found:
        from rmqd.client.looks.messages import find_by_id
        from rmqd.errors import RmqdError

        found, errors = await find_by_id(brokers, msg_id, None if topic is None else wrapped(topic, namespace))
        if not found and not errors:
            raise RmqdError(f"no broker has a message with the id {msg_id}, or it is not indexed yet")
        return found, errors

    def tell(found: list[FoundMessage]) -> None:
        if raw and found:
            sys.stdout.buffer.write(found[0].body)
        elif asked.as_json:
            say_json([as_document(one) for one in found])
        else:
            for number, one in enumerate(found):
                say([""] * (number > 0))
                say(as_lines(one))

    look(asked.target(), ask, tell)
