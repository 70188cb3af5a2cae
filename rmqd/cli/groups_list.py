"""`rmqd groups list`: lists all groups of a cluster, one per line."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from rmqd.cli.against_cluster import Asked, against_cluster
from rmqd.cli.look import WithSystem, look
from rmqd.cli.render import say_json, say_table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rmqd.client.looks.brokers import Brokers
    from rmqd.client.looks.groups import GroupSummary
    from rmqd.errors import RmqdError

HELP = """\
The brokers' groups include groups of all clients. TYPE and MODEL are reported by members. LAG counts the waiting
messages of all topics, including retries. RATE is the number of messages that members finish per second.

Example: rmqd groups list --nameserver 10.0.0.5:9876
"""


@against_cluster
def list_groups(
    asked: Asked,
    with_system: WithSystem = False,
) -> None:
    """List the groups of a cluster."""

    async def ask(brokers: Brokers, namespace: str) -> tuple[list[GroupSummary], Mapping[str, RmqdError]]:
        from rmqd.client.looks.groups import list_groups

        return await list_groups(brokers, namespace=namespace, with_system=with_system)

    look(asked.target(), ask, _as_json if asked.as_json else _as_table)


def _as_json(groups: list[GroupSummary]) -> None:
    say_json([asdict(group) for group in groups])


def _as_table(groups: list[GroupSummary]) -> None:
    rows = [
        (
            one.group,
            str(one.members),
            one.consume_type or "-",
            one.message_model or "-",
            str(one.lag),
            f"{one.rate:.1f}",
            ",".join(one.brokers),
        )
        for one in groups
    ]
    say_table(("group", "members", "type", "model", "lag", "rate", "brokers"), rows)
