"""`rmqd dlq list` and `rmqd dlq show`, and the options that select dead letters of a group."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Final

import typer

from rmqd.cli.terminal.cluster_command import ClusterOptions, ClusterTarget
from rmqd.cli.terminal.options import GroupName, moment_or_age_ms, name_and_value
from rmqd.cli.terminal.output import Columns, body_cell, message_document, say, say_table
from rmqd.client.brokers import Brokers
from rmqd.client.instance import ClientInstance
from rmqd.consumer.handling.send_back import RMQD_EXCEPTION
from rmqd.errors import RmqdError
from rmqd.operate.dead_letters import dead_letter_listing
from rmqd.operate.dead_letters.dead_letter import DeadLetterFilter, Letter, Marks
from rmqd.operate.queries.message_queries import FoundMessage, found_message

_GROUPS: Final[Columns] = ("group", "left", "messages", ("last", "last_stored_ms"), "brokers")
_LETTERS: Final[Columns] = (
    ("came", "stored_at_ms"),
    ("id", "msg_id"),
    ("topic", "origin_topic"),
    ("retries", "reconsume_times"),
    "reason",
    "keys",
    ("body", body_cell),
)


@dataclass(frozen=True, slots=True)
class LetterOptions:
    """The options that select dead letters."""

    since: Annotated[
        str | None, typer.Option("--since", help="Only letters dead-lettered since a time, or an age (2h)")
    ] = None
    until: Annotated[
        str | None, typer.Option("--until", help="Only letters dead-lettered before a time, or an age (2h)")
    ] = None
    ids: Annotated[list[str] | None, typer.Option("--id", help="Only the message with this id; repeatable")] = None
    keys: Annotated[list[str] | None, typer.Option("--key", help="Only messages with this key; repeatable")] = None
    tags: Annotated[list[str] | None, typer.Option("--tag", help="Only messages with this tag; repeatable")] = None
    properties: Annotated[
        list[str] | None, typer.Option("--property", help="Only messages with this property, as name=value; repeatable")
    ] = None
    reason: Annotated[
        str | None, typer.Option("--reason", help="Only letters with this text in their reason or exception")
    ] = None

    def filter(self) -> DeadLetterFilter:
        """Return the selection. Ends the command with 2 if an option is wrong."""
        return DeadLetterFilter(
            None if self.since is None else moment_or_age_ms(self.since, "--since"),
            None if self.until is None else moment_or_age_ms(self.until, "--until"),
            frozenset(self.ids or ()),
            frozenset(self.keys or ()),
            frozenset(self.tags or ()),
            tuple(name_and_value(text, "--property") for text in self.properties or ()),
            self.reason or "",
        )


async def marks_reader(target: ClusterTarget, client: ClientInstance) -> Callable[[str], Marks]:
    """Return a function that reads the marks of a group's settled dead letters. Both raise RmqdError.

    The group's name is as brokers know it.
    """
    await client.cluster_id.learn(may_write=False)

    def read(group: str) -> Marks:
        marks = Marks(target.state_dir, group)
        marks.belong_to(client.identity(group))
        marks.load()
        return marks

    return read


def list_dead_letters(cluster: ClusterOptions) -> None:
    """List the groups with dead letters: the number left, the number stored, and the time of the last one.

    LEFT is the number of letters that were neither replayed nor purged. Times are UTC.

    Example: rmqd dlq list -o json
    """
    target = cluster.target()

    async def ask(brokers: Brokers) -> tuple[list[dead_letter_listing.DeadLetters], Mapping[str, RmqdError]]:
        read = await marks_reader(target, brokers.client)
        return await dead_letter_listing.list_dead_letters(brokers, read, namespace=target.options.namespace)

    cluster.show(target, ask, partial(say_table, _GROUPS))


def show(
    letters: LetterOptions,
    cluster: ClusterOptions,
    group: GroupName,
    most: Annotated[int, typer.Option("--most", min=1, max=10_000, help="Number of letters, the newest")] = 20,
    with_settled: Annotated[bool, typer.Option("--all", help="Include replayed and purged letters")] = False,
) -> None:
    """Show the newest unsettled dead letters of a group, oldest first, with the topic of each.

    REASON is rmqd's reason for dead-lettering the message; other clients record none. Letters that were replayed or
    purged are only shown with --all. The command reads them without a group, and does not change them. `rmqd message
    get ID` shows a whole letter.

    Example: rmqd dlq show order-mailer --reason timeout --most 100 -o json
    """
    choice = letters.filter()
    target = cluster.target(group)

    async def ask(brokers: Brokers) -> tuple[list[ShownLetter], Mapping[str, RmqdError]]:
        name = target.wrapped(group)
        marks = None if with_settled else (await marks_reader(target, brokers.client))(name)
        newest, errors = await dead_letter_listing.newest_letters(brokers, name, marks, choice, most)
        if newest.has_more:
            say([f"rmqd: only the newest {most} are shown; use --most for more"], err=True)
        return [_shown(letter) for letter in newest.letters], errors

    cluster.show(target, ask, partial(say_table, _LETTERS), lambda letters: [one.document() for one in letters])


@dataclass(frozen=True, slots=True)
class ShownLetter:
    """A dead letter for the output."""

    message: FoundMessage
    origin_topic: str | None
    reason: str | None
    exception: str | None

    def document(self) -> dict[str, Any]:
        """Return the message's document, with the reason of the dead letter."""
        more = {"origin_topic": self.origin_topic, "reason": self.reason, "exception": self.exception}
        return message_document(self.message) | more


def _shown(letter: Letter) -> ShownLetter:
    message = found_message(letter.message, letter.message.broker_name)
    exception = letter.message.stored_properties.get(RMQD_EXCEPTION)
    return ShownLetter(message, letter.origin_topic, letter.reason, exception)
