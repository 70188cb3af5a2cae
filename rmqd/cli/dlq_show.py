"""`rmqd dlq show`: shows the newest dead letters of a group with their reasons."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmqd.cli import dlq_choice
from rmqd.cli.against_cluster import Asked, against_cluster
from rmqd.cli.cluster import wrapped
from rmqd.cli.look import look
from rmqd.cli.message_text import as_document, body_text, written_time
from rmqd.cli.render import say, say_json, say_table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rmqd.client.looks.brokers import Brokers
    from rmqd.client.looks.messages import FoundMessage
    from rmqd.consumer.dead_letters.choice import Choice
    from rmqd.consumer.dead_letters.letter import Letter
    from rmqd.errors import RmqdError

HELP = """\
REASON is rmqd's reason for dead-lettering the message; other clients record none. Letters that were replayed or purged
are only shown with --all. The command reads them without a group, and does not change them. `rmqd message get ID` shows
a whole letter.

Example: rmqd dlq show order-mailer --reason timeout --most 100 -o json
"""
_MOST_TEXT = 60


@dataclass(frozen=True, slots=True)
class ShownLetter:
    """A dead letter for the output."""

    message: FoundMessage
    origin_topic: str | None
    reason: str | None
    exception: str | None


@against_cluster
@dlq_choice.choosing
def show(
    asked: Asked,
    choice: Choice,
    group: dlq_choice.GroupName,
    most: Annotated[int, typer.Option("--most", min=1, max=10_000, help="Number of letters, the newest")] = 20,
    with_settled: Annotated[bool, typer.Option("--all", help="Include replayed and purged letters")] = False,
) -> None:
    """Show the newest dead letters of a group."""
    target = asked.target(group)

    async def ask(brokers: Brokers, namespace: str) -> tuple[list[ShownLetter], Mapping[str, RmqdError]]:
        from rmqd.consumer.dead_letters.listing import newest_letters

        name = wrapped(group, namespace)
        marks = None if with_settled else (await dlq_choice.marks_reader(target, brokers.client))(name)
        newest, errors = await newest_letters(brokers, name, marks, choice, most)
        if newest.has_more:
            say([f"rmqd: only the newest {most} are shown; use --most for more"], err=True)
        return list(map(_shown, newest.letters)), errors

    look(target, ask, _as_json if asked.as_json else _as_table)


def _shown(letter: Letter) -> ShownLetter:
    from rmqd.client.looks.messages import found_message
    from rmqd.consumer.handling.copies import RMQD_EXCEPTION

    message = found_message(letter.message, letter.message.broker_name)
    exception = letter.message.stored_properties.get(RMQD_EXCEPTION)
    return ShownLetter(message, letter.origin_topic, letter.reason, exception)


def _as_json(letters: list[ShownLetter]) -> None:
    say_json([_document(letter) for letter in letters])


def _document(letter: ShownLetter) -> dict[str, Any]:
    return as_document(letter.message) | {
        "origin_topic": letter.origin_topic,
        "reason": letter.reason,
        "exception": letter.exception,
    }


def _as_table(letters: list[ShownLetter]) -> None:
    rows = [
        (
            written_time(letter.message.stored_at_ms),
            letter.message.msg_id,
            letter.origin_topic or "-",
            str(letter.message.reconsume_times),
            letter.reason or "-",
            letter.message.keys or "-",
            body_text(letter.message.body)[:_MOST_TEXT],
        )
        for letter in letters
    ]
    say_table(("came", "id", "topic", "retries", "reason", "keys", "body"), rows)
