"""`rmqd replay`: handles the messages of a time window again, as a member of a shadow group."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import typer

from rmqd.cli.terminal.cluster_command import ClusterOptions, ConfigGroup, Confirmation, end_for_errors
from rmqd.cli.terminal.commands import fail
from rmqd.cli.terminal.options import Force, GroupInConfig, moment_or_age_ms
from rmqd.cli.terminal.output import Columns, count, document_table, say, say_json, written_time
from rmqd.errors import ExitCode, RmqdError
from rmqd.runtime.lazy_imports import import_lazily
from rmqd.runtime.plain_text import describe
from rmqd.wire.topics import without_namespace

with import_lazily():
    from rmqd.client import brokers as broker_queries
    from rmqd.client import instance
    from rmqd.operate.queries import group_queries
    from rmqd.operate.replay import replay_plan, replay_run
    from rmqd.plugins import handler_catalogue
    from rmqd.runtime import event_loop
    from rmqd.runtime.logs import log_setup
    from rmqd.wire import message_queue

PRINT_SECONDS = 5.0
MAX_SHOWN = 20
_WINDOWS: Final[Columns] = (
    "topic",
    "broker",
    "queue",
    "from",
    "to",
    ("messages", lambda one: str(one["to"] - one["from"])),
)


def replay(
    confirmation: Confirmation,
    cluster: ClusterOptions,
    group: GroupInConfig,
    since: Annotated[str | None, typer.Option("--from", help="Stored at or after this time")] = None,
    until: Annotated[str | None, typer.Option("--to", help="Stored before this time; default: now")] = None,
    rate: Annotated[int, typer.Option("--rate", min=0, help="Messages per second; 0: as fast as the handler")] = 0,
    retries: Annotated[int, typer.Option("--retries", min=0, help="Number of retries of a failed message")] = 3,
    abandon: Annotated[
        bool, typer.Option("--abandon", help="Remove the shadow group of an interrupted replay")
    ] = False,
    force: Force = False,
) -> None:
    """Replay the messages of a time window with a group's handler, without affecting the group.

    The effects of the handler are REAL. It runs in this process, as the only member of a shadow group,
    GROUP-rmqd-replay. GROUP itself does not change: its offsets, members, retry topic and dead letters. A message that
    fails is not sent to the broker: it is retried here, --retries times, and then written to a file that is shown.
    Times are ISO 8601 with a zone, @milliseconds, or an age (2h).

    The command shows a plan and asks for confirmation. The plan is kept in state_dir: after an interruption, by Ctrl-C
    or kill -9, the same command continues. At the end the shadow group is removed; --abandon removes it without
    continuing.

    It exits with 1 if messages failed for good, and with 130 if Ctrl-C stopped it.

    Example: rmqd replay order-mailer --from 2026-11-24T08:00:00Z --to 2026-11-24T10:00:00Z --rate 200
    """
    ours = ConfigGroup.find(cluster, group)
    if ours.options.is_lite:
        raise typer.BadParameter(f"{group} reads lite topics; expected a group of other topics", param_hint="GROUP")
    identity = ours.target.ask(lambda client: _identity(client, ours, to_write=not confirmation.dry_run))
    folder = replay_plan.ReplayFolder(ours.target.state_dir, ours.name, identity)
    plan, is_new = _plan(ours, folder, since, until, abandon=abandon, force=force)
    shown = without_namespace(plan, ours.options.namespace)
    if abandon:
        confirmation.ask([f"{shown.shadow} will be removed from the brokers"], as_json=cluster.as_json)
        ours.target.ask_brokers(lambda brokers: replay_run.check_not_running(brokers, plan))
        raise typer.Exit(_end(ours, folder, plan))
    passed = 0 if is_new else ours.target.ask(lambda client: replay_run.count_handled(client, plan))
    if cluster.as_json and confirmation.dry_run:
        say_json(_document(shown, passed))
        raise typer.Exit
    confirmation.ask(_plan_lines(shown, folder, passed, rate, retries), as_json=cluster.as_json)
    ours.target.ask_brokers(lambda brokers: _begin(brokers, plan, folder))
    progress, stopped = _run(ours, plan, folder.failures(plan), rate, retries)
    code = _end(ours, folder, plan) if progress.is_done else stopped
    _report(shown, progress, folder.failures(plan), as_json=cluster.as_json)
    raise typer.Exit(code or (ExitCode.FAILURE if folder.failures(plan).read() else ExitCode.OK))


def _plan(
    ours: ConfigGroup,
    folder: replay_plan.ReplayFolder,
    since: str | None,
    until: str | None,
    *,
    abandon: bool,
    force: bool,
) -> tuple[replay_plan.ReplayPlan, bool]:
    """Return the stored plan of an interrupted replay, or a new plan, and whether the plan is new."""
    plan = folder.read(is_forced=force)
    if plan is not None:
        if not abandon and since is not None and (since, until) != (plan.since, plan.until):
            to = f" --to {plan.until}" if plan.until else ""
            fail(
                ExitCode.FAILURE,
                f"rmqd: another replay of {ours.name} was interrupted, from {plan.since}{to}; run "
                f"`rmqd replay {ours.name} --from {plan.since}{to}` to continue, or --abandon to remove it first",
            )
        return plan, False
    if abandon:
        fail(ExitCode.FAILURE, f"rmqd: there is no interrupted replay of {ours.name}")
    if since is None:
        raise typer.BadParameter("missing; expected a time", param_hint="--from")
    from_ms, to_ms = moment_or_age_ms(since, "--from"), moment_or_age_ms(until or "0s", "--to")
    if to_ms <= from_ms:
        raise typer.BadParameter("is not after --from", param_hint="--to")
    times = since, until, from_ms, to_ms
    return ours.target.ask(lambda client: _new_plan(client, ours, times, folder.identity)), True


async def _identity(client: instance.ClientInstance, ours: ConfigGroup, *, to_write: bool) -> message_queue.Identity:
    await client.cluster_id.learn(may_write=to_write)
    return client.identity(ours.options.group)


async def _new_plan(
    client: instance.ClientInstance, ours: ConfigGroup, times: tuple[str, str | None, int, int], identity: str
) -> replay_plan.ReplayPlan:
    replay_plan.shadow_name(ours.options.group)
    windows = await replay_run.windows_of(client, ours.options.subscriptions, *times[2:])
    made_at = datetime.now(UTC).isoformat(timespec="microseconds")  # this time also identifies the replay
    return replay_plan.ReplayPlan(ours.options.group, *times, made_at, windows, identity)


async def _begin(
    brokers: broker_queries.Brokers, plan: replay_plan.ReplayPlan, folder: replay_plan.ReplayFolder
) -> None:
    await replay_run.check_not_running(brokers, plan)
    if not plan.is_begun:
        folder.write(plan)
        await replay_run.create_shadow_group(brokers, plan)
        folder.write(replace(plan, is_begun=True))


def _run(
    ours: ConfigGroup, plan: replay_plan.ReplayPlan, failures: replay_plan.ReplayFailuresFile, rate: int, retries: int
) -> tuple[replay_run.ReplayProgress, int]:
    """Replay until all messages are handled or a signal arrives. Returns the progress, and an exit code.

    The exit code counts only if messages are left. Ends the command with 1 if the handler cannot be started or stopped.
    """
    signals: list[int] = []

    async def run() -> replay_run.ReplayProgress:
        client = instance.ClientInstance(ours.target.options)
        handler = handler_catalogue.load_handler(ours.name, ours.settings)
        one = replay_run.ReplayRun(plan, ours.options, handler, client, failures, rate=rate, retries=retries)

        printed_at = time.monotonic()

        def stop(number: int) -> None:
            signals.append(number)
            one.stop()

        def print_progress(progress: replay_run.ReplayProgress) -> None:
            nonlocal printed_at
            if time.monotonic() - printed_at >= PRINT_SECONDS:
                printed_at = time.monotonic()
                say([_progress_line(plan, progress)], err=True)

        with event_loop.handle_signals(stop, lambda: None):
            return await one.run(print_progress)

    log_setup.configure_logging("warning", ours.config.log.format, namespaces=ours.config.namespaces)
    try:
        return event_loop.run_in_loop(run()), 128 + signals[-1] if signals else ExitCode.FAILURE
    except RmqdError:
        raise
    except Exception as error:  # noqa: BLE001 the handler's `start` or `stop` may raise anything
        fail(ExitCode.FAILURE, f"rmqd: the handler cannot be run: {describe(error)}")


def _end(ours: ConfigGroup, folder: replay_plan.ReplayFolder, plan: replay_plan.ReplayPlan) -> int:
    """Remove the shadow group from the cluster, then delete the plan. Ends the command if parts of the group remain."""
    left = ours.target.ask_brokers(lambda brokers: group_queries.remove_group(brokers, plan.shadow))
    end_for_errors(left, [ours.options.namespace])
    folder.end()
    return ExitCode.OK


def _plan_lines(
    plan: replay_plan.ReplayPlan, folder: replay_plan.ReplayFolder, passed: int, rate: int, retries: int
) -> list[str]:
    speed = f"{rate} a second" if rate else "as fast as the handler takes them"
    behind = f"; it continues after the first {passed}" if passed else ""
    return [
        f"{plan.shadow} handles messages of {plan.group}, stored from {written_time(plan.from_ms)} to "
        f"{written_time(plan.to_ms)}, in UTC:",
        *document_table(_WINDOWS, [one for one in _document(plan, passed)["queues"] if one["to"] > one["from"]]),
        f"{count(plan.messages, 'message')} at most, {speed}{behind}",
        f"failed messages are retried {count(retries, 'time')}, then written to {folder.failures(plan).path}",
        f"the handler's effects are real; {plan.group} does not change, and {plan.shadow} is removed at the end",
    ]


def _progress_line(plan: replay_plan.ReplayPlan, progress: replay_run.ReplayProgress) -> str:
    told = ", ".join(f"{number} {outcome.replace('_', ' ')}" for outcome, number in progress.outcomes.items() if number)
    return f"{progress.passed} of {plan.messages} messages; this run: {told or 'none yet'}"


def _report(
    plan: replay_plan.ReplayPlan,
    progress: replay_run.ReplayProgress,
    failures: replay_plan.ReplayFailuresFile,
    *,
    as_json: bool,
) -> None:
    given_up = failures.read()
    if as_json:
        outcome = {"is_done": progress.is_done, "handled": dict(progress.outcomes), "failures": list(given_up)}
        file = {"failures_file": str(failures.path) if given_up else None}
        say_json(_document(plan, progress.passed) | outcome | file)
        return
    say([_progress_line(plan, progress)])
    for one in given_up[:MAX_SHOWN]:
        place = f"{one['topic']}:{one['broker']}:{one['queue']}:{one['offset']}"
        why = "; ".join(filter(None, (one["reason"], one["exception"])))
        say([f"failed: {one['msg_id']}  {place}  {why}"])
    if given_up:
        say([f"{count(len(given_up), 'message')} failed, in {failures.path}"])
    end = (
        f"{plan.shadow} was removed" if progress.is_done else "stopped: repeat the command to continue, or --abandon it"
    )
    say([end])


def _document(plan: replay_plan.ReplayPlan, passed: int) -> dict[str, Any]:
    return {
        "group": plan.group,
        "shadow": plan.shadow,
        "from_ms": plan.from_ms,
        "to_ms": plan.to_ms,
        "messages": plan.messages,
        "passed": passed,
        "queues": [
            {
                "topic": one.queue.topic,
                "broker": one.queue.broker_name,
                "queue": one.queue.queue_id,
                "from": one.start,
                "to": one.end,
            }
            for one in plan.windows
        ],
    }
