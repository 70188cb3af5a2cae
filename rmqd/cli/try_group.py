"""`rmqd try`: runs a group's handler on real messages, without consequences for the group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from rmqd.cli.against_cluster import Asked, against_cluster
from rmqd.cli.cluster import ask_cluster, fail, wrapped
from rmqd.cli.moment import moment_ms, seconds
from rmqd.cli.own_group import own_group
from rmqd.cli.render import count, say
from rmqd.cli.try_report import Reporter, say_finding
from rmqd.exit_codes import ExitCode

if TYPE_CHECKING:
    from rmqd.cli.own_group import OwnGroup
    from rmqd.client.instance import ClientInstance
    from rmqd.trying.selection import Chosen, Selection

HELP = """\
The effects of the handler are REAL: mails are sent, rows are written. The group is not affected: it is not joined, no
offset is committed, no message is sent back or dead-lettered. The handler gets one batch after the other, as large as
in the daemon, in its own process. If that exits, crashes or hangs, it is reported, and a new process continues.

The messages match the group's subscriptions: by default the newest 10. Times are ISO 8601
with a zone, @milliseconds, or an age (10m).

--bisect finds the one message on which the handler's process dies, hangs, or raises an exception, in at most 16 runs
for 10,000 messages. By default it searches the messages that the group has not committed.

It exits with 1 if the handler raised an exception, died or hung; with --bisect, if no single message is the cause.

Example: rmqd try order-mailer --from 2h --to 1h

Example: rmqd try order-mailer --bisect --timeout 30s
"""
MOST_RUNS = 16


@against_cluster
def try_group(
    asked: Asked,
    group: Annotated[str, typer.Argument(help="The group's name in the configuration")],
    last: Annotated[int | None, typer.Option("--last", min=1, help="Number of newest messages")] = None,
    since: Annotated[str | None, typer.Option("--from", help="Stored at or after this time")] = None,
    until: Annotated[str | None, typer.Option("--to", help="Stored before this time")] = None,
    keys: Annotated[list[str] | None, typer.Option("--key", help="Only messages with this key; repeatable")] = None,
    ids: Annotated[list[str] | None, typer.Option("--id", help="Only the message with this id; repeatable")] = None,
    waiting: Annotated[bool, typer.Option("--waiting", help="Only uncommitted messages and retries")] = False,
    topics: Annotated[list[str] | None, typer.Option("--topic", help="Only messages of this topic; repeatable")] = None,
    dead_letters: Annotated[
        bool, typer.Option("--dead-letters", help="The group's dead letters, as if they were sent again")
    ] = False,
    without: Annotated[list[str] | None, typer.Option("--without", help="Exclude this message id; repeatable")] = None,
    most: Annotated[int, typer.Option("--most", min=1, help="Limit; the oldest selected messages are used")] = 10_000,
    timeout: Annotated[
        str | None, typer.Option("--timeout", help="Timeout of one call, as 30s; default: the group's consume_timeout")
    ] = None,
    bisect: Annotated[bool, typer.Option("--bisect", help="Find the message that makes the handler fail")] = False,
) -> None:
    """Run a group's handler on real messages, and commit nothing."""
    from rmqd.trying.selection import Selection

    times = [moment_ms(text, name) if text else None for text, name in ((since, "--from"), (until, "--to"))]
    ours = own_group(asked, group)
    if not any((last, since, until, keys, ids, waiting)) and not dead_letters:
        last, waiting = (None, True) if bisect else (10, False)
    selection = Selection(
        tuple(ids or ()), tuple(keys or ()), times[0], times[1], last, waiting and not dead_letters,
        _topics(ours, topics), dead_letters, frozenset(without or ()), most,
    )  # fmt: skip
    longest = ours.options.consume_timeout_seconds if timeout is None else _timeout_seconds(timeout)
    chosen = ask_cluster(ours.client_options, lambda client: _choose(ours, selection, client))
    say((f"rmqd: {remark}" for remark in chosen.remarks), err=True)
    if chosen.is_cut:
        say([f"rmqd: only the first {most} are used; use --most for more, or --from to begin later"], err=True)
    if not chosen.messages and not chosen.corrupt:
        fail(ExitCode.FAILURE, f"rmqd: {group} has no such messages")
    code = _bisect(ours, chosen, longest, asked) if bisect else _try(ours, chosen, longest, asked)
    raise typer.Exit(code)


async def _choose(ours: OwnGroup, selection: Selection, client: ClientInstance) -> Chosen:
    from rmqd.trying.selection import choose

    return await choose(client, ours.options, selection)


def _try(ours: OwnGroup, chosen: Chosen, timeout_seconds: float, asked: Asked) -> int:
    import asyncio
    from contextlib import aclosing

    from rmqd.trying.handler_process import HandlerUnusableError
    from rmqd.trying.selection import batches_of
    from rmqd.trying.trial import Trial
    from rmqd.wire.topics import dlq_topic

    trial = Trial(ours.config, timeout_seconds)
    reporter = Reporter(as_json=asked.as_json, lie_in=dlq_topic(ours.name) if chosen.are_dead_letters else "")

    async def run() -> None:
        batches = batches_of(chosen.messages, ours.options.consume_message_batch_max_size)
        async with aclosing(trial.run(batches)) as reports:
            async for report in reports:
                reporter.batch(report)

    for one in chosen.corrupt:
        reporter.corrupt(one)
    try:
        asyncio.run(run())
    except HandlerUnusableError as error:
        fail(ExitCode.FAILURE, f"rmqd: {error}")
    except KeyboardInterrupt:
        reporter.end(None, is_cut=True)
        return ExitCode.INTERRUPTED
    reporter.end(trial.at_end)
    return ExitCode.FAILURE if reporter.failures or trial.at_end else ExitCode.OK


def _bisect(ours: OwnGroup, chosen: Chosen, timeout_seconds: float, asked: Asked) -> int:
    import asyncio

    from rmqd.trying.bisect import Bisection
    from rmqd.trying.handler_process import HandlerUnusableError
    from rmqd.trying.trial import Trial
    from rmqd.wire.topics import dlq_topic

    trial = Trial(ours.config, timeout_seconds)
    size = ours.options.consume_message_batch_max_size
    search = Bisection(trial, size, MOST_RUNS, lambda line: say([line], err=True))
    say(
        [f"{count(len(chosen.messages), 'message')} in batches of up to {size}; the handler's effects are real"],
        err=True,
    )
    try:
        finding = asyncio.run(search.find(chosen.messages))
    except HandlerUnusableError as error:
        fail(ExitCode.FAILURE, f"rmqd: {error}")
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    say_finding(finding, ours.name, dlq_topic(ours.name) if chosen.are_dead_letters else "", as_json=asked.as_json)
    return ExitCode.OK if finding.answer in ("found", "nothing_fails") else ExitCode.FAILURE


def _topics(ours: OwnGroup, topics: list[str] | None) -> tuple[str, ...]:
    known = ours.options.subscriptions
    named = [wrapped(topic, ours.options.namespace) for topic in topics or ()]
    for given, topic in zip(topics or (), named, strict=True):
        if topic not in known:
            expected = ", ".join(ours.settings.subscriptions)
            raise typer.BadParameter(
                f"{ours.name} does not subscribe to {given}; expected one of {expected}", param_hint="--topic"
            )
    return tuple(named)


def _timeout_seconds(timeout: str) -> float:
    chosen = seconds(timeout, "--timeout")
    if chosen <= 0:
        raise typer.BadParameter("expected more than 0s", param_hint="--timeout")
    return chosen
