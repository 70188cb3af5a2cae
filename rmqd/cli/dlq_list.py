"""`rmqd dlq list`: which groups have dead letters."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from rmqd.cli.cluster import Cluster, ConfigPath, NameServer, Overrides, find_target
from rmqd.cli.control import Output, check_output
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


def list_dead_letters(
    nameserver: NameServer = None,
    config: ConfigPath = None,
    cluster: Cluster = None,
    overrides: Overrides = None,
    output: Output = "table",
) -> None:
    """List the groups that have dead letters."""
    check_output(output)

    async def ask(brokers: Brokers, namespace: str) -> tuple[list[DeadLetters], Mapping[str, RmqdError]]:
        from rmqd.client.looks.dead_letters import list_dead_letters

        return await list_dead_letters(brokers, namespace=namespace)

    look(find_target(nameserver, config, overrides, cluster), ask, _as_json if output == "json" else _as_table)


def _as_json(groups: list[DeadLetters]) -> None:
    say_json([asdict(one) for one in groups])


def _as_table(groups: list[DeadLetters]) -> None:
    rows = [(one.group, str(one.messages), written_time(one.last_stored_ms), ",".join(one.brokers)) for one in groups]
    say_table(("group", "messages", "last", "brokers"), rows)
