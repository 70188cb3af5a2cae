"""`rmqd groups mode`: sets whether a group pops or pulls a topic."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from rmqd.cli.against_cluster import Asked, against_cluster
from rmqd.cli.cluster import ask_cluster, end_for_errors, wrapped
from rmqd.cli.confirm import DryRun, Yes, confirm
from rmqd.cli.render import say, say_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rmqd.client.instance import ClientInstance
    from rmqd.client.looks.mode import ModeChange
    from rmqd.errors import RmqdError
    from rmqd.wire.bodies.settings import SetMessageRequestModeRequestBody

HELP = """\
The group may be unknown to the brokers, before its first member starts. The plan then says so, because the name may
be misspelt. Members with consume_mode: pop, and Java members with clientRebalance off, apply it within half a minute.
The command shows a plan and asks for confirmation.

Example: rmqd groups mode order-mailer orders pop --yes
"""


@against_cluster
def set_mode(
    asked: Asked,
    group: Annotated[str, typer.Argument(help="The group's name")],
    topic: Annotated[str, typer.Argument(help="The topic")],
    mode: Annotated[str, typer.Argument(help="pop or pull")],
    share_queues: Annotated[
        int,
        typer.Option("--share-queues", min=0, help="For pop: how many members share a queue; 0: all pop all queues"),
    ] = 0,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Set whether a group pops or pulls a topic."""
    if mode not in ("pop", "pull"):
        raise typer.BadParameter(f"unknown mode {mode}; expected pop or pull", param_hint="MODE")
    target = asked.target(group)
    namespace = target.options.namespace
    names = wrapped(group, namespace), wrapped(topic, namespace)
    wanted = (*names, mode.upper(), share_queues if mode == "pop" else 0)
    changes, is_known = ask_cluster(target.options, partial(_plan, wanted))
    due = [change for change in changes if change.is_due]
    errors: Mapping[str, RmqdError] = {}
    if due:
        if dry_run and asked.as_json:
            say_json([_document(change, errors) for change in changes])
        plan = [] if is_known else [f"no broker knows group {group} yet: this prepares it; see `rmqd groups list`"]
        plan += [f"{change.broker}: {_mode_text(change.now)} -> {_mode_text(change.then)}" for change in due]
        confirm([f"{group}, {topic}:", *plan], yes=yes, dry_run=dry_run, err=asked.as_json)
        errors = ask_cluster(target.options, partial(_carry_out, changes))
    if asked.as_json:
        say_json([_document(change, errors) for change in changes])
    elif done := [change.broker for change in due if change.broker not in errors]:
        say([f"set on {', '.join(done)}"])
    else:
        say(["nothing was set" if due else f"all brokers are set to {mode} already"])
    end_for_errors(errors, [namespace])


async def _plan(wanted: tuple[str, str, str, int], client: ClientInstance) -> tuple[list[ModeChange], bool]:
    """Return the changes, and whether a broker knows the group."""
    from rmqd.client.looks.brokers import Brokers
    from rmqd.client.looks.groups import is_known
    from rmqd.client.looks.mode import plan_mode
    from rmqd.wire.bodies.settings import SetMessageRequestModeRequestBody

    group, topic, mode, share_queues = wanted
    body = SetMessageRequestModeRequestBody(topic, group, mode, share_queues)
    brokers = await Brokers.look_up(client)
    return await plan_mode(brokers, body), await is_known(brokers, group)


async def _carry_out(changes: list[ModeChange], client: ClientInstance) -> Mapping[str, RmqdError]:
    from rmqd.client.looks.brokers import Brokers
    from rmqd.client.looks.mode import carry_out

    return await carry_out(await Brokers.look_up(client), changes)


def _mode_text(mode: SetMessageRequestModeRequestBody) -> str:
    shared = f", each queue shared by {mode.pop_share_queue_num}" if mode.pop_share_queue_num else ""
    return mode.mode.lower() + shared


def _document(change: ModeChange, errors: Mapping[str, RmqdError]) -> dict[str, object]:
    error = errors.get(change.broker)
    return {
        "broker": change.broker,
        "was": change.now.mode.lower(),
        "mode": (change.now if error else change.then).mode.lower(),
        "share_queues": (change.now if error else change.then).pop_share_queue_num,
        "error": str(error) if error else None,
    }
