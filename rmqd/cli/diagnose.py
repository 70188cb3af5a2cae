"""`rmqd diagnose`: why a group lags or does not consume."""

from __future__ import annotations

import re
import textwrap
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmqd.cli.against_cluster import Asked, against_cluster
from rmqd.cli.cluster import ask_cluster, end_for_errors, fail, wrapped
from rmqd.cli.control import Http
from rmqd.cli.render import say, say_json
from rmqd.exit_codes import ExitCode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rmqd.cli.cluster import Target
    from rmqd.client.instance import ClientInstance
    from rmqd.client.looks.diagnosis import Diagnosis
    from rmqd.diagnosis.causes import Problem

HELP = """\
The brokers are asked, and through them the members, of whatever client they are; so is the daemon, where one runs that
has the group (--http, else the one of the configuration). Nobody joins the group. Where one look could mislead, there
is a second one seven seconds later. Exit 1 where something is wrong. docs/diagnosing.md has every cause.

Example: rmqd diagnose order-mailer
"""

WIDTH = 80
_NO_BREAK = "\0"  # no command has it


@against_cluster
def diagnose(
    asked: Asked,
    group: Annotated[str, typer.Argument(help="The group's name")],
    http: Http = None,
) -> None:
    """Say why a group lags or does not consume."""
    from rmqd.wire.namespace import without_namespace

    target = asked.target(group)
    options = target.options
    of_daemon = {} if http is None and target.config is None else _ask_daemon(asked, group, http)

    async def ask(client: ClientInstance) -> Diagnosis:
        from rmqd.client.looks.diagnosis import diagnose
        from rmqd.clock import SystemClock
        from rmqd.diagnosis.daemon import findings_of_daemon

        topics = [wrapped(topic, options.namespace) for topic in _configured(target, group)]
        found = findings_of_daemon(of_daemon, group, options.namespace)
        return await diagnose(client, SystemClock(), wrapped(group, options.namespace), topics, found)

    diagnosis = without_namespace(ask_cluster(options, ask), options.namespace)
    if asked.as_json:
        say_json(_document(diagnosis))
    else:
        say(_lines(diagnosis))
    if diagnosis.problems:
        raise typer.Exit(ExitCode.FAILURE)
    end_for_errors(diagnosis.errors, [options.namespace])


def _ask_daemon(asked: Asked, group: str, http: str | None) -> Mapping[str, Any]:
    """What a daemon says of the group; empty where none runs, or it does not have the group.

    The configuration's daemon is asked only where the cluster is the configuration's, too.
    """
    from rmqd.cli.daemon_client import DaemonRefusedError, DaemonUnreachableError, find_daemon
    from rmqd.errors import ConfigError

    if http is None and asked.nameserver is not None and asked.config is None:
        return {}
    try:
        groups = find_daemon(http, asked.config).status()["groups"]
    except ConfigError as error:
        fail(ExitCode.CONFIG, problems=map(str, error.problems))
    except DaemonUnreachableError as error:
        if http is not None:
            fail(ExitCode.UNAVAILABLE, f"rmqd: {error}; without --http the brokers alone are asked")
        return {}
    except DaemonRefusedError as error:
        fail(ExitCode.FAILURE, f"rmqd: {error}")
    return next((one for one in groups if one.get("name") == group), {})


def _configured(target: Target, group: str) -> list[str]:
    """The topics that the configuration has the group subscribe to."""
    configured = None if target.config is None else target.config.groups.get(group)
    return [] if configured is None else list(configured.subscriptions)


def _document(diagnosis: Diagnosis) -> dict[str, Any]:
    findings = [{"cause": one.cause, "evidence": one.evidence, "next": one.next} for one in diagnosis.problems]
    return {"group": diagnosis.group, "healthy": not findings, "findings": findings}


def _lines(diagnosis: Diagnosis) -> list[str]:
    """Each finding as its cause and two paragraphs, for a terminal of 80 columns."""
    if not diagnosis.problems:
        known = "nothing is wrong" if not diagnosis.errors else "nothing is known to be wrong"
        return [f"{diagnosis.group}: {known}"]
    lines = [f"{diagnosis.group}: {_headline(diagnosis.problems)}"]
    for number, problem in enumerate(diagnosis.problems, 1):
        lines += ["", f"{number}. {problem.cause}", *_wrapped(problem.evidence), *_wrapped(f"-> {problem.next}", "   ")]
    return lines


def _headline(problems: tuple[Problem, ...]) -> str:
    return (
        "one thing is wrong" if len(problems) == 1 else f"{len(problems)} things are wrong, the likeliest cause first"
    )


def _wrapped(text: str, more: str = "") -> list[str]:
    """A paragraph below a finding; commands and ids are not cut, as they are to be copied."""
    whole = re.sub(r"`[^`]*`", lambda command: command[0].replace(" ", _NO_BREAK), text)
    lines = textwrap.wrap(
        whole,
        WIDTH,
        initial_indent="   ",
        subsequent_indent=f"   {more}",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(_NO_BREAK, " ") for line in lines]
