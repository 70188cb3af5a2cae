"""What the commands share that look at a cluster's groups, topics and messages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from rmqd.cli.cluster import ask_cluster, end_for_errors

if TYPE_CHECKING:
    from rmqd.cli.cluster import Target
    from rmqd.client.looks.brokers import Brokers
    from rmqd.errors import RmqdError

T = TypeVar("T")
Question = Callable[["Brokers", str], Awaitable[tuple[T, Mapping[str, "RmqdError"]]]]
"""Asks the brokers, in a namespace; returns what was found, and why parts were not."""

WithSystem = Annotated[bool, typer.Option("--all", help="Those of RocketMQ's own, too")]


def look(target: Target, question: Question[T], tell: Callable[[T], None]) -> None:
    """Ask the brokers of a cluster, tell what was found, and end the command where something could not be asked."""
    from rmqd.client.looks.brokers import Brokers
    from rmqd.wire.namespace import without_namespace

    options = target.options

    async def ask(client: object) -> tuple[T, Mapping[str, RmqdError]]:
        from rmqd.client.instance import ClientInstance

        assert isinstance(client, ClientInstance)
        return await question(await Brokers.look_up(client), options.namespace)

    found, errors = ask_cluster(options, ask)
    tell(without_namespace(found, options.namespace))
    end_for_errors(errors, [options.namespace])
