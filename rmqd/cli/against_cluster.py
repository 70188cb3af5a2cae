"""The options that commands against a cluster share, in one place."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from rmqd.cli.cluster import Cluster, ConfigPath, NameServer, Overrides, find_target
from rmqd.cli.control import Output, check_output

if TYPE_CHECKING:
    from rmqd.cli.cluster import Target


@dataclass(frozen=True, slots=True)
class Asked:
    """What these options say."""

    nameserver: str | None
    config: Path | None
    cluster: str | None
    overrides: list[str] | None
    as_json: bool

    def target(self, group: str = "") -> Target:
        """The cluster; without --cluster it is that of a `group`. Ends the command with 78 or 2 where that is wrong."""
        return find_target(self.nameserver, self.config, self.overrides, self.cluster, group=group)


def against_cluster(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the shared options, behind its own: it gets what they say as its first argument."""

    @functools.wraps(command)
    def run(**given: Any) -> None:
        shared = {name: given.pop(name) for name in _SHARED}
        check_output(output := shared.pop("output"))
        command(Asked(**shared, as_json=output == "json"), **given)

    hints = get_type_hints(command, include_extras=True)
    own = [one.replace(annotation=hints[name]) for name, one in inspect.signature(command).parameters.items()][1:]
    # typer makes the options of a command by the signature and the annotations of its function
    run.__signature__ = inspect.Signature([*own, *_SHARED.values()])  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in (*own, *_SHARED.values())}
    return run


def _options(
    nameserver: NameServer = None,
    config: ConfigPath = None,
    cluster: Cluster = None,
    overrides: Overrides = None,
    output: Output = "table",
) -> None:
    """The shared options."""


_SHARED = {
    name: one.replace(annotation=get_type_hints(_options, include_extras=True)[name])
    for name, one in inspect.signature(_options).parameters.items()
}
