"""The common part of commands that show a cluster's groups, topics and messages."""

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
"""Queries the brokers, in a namespace. Returns the result, and the errors of other parts."""

WithSystem = Annotated[bool, typer.Option("--all", help="Include RocketMQ's own")]


def look(target: Target, question: Question[T], tell: Callable[[T], None]) -> None:
    """Query the brokers of a cluster, print the result, and end the command if a query failed."""
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
