"""A configured group, for commands that run its handler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from rmqd.cli.cluster import fail

if TYPE_CHECKING:
    from rmqd.cli.against_cluster import Asked
    from rmqd.client.options import ClientOptions
    from rmqd.config.model.group import GroupConfig
    from rmqd.config.model.root import RootConfig
    from rmqd.consumer.options import ConsumerOptions


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
    from rmqd.errors import ConfigError
    from rmqd.exit_codes import ExitCode
    from rmqd.plugins.consumer_options import consumer_options
    from rmqd.plugins.runnable import load_runnable

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
