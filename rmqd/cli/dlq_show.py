"""`rmqd dlq show`: the newest dead letters of a group, and why they are there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmqd.cli.against_cluster import Asked, against_cluster
from rmqd.cli.cluster import wrapped
from rmqd.cli.look import look
from rmqd.cli.message_text import as_document, body_text, written_time
from rmqd.cli.render import say_json, say_table

if TYPE_CHECKING:
    from rmqd.client.looks.brokers import Brokers
    from rmqd.client.looks.messages import Found, FoundMessage

HELP = """Show the newest dead letters of a group, the oldest of them first, with the topic that each came from.

REASON is what rmqd wrote down when it gave the message up; other clients write down none. They are read without a
group, and stay where they are. `rmqd message get ID` shows one whole.

Example: rmqd dlq show order-mailer --most 100 -o json
"""
_MOST_TEXT = 60


@against_cluster
def show(
    asked: Asked,
    group: Annotated[str, typer.Argument(help="The group's name")],
    most: Annotated[int, typer.Option("--most", min=1, max=10_000, help="How many, the newest")] = 20,
) -> None:
    """Show the newest dead letters of a group."""

    async def ask(brokers: Brokers, namespace: str) -> Found:
        from rmqd.client.looks.dead_letters import newest_dead_letters

        return await newest_dead_letters(brokers, wrapped(group, namespace), most)

    target = asked.target(group)
    look(target, ask, _as_json if asked.as_json else _as_table)


def _as_json(letters: list[FoundMessage]) -> None:
    say_json([_document(letter) for letter in letters])


def _document(letter: FoundMessage) -> dict[str, Any]:
    from rmqd.consumer.handling.copies import RMQD_EXCEPTION, RMQD_REASON
    from rmqd.wire.messages.properties import RETRY_TOPIC

    properties = letter.properties
    return as_document(letter) | {
        "origin_topic": properties.get(RETRY_TOPIC),
        "reason": properties.get(RMQD_REASON),
        "exception": properties.get(RMQD_EXCEPTION),
    }


def _as_table(letters: list[FoundMessage]) -> None:
    rows = []
    for letter in letters:
        told = _document(letter)
        rows.append(
            (
                written_time(letter.stored_at_ms),
                letter.msg_id,
                told["origin_topic"] or "-",
                str(letter.reconsume_times),
                told["reason"] or "-",
                letter.keys or "-",
                body_text(letter.body)[:_MOST_TEXT],
            )
        )
    say_table(("came", "id", "topic", "retries", "reason", "keys", "body"), rows)
