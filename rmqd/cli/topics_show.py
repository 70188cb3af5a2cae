"""`rmqd topics show`: shows one topic, its queues, and the groups that read it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from rmqd.cli.against_cluster import Asked, against_cluster
from rmqd.cli.cluster import wrapped
from rmqd.cli.look import look
from rmqd.cli.message_text import written_time
from rmqd.cli.render import count, say, say_json, say_table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rmqd.client.looks.brokers import Brokers
    from rmqd.client.looks.topics import TopicDetail
    from rmqd.errors import RmqdError

HELP = """\
LAST STORED is the store time of a queue's last message, in UTC.

Example: rmqd topics show orders -o json
"""


@against_cluster
def show_topic(
    asked: Asked,
    topic: Annotated[str, typer.Argument(help="The topic's name")],
) -> None:
    """Show one topic."""

    async def ask(brokers: Brokers, namespace: str) -> tuple[TopicDetail, Mapping[str, RmqdError]]:
        from rmqd.client.looks.topics import show_topic

        return await show_topic(brokers, wrapped(topic, namespace))

    look(asked.target(), ask, (lambda detail: say_json(asdict(detail))) if asked.as_json else _as_tables)


def _as_tables(detail: TopicDetail) -> None:
    say([f"{detail.topic}  {count(detail.messages, 'message')} in {count(len(detail.queues), 'queue')}", ""])
    say_table(
        ("broker", "read queues", "write queues", "may", "attributes"),
        [
            (
                name,
                str(one.read_queues),
                str(one.write_queues),
                one.permissions or "-",
                ", ".join(f"{key}={value}" for key, value in sorted(one.attributes.items())) or "-",
            )
            for name, one in detail.brokers.items()
        ],
    )
    say([""])
    say_table(
        ("broker", "queue", "min", "max", "last stored"),
        [
            (one.broker, str(one.queue), str(one.min), str(one.max), written_time(one.last_stored_ms))
            for one in detail.queues
        ],
    )
    say(["", f"read by {', '.join(detail.groups)}" if detail.groups else "no group reads it"])
