"""`rmqd dlq list`: which groups have dead letters."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from rmqd.cli.against_cluster import Asked, against_cluster
from rmqd.cli.look import look
from rmqd.cli.message_text import written_time
from rmqd.cli.render import say_json, say_table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rmqd.client.looks.brokers import Brokers
    from rmqd.client.looks.dead_letters import DeadLetters
    from rmqd.errors import RmqdError

HELP = """List the groups that have dead letters: how many the brokers hold, and when the last one came, in UTC.

Example: rmqd dlq list -o json
"""


@against_cluster
def list_dead_letters(asked: Asked) -> None:
    """List the groups that have dead letters."""

    async def ask(brokers: Brokers, namespace: str) -> tuple[list[DeadLetters], Mapping[str, RmqdError]]:
        from rmqd.client.looks.dead_letters import list_dead_letters

        return await list_dead_letters(brokers, namespace=namespace)

    look(asked.target(), ask, _as_json if asked.as_json else _as_table)


def _as_json(groups: list[DeadLetters]) -> None:
    say_json([asdict(one) for one in groups])


def _as_table(groups: list[DeadLetters]) -> None:
    rows = [(one.group, str(one.messages), written_time(one.last_stored_ms), ",".join(one.brokers)) for one in groups]
    say_table(("group", "messages", "last", "brokers"), rows)
