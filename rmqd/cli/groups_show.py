"""`rmqd groups show`: shows one group, its members, and the owner of each queue."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from rmqd.cli.against_cluster import Asked, against_cluster
from rmqd.cli.cluster import wrapped
from rmqd.cli.lag import format_age
from rmqd.cli.look import look
from rmqd.cli.render import count, say, say_json, say_table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rmqd.client.looks.brokers import Brokers
    from rmqd.client.looks.group import GroupDetail
    from rmqd.errors import RmqdError

HELP = """\
The command queries the brokers, and through them the members of any client. OWNER is - if no member reports owning
the queue.

Example: rmqd groups show order-mailer -o json
"""


@against_cluster
def show_group(
    asked: Asked,
    group: Annotated[str, typer.Argument(help="The group's name")],
) -> None:
    """Show one group."""

    async def ask(brokers: Brokers, namespace: str) -> tuple[GroupDetail, Mapping[str, RmqdError]]:
        from rmqd.client.looks.group import show_group
        from rmqd.clock import SystemClock

        return await show_group(brokers, SystemClock(), wrapped(group, namespace))

    look(asked.target(group), ask, (lambda detail: say_json(asdict(detail))) if asked.as_json else _as_tables)


def _as_tables(detail: GroupDetail) -> None:
    how = ", ".join(filter(None, (detail.consume_type, detail.message_model))) or "no members"
    lag = sum(queue.lag for queue in detail.queues)
    say([f"{detail.group}  {how}  {count(len(detail.members), 'member')}, {count(lag, 'message')} behind"])
    if detail.members:
        say([""])
        say_table(
            ("member", "address", "language", "version", "queues"),
            [
                (one.client_id, one.address, one.language, one.version, "?" if one.queues is None else str(one.queues))
                for one in detail.members
            ],
        )
    if detail.subscriptions:
        say([""])
        say_table(("topic", "subscription"), list(detail.subscriptions.items()))
    if detail.queues:
        say([""])
        say_table(
            ("topic", "broker", "queue", "owner", "committed", "max", "lag", "age"),
            [
                (
                    one.topic,
                    one.broker,
                    str(one.queue),
                    one.owner or "-",
                    "-" if one.committed is None else str(one.committed),
                    str(one.max),
                    str(one.lag),
                    format_age(one.lag_seconds),
                )
                for one in detail.queues
            ],
        )
    if detail.brokers:
        say([""])
        say_table(
            ("broker", "may consume", "may broadcast", "retries", "retry queues", "modes"),
            [
                (
                    name,
                    _yes(one.consume_enable),
                    _yes(one.consume_broadcast_enable),
                    str(one.retry_max_times),
                    str(one.retry_queue_nums),
                    ", ".join(f"{topic} {mode}" for topic, mode in one.modes.items()) or "-",
                )
                for name, one in detail.brokers.items()
            ],
        )


def _yes(value: bool) -> str:
    return "yes" if value else "no"
