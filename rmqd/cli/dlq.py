"""The options that select dead letters of a group, and the output about a selection.

`rmqd dlq list`: lists the groups that have dead letters.

`rmqd dlq show`: shows the newest dead letters of a group with their reasons.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmqd.cli.against_cluster import Asked, against_cluster
from rmqd.cli.terminal.cluster_command import run_query, wrapped
from rmqd.cli.terminal.commands import with_options
from rmqd.cli.terminal.output import as_document, body_text, count, moment_ms, say, say_json, say_table, written_time

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Mapping

    from rmqd.cli.terminal.cluster_command import ClusterTarget
    from rmqd.client.brokers import Brokers
    from rmqd.client.instance import ClientInstance
    from rmqd.errors import RmqdError
    from rmqd.operate.dead_letters.dead_letter import DeadLetterFilter, Letter, Marks
    from rmqd.operate.dead_letters.dead_letter_listing import DeadLetters
    from rmqd.operate.queries.message_queries import FoundMessage


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
) -> DeadLetterFilter:
    """Return the selection. Ends the command with 2 if an option is wrong."""
    from rmqd.operate.dead_letters.dead_letter import DeadLetterFilter

    return DeadLetterFilter(
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


async def marks_reader(target: ClusterTarget, client: ClientInstance) -> Callable[[str], Marks]:
    """Return a function that reads the marks of a group's settled dead letters. Both raise RmqdError.

    The group's name is as brokers know it.
    """
    from rmqd.operate.dead_letters.dead_letter import Marks

    await client.cluster_id.learn(may_write=False)

    def read(group: str) -> Marks:
        marks = Marks(target.state_dir, group)
        marks.belong_to(client.identity(group))
        marks.load()
        return marks

    return read


def unread_marks(target: ClusterTarget, group: str) -> Marks:
    """Return the marks before they are read. Ends the command with 1 if the group's name is invalid."""
    from rmqd.cli.terminal.cluster_command import fail
    from rmqd.errors import ExitCode, InvalidNameError
    from rmqd.operate.dead_letters.dead_letter import Marks
    from rmqd.wire.topics import check_group

    try:
        return Marks(target.state_dir, check_group(group))  # the name becomes a folder's name
    except InvalidNameError as error:
        fail(ExitCode.FAILURE, f"rmqd: {error}")


async def read_marks(client: ClientInstance, group: str, marks: Marks, *, to_write: bool) -> Brokers:
    """Read the marks, and lock them against other writers if `to_write`. Returns the brokers.

    Raises RmqdError, also if no broker knows the group, so that a misspelt name leaves no folder behind.
    """
    from rmqd.client.brokers import Brokers
    from rmqd.operate.dead_letters.dead_letter_replay import expect_group

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
    """Return the reasons and their numbers of messages as JSON."""
    return [{"reason": reason, "messages": number} for reason, number in kinds.most_common()]


def topics_text(topics: Counter[str | None]) -> str:
    """Return the original topics of messages as a short text."""
    return ", ".join(f"{topic or '(unknown)'} {number}" for topic, number in topics.most_common(_MOST_KINDS))


def _name_and_value(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise typer.BadParameter(f"{text!r} is not name=value", param_hint="--property")
    return name, value


DLQ_LIST_HELP = """\
LEFT is the number of letters that were neither replayed nor purged. Times are UTC.

Example: rmqd dlq list -o json
"""


@against_cluster
def list_dead_letters(asked: Asked) -> None:
    """List the groups that have dead letters."""
    target = asked.target()

    async def ask(brokers: Brokers, namespace: str) -> tuple[list[DeadLetters], Mapping[str, RmqdError]]:
        from rmqd.operate.dead_letters.dead_letter_listing import list_dead_letters

        return await list_dead_letters(brokers, await marks_reader(target, brokers.client), namespace=namespace)

    run_query(target, ask, _as_json if asked.as_json else _as_table)


def _as_json(groups: list[DeadLetters]) -> None:
    say_json([asdict(one) for one in groups])


def _as_table(groups: list[DeadLetters]) -> None:
    columns = ("group", "left", "messages", "last", "brokers")
    rows = [
        (one.group, str(one.left), str(one.messages), written_time(one.last_stored_ms), ",".join(one.brokers))
        for one in groups
    ]
    say_table(columns, rows)


DLQ_SHOW_HELP = """\
REASON is rmqd's reason for dead-lettering the message; other clients record none. Letters that were replayed or purged
are only shown with --all. The command reads them without a group, and does not change them. `rmqd message get ID` shows
a whole letter.

Example: rmqd dlq show order-mailer --reason timeout --most 100 -o json
"""
_MOST_TEXT = 60


@dataclass(frozen=True, slots=True)
class ShownLetter:
    """A dead letter for the output."""

    message: FoundMessage
    origin_topic: str | None
    reason: str | None
    exception: str | None


@against_cluster
@choosing
def show(
    asked: Asked,
    choice: DeadLetterFilter,
    group: GroupName,
    most: Annotated[int, typer.Option("--most", min=1, max=10_000, help="Number of letters, the newest")] = 20,
    with_settled: Annotated[bool, typer.Option("--all", help="Include replayed and purged letters")] = False,
) -> None:
    """Show the newest dead letters of a group."""
    target = asked.target(group)

    async def ask(brokers: Brokers, namespace: str) -> tuple[list[ShownLetter], Mapping[str, RmqdError]]:
        from rmqd.operate.dead_letters.dead_letter_listing import newest_letters

        name = wrapped(group, namespace)
        marks = None if with_settled else (await marks_reader(target, brokers.client))(name)
        newest, errors = await newest_letters(brokers, name, marks, choice, most)
        if newest.has_more:
            say([f"rmqd: only the newest {most} are shown; use --most for more"], err=True)
        return list(map(_shown, newest.letters)), errors

    run_query(target, ask, _letter_as_json if asked.as_json else _letter_as_table)


def _shown(letter: Letter) -> ShownLetter:
    from rmqd.consumer.handling.send_back import RMQD_EXCEPTION
    from rmqd.operate.queries.message_queries import found_message

    message = found_message(letter.message, letter.message.broker_name)
    exception = letter.message.stored_properties.get(RMQD_EXCEPTION)
    return ShownLetter(message, letter.origin_topic, letter.reason, exception)


def _letter_as_json(letters: list[ShownLetter]) -> None:
    say_json([_document(letter) for letter in letters])


def _document(letter: ShownLetter) -> dict[str, Any]:
    return as_document(letter.message) | {
        "origin_topic": letter.origin_topic,
        "reason": letter.reason,
        "exception": letter.exception,
    }


def _letter_as_table(letters: list[ShownLetter]) -> None:
    rows = [
        (
            written_time(letter.message.stored_at_ms),
            letter.message.msg_id,
            letter.origin_topic or "-",
            str(letter.message.reconsume_times),
            letter.reason or "-",
            letter.message.keys or "-",
            body_text(letter.message.body)[:_MOST_TEXT],
        )
        for letter in letters
    ]
    say_table(("came", "id", "topic", "retries", "reason", "keys", "body"), rows)
