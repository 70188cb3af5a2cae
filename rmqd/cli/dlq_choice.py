"""The options by which commands about dead letters choose some of a group's, and how they tell of those."""

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
Since = Annotated[
    str | None, typer.Option("--since", help="Only what became a dead letter since then: so long ago (2h), or a time")
]
Until = Annotated[str | None, typer.Option("--until", help="Only what became a dead letter before then")]
Ids = Annotated[list[str] | None, typer.Option("--id", help="Only the message with this id; repeatable")]
Keys = Annotated[list[str] | None, typer.Option("--key", help="Only messages with this key; repeatable")]
Tags = Annotated[list[str] | None, typer.Option("--tag", help="Only messages with this tag; repeatable")]
Properties = Annotated[
    list[str] | None, typer.Option("--property", help="Only messages with this property, as name=value; repeatable")
]
Reason = Annotated[
    str | None, typer.Option("--reason", help="Only those whose reason, or exception, has this text in it")
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
) -> None:
    """The options that choose."""


def _choice(
    since: str | None,
    until: str | None,
    ids: list[str] | None,
    keys: list[str] | None,
    tags: list[str] | None,
    properties: list[str] | None,
    reason: str | None,
) -> Choice:
    """What they choose. Ends the command with 2 where one is wrong."""
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
"""Gives a command these options, and what they choose as its parameter `choice`."""


async def marks_reader(target: Target, client: ClientInstance) -> Callable[[str], Marks]:
    """Return a function that reads what is settled of a group's dead letters. It and this raise RmqdError.

    The group's name is the one that brokers know.
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
    """The same before they are read. Ends the command with 1 for a name that no group can have."""
    from rmqd.cli.cluster import fail
    from rmqd.consumer.dead_letters.marks import Marks
    from rmqd.errors import InvalidNameError
    from rmqd.exit_codes import ExitCode
    from rmqd.wire.topics import check_group

    try:
        return Marks(target.state_dir, check_group(group))  # it becomes the name of a folder
    except InvalidNameError as error:
        fail(ExitCode.FAILURE, f"rmqd: {error}")


async def read_marks(client: ClientInstance, group: str, marks: Marks, *, to_write: bool) -> Brokers:
    """Read them, and keep other processes from writing them if this one is `to_write`. Returns the brokers.

    Raises RmqdError, also where no broker knows the group: a misspelt name leaves no folder behind.
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
    """A line for each reason, the most frequent first."""
    width = len(str(max(kinds.values(), default=0)))
    lines = [
        f"  {number:>{width}}  {reason or '(no reason given)'}" for reason, number in kinds.most_common(_MOST_KINDS)
    ]
    more = kinds.most_common()[_MOST_KINDS:]
    if more:
        lines.append(f"  {sum(number for _, number in more):>{width}}  for {count(len(more), 'other reason')}")
    return lines


def kinds_document(kinds: Counter[str | None]) -> list[dict[str, Any]]:
    """The same as JSON."""
    return [{"reason": reason, "messages": number} for reason, number in kinds.most_common()]


def topics_text(topics: Counter[str | None]) -> str:
    """Which topics messages came from, in a few words."""
    return ", ".join(f"{topic or '(unknown)'} {number}" for topic, number in topics.most_common(_MOST_KINDS))


def _name_and_value(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise typer.BadParameter(f"{text!r} has no name and value; accepted: name=value", param_hint="--property")
    return name, value
