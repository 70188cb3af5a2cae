"""`rmqd dlq list`: lists the groups that have dead letters."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from rmqd.cli.against_cluster import Asked, against_cluster
from rmqd.cli.dlq_choice import marks_reader
from rmqd.cli.look import look
from rmqd.cli.message_text import written_time
from rmqd.cli.render import say_json, say_table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rmqd.client.looks.brokers import Brokers
    from rmqd.consumer.dead_letters.listing import DeadLetters
    from rmqd.errors import RmqdError

HELP = """\
LEFT is the number of letters that were neither replayed nor purged. Times are UTC.

Example: rmqd dlq list -o json
"""


@against_cluster
def list_dead_letters(asked: Asked) -> None:
    """List the groups that have dead letters."""
    target = asked.target()

    async def ask(brokers: Brokers, namespace: str) -> tuple[list[DeadLetters], Mapping[str, RmqdError]]:
        from rmqd.consumer.dead_letters.listing import list_dead_letters

        return await list_dead_letters(brokers, await marks_reader(target, brokers.client), namespace=namespace)

    look(target, ask, _as_json if asked.as_json else _as_table)


def _as_json(groups: list[DeadLetters]) -> None:
    say_json([asdict(one) for one in groups])


def _as_table(groups: list[DeadLetters]) -> None:
    columns = ("group", "left", "messages", "last", "brokers")
    rows = [
        (one.group, str(one.left), str(one.messages), written_time(one.last_stored_ms), ",".join(one.brokers))
        for one in groups
    ]
    say_table(columns, rows)
