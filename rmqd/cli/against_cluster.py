"""The options of commands against a cluster, in one place."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rmqd.cli.cluster import Cluster, ConfigPath, NameServer, Overrides, find_target
from rmqd.cli.control import Output, check_output
from rmqd.cli.shared_options import with_options

if TYPE_CHECKING:
    from rmqd.cli.cluster import Target


@dataclass(frozen=True, slots=True)
class Asked:
    """The values of these options."""

    nameserver: str | None
    config: Path | None
    cluster: str | None
    overrides: list[str] | None
    as_json: bool

    def target(self, group: str = "") -> Target:
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
