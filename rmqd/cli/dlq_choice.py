"""The options that select dead letters of a group, and the output about a selection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmqd.cli.moment import moment_ms
from rmqd.cli.render import count
from rmqd.cli.shared_options import with_options

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable

    from rmqd.cli.cluster import Target
    from rmqd.client.instance import ClientInstance
    from rmqd.client.looks.brokers import Brokers
    from rmqd.consumer.dead_letters.choice import Choice
    from rmqd.consumer.dead_letters.marks import Marks

GroupName = Annotated[str, typer.Argument(help="The group's name")]
Since = Annotated[str | None, typer.Option("--since", help="Only letters dead-lettered since a time, or an age (2h)")]
Until = Annotated[str | None, typer.Option("--until", help="Only letters dead-lettered before a time, or an age (2h)")]
Ids = Annotated[list[str] | None, typer.Option("--id", help="Only the message with this id; repeatable")]
Keys = Annotated[list[str] | None, typer.Option("--key", help="Only messages with this key; repeatable")]
Tags = Annotated[list[str] | None, typer.Option("--tag", help="Only messages with this tag; repeatable")]
Properties = Annotated[
    list[str] | None, typer.Option("--property", help="Only messages with this property, as name=value; repeatable")
]
Reason = Annotated[
    str | None, typer.Option("--reason", help="Only letters with this text in their reason or exception")
]
_MOST_KINDS = 20


def _options(
    since: Since = None,
    until: Until = None,
    ids: Ids = None,
    keys: Keys = None,
    tags: Tags = None,
    properties: Properties = None,
    reason: Reason = None,
) -> None: ...


def _choice(
    since: str | None,
    until: str | None,
    ids: list[str] | None,
    keys: list[str] | None,
    tags: list[str] | None,
    properties: list[str] | None,
    reason: str | None,
) -> Choice:
    """Return the selection. Ends the command with 2 if an option is wrong."""
    from rmqd.consumer.dead_letters.choice import Choice

    return Choice(
        None if since is None else moment_ms(since, "--since"),
        None if until is None else moment_ms(until, "--until"),
        frozenset(ids or ()),
        frozenset(keys or ()),
        frozenset(tags or ()),
        tuple(map(_name_and_value, properties or ())),
        reason or "",
    )


choosing = with_options("choice", _options, _choice)
"""Gives a command these options, with the selection in its parameter `choice`."""


async def marks_reader(target: Target, client: ClientInstance) -> Callable[[str], Marks]:
    """Return a function that reads the marks of a group's settled dead letters. Both raise RmqdError.

    The group's name is as brokers know it.
    """
    from rmqd.consumer.dead_letters.marks import Marks

    await client.cluster_id.learn(may_write=False)

    def read(group: str) -> Marks:
        marks = Marks(target.state_dir, group)
        marks.belong_to(client.identity(group))
        marks.load()
        return marks

    return read


def unread_marks(target: Target, group: str) -> Marks:
    """Return the marks before they are read. Ends the command with 1 if the group's name is invalid."""
    from rmqd.cli.cluster import fail
    from rmqd.consumer.dead_letters.marks import Marks
    from rmqd.errors import InvalidNameError
    from rmqd.exit_codes import ExitCode
    from rmqd.wire.topics import check_group

    try:
        return Marks(target.state_dir, check_group(group))  # the name becomes a folder's name
    except InvalidNameError as error:
        fail(ExitCode.FAILURE, f"rmqd: {error}")


async def read_marks(client: ClientInstance, group: str, marks: Marks, *, to_write: bool) -> Brokers:
    """Read the marks, and lock them against other writers if `to_write`. Returns the brokers.

    Raises RmqdError, also if no broker knows the group, so that a misspelt name leaves no folder behind.
    """
    from rmqd.client.looks.brokers import Brokers
    from rmqd.consumer.dead_letters.plan import expect_group

    brokers = await Brokers.look_up(client)
    await expect_group(brokers, group)
    await client.cluster_id.learn(may_write=to_write)
    marks.belong_to(client.identity(group))
    if to_write:
        marks.hold()
    marks.load()
    return brokers


def kinds_lines(kinds: Counter[str | None]) -> list[str]:
    """Return a line for each reason, the most frequent first."""
    width = len(str(max(kinds.values(), default=0)))
    lines = [
        f"  {number:>{width}}  {reason or '(no reason given)'}" for reason, number in kinds.most_common(_MOST_KINDS)
    ]
    more = kinds.most_common()[_MOST_KINDS:]
    if more:
        lines.append(f"  {sum(number for _, number in more):>{width}}  for {count(len(more), 'other reason')}")
    return lines


def kinds_document(kinds: Counter[str | None]) -> list[dict[str, Any]]:
    """Return the same as JSON."""
    return [{"reason": reason, "messages": number} for reason, number in kinds.most_common()]


def topics_text(topics: Counter[str | None]) -> str:
    """Return the original topics of messages as a short text."""
    return ", ".join(f"{topic or '(unknown)'} {number}" for topic, number in topics.most_common(_MOST_KINDS))


def _name_and_value(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise typer.BadParameter(f"{text!r} is not name=value", param_hint="--property")
    return name, value
