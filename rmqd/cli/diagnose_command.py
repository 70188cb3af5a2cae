"""`rmqd diagnose`: explains why a group lags or does not consume."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any

import typer

from rmqd.cli.terminal.cluster_command import ClusterOptions, end_for_errors
from rmqd.cli.terminal.commands import fail
from rmqd.cli.terminal.daemon_client import DaemonUnreachableError, find_daemon
from rmqd.cli.terminal.options import GroupName, Http
from rmqd.cli.terminal.output import add_command_options, count
from rmqd.errors import ExitCode
from rmqd.runtime.lazy_imports import import_lazily

with import_lazily():
    from rmqd.client import instance
    from rmqd.consumer.health import causes
    from rmqd.operate.diagnosis import cluster_findings, judge
    from rmqd.operate.queries import diagnosis_queries

WIDTH = 80
_NO_BREAK = "\0"  # replaces the spaces of a command while a text is wrapped, so that the command stays on one line


def diagnose(cluster: ClusterOptions, group: GroupName, http: Http = None) -> None:
    """Explain why a group lags or does not consume: the most likely cause first, with evidence and next steps.

    The command queries the brokers, through them the members of any client, and the daemon, if one with the group runs
    (--http, else the configuration's). It does not join the group. If one snapshot could mislead, it takes a second one
    seven seconds later. It exits with 1 if it finds a problem. docs/diagnosing.md explains every cause.

    Example: rmqd diagnose order-mailer
    """
    target = cluster.target(group)
    options = target.options
    of_daemon = {} if http is None and target.config is None else _ask_daemon(cluster, group, http)

    async def ask(client: instance.ClientInstance) -> diagnosis_queries.Diagnosis:
        configured = target.groups.get(group)
        topics = [] if configured is None else [target.with_namespace(topic) for topic in configured.subscriptions]
        found = cluster_findings.findings_of_daemon(of_daemon, group, options.namespace)
        return await diagnosis_queries.diagnose(client, target.with_namespace(group), topics, found)

    diagnosis = target.for_output(target.ask(ask))
    of_cluster = {"--nameserver": cluster.nameserver, "--cluster": cluster.cluster}
    own = [str(one.get("client_id")) for one in of_daemon.get("members") or () if one.get("here")]

    def next_step(problem: causes.Problem) -> str:
        is_own = any(re.search(rf"{re.escape(one)}(?![\w@#])", problem.evidence) for one in own)
        elsewhere = "the member is " in problem.evidence and not is_own
        return add_command_options(problem.next, cluster.config, http, of_cluster, other_daemon=elsewhere)

    lines = _lines(diagnosis, next_step)
    cluster.say(_document(diagnosis), lines)
    if diagnosis.problems:
        raise typer.Exit(ExitCode.FAILURE)
    end_for_errors(diagnosis.errors, [options.namespace])


def _ask_daemon(cluster: ClusterOptions, group: str, http: str | None) -> Mapping[str, Any]:
    """Return the group's status from the daemon; empty if no daemon runs, or the daemon does not have the group.

    If only `--nameserver` is given, the configured daemon is not asked, because it may use another cluster.
    """
    if http is None and cluster.nameserver is not None and cluster.config is None:
        return {}
    try:
        groups = find_daemon(http, cluster.config).status()["groups"]
    except DaemonUnreachableError as error:
        if http is not None:
            fail(ExitCode.UNAVAILABLE, f"rmqd: {error}; omit --http to ask only the brokers")
        return {}
    return next((one for one in groups if one.get("name") == group), {})


def _document(diagnosis: diagnosis_queries.Diagnosis) -> dict[str, Any]:
    explained = judge.consequences(diagnosis.problems)
    findings = [
        {"cause": one.cause, "evidence": one.evidence, "next": one.next}
        | ({"consequence_of": explained[one].cause} if one in explained else {})
        for one in diagnosis.problems
    ]
    return {"group": diagnosis.group, "healthy": not findings, "findings": findings}


def _lines(
    diagnosis: diagnosis_queries.Diagnosis, next_step: Callable[[causes.Problem], str] = attrgetter("next")
) -> list[str]:
    """Return the diagnosis as text: for each problem its cause, evidence, next step and consequences."""
    if not diagnosis.problems:
        known = "nothing is wrong" if not diagnosis.errors else "nothing is known to be wrong"
        waiting = count(diagnosis.catching_up, "message")
        more = f"; the group is catching up with {waiting}" if diagnosis.catching_up else ""
        return [f"{diagnosis.group}: {known}{more}"]
    explained = judge.consequences(diagnosis.problems)
    roots = [problem for problem in diagnosis.problems if problem not in explained]
    lines = [f"{diagnosis.group}: {_headline(len(roots), len(explained))}"]
    for number, problem in enumerate(roots, 1):
        step = _wrapped(f"-> {next_step(problem)}", "   ")
        lines += ["", f"{number}. {problem.cause}", *_wrapped(problem.evidence), *step]
        for one in (it for it, cause in explained.items() if cause == problem):
            lines += _wrapped(f"therefore {one.cause}: {one.evidence}", "  ")
    return lines


def _headline(roots: int, consequences: int) -> str:
    wrong = "one thing is wrong" if roots == 1 else f"{roots} things are wrong, the likeliest cause first"
    return f"{wrong}, with {count(consequences, 'consequence')}" if consequences else wrong


def _wrapped(text: str, more: str = "") -> list[str]:
    """Return an indented paragraph. Commands in backticks and long ids are not broken, so that users can copy them."""
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
