"""A configured group, for commands that run its handler.

The plan and the question that a command shows before it changes a cluster.

The options of commands against a cluster, in one place.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmqd.cli.daemon_commands import Output, check_output
from rmqd.cli.terminal.cluster_command import Cluster, ConfigPath, NameServer, Overrides, fail, find_target
from rmqd.cli.terminal.commands import with_options
from rmqd.cli.terminal.output import say
from rmqd.errors import ExitCode

if TYPE_CHECKING:
    from rmqd.cli.terminal.cluster_command import ClusterTarget
    from rmqd.client.client_options import ClientOptions
    from rmqd.config.model.group_model import GroupConfig
    from rmqd.config.model.root_model import RootConfig
    from rmqd.consumer.consumer_options import ConsumerOptions


@dataclass(frozen=True, slots=True)
class OwnGroup:
    """One group, whose handler was found and whose options are valid."""

    name: str
    config: RootConfig
    """The configuration with only this group and its cluster."""
    settings: GroupConfig
    options: ConsumerOptions
    client_options: ClientOptions


def own_group(asked: Asked, name: str) -> OwnGroup:
    """Return the group. Ends the command with 78 if the configuration is wrong, with 2 if the group is unknown."""
    from rmqd.errors import ConfigError, ExitCode
    from rmqd.plugins.model_options import consumer_options, load_runnable

    try:
        config = load_runnable(asked.config, asked.overrides or (), groups=[name])
        if name not in config.groups:
            known = ", ".join(config.groups) or "none"
            raise typer.BadParameter(f"unknown group {name}; expected one of {known}", param_hint="GROUP")
        settings = config.groups[name]
        if settings.handler is None:
            raise typer.BadParameter(f"{name} has a pipeline; expected a group with a handler", param_hint="GROUP")
        options = consumer_options(config, name)
    except ConfigError as error:
        fail(ExitCode.CONFIG, problems=map(str, error.problems))
    client_options = asked.target(name).options
    return OwnGroup(name, config.of_group(name), settings, options, client_options)


Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation")]
Force = Annotated[bool, typer.Option("--force", help="Use a file of another cluster, namespace or group")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show the plan")]


def confirm(plan: Iterable[str], *, yes: bool, dry_run: bool, err: bool = False) -> None:
    """Show the plan and ask for confirmation. Ends the command if the answer is no.

    With `err` the plan is written to standard error, so that standard output contains only data.
    """
    say(plan, err=err)
    if dry_run:
        raise typer.Exit(ExitCode.OK)
    if yes:
        return
    if not sys.stdin.isatty():
        fail(ExitCode.FAILURE, "rmqd: nothing was changed, because there is no terminal for confirmation; use --yes")
    if code := _refusal(err):
        fail(code, "rmqd: nothing was changed")


def _refusal(err: bool) -> int:
    """Ask; return OK, or the exit code if the answer is not yes."""
    try:
        return ExitCode.OK if typer.confirm("Do it?", err=err) else ExitCode.FAILURE
    except (typer.Abort, KeyboardInterrupt) as end:  # Ctrl-C during or before reading, or the end of the input
        typer.echo(err=True)
        by_ctrl_c = isinstance(end, KeyboardInterrupt) or isinstance(end.__context__, KeyboardInterrupt)
        return ExitCode.INTERRUPTED if by_ctrl_c else ExitCode.FAILURE


@dataclass(frozen=True, slots=True)
class Asked:
    """The values of these options."""

    nameserver: str | None
    config: Path | None
    cluster: str | None
    overrides: list[str] | None
    as_json: bool

    def target(self, group: str = "") -> ClusterTarget:
        """Return the cluster: --cluster, else the cluster of `group`. Ends the command with 78 or 2 if it is wrong."""
        return find_target(self.nameserver, self.config, self.overrides, self.cluster, group=group)


def _options(
    nameserver: NameServer = None,
    config: ConfigPath = None,
    cluster: Cluster = None,
    overrides: Overrides = None,
    output: Output = "table",
) -> None: ...


def _asked(output: str, **given: Any) -> Asked:
    check_output(output)
    return Asked(**given, as_json=output == "json")


against_cluster = with_options("asked", _options, _asked)
"""Gives a command these options, with their values in its parameter `asked`."""
