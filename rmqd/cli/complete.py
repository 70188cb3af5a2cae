"""Shell completion: names of groups and topics, and the values of options with a few values.

Names are from the configuration. Clusters are not asked, because a shell must not wait for a dead name server.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

VALUES: Final[dict[str, tuple[str, ...]]] = {
    "output": ("table", "json"),
    "mode": ("pop", "pull"),
    "engine": ("local", "spark"),
    "deploy_mode": ("client", "cluster"),
}


@dataclass(frozen=True, slots=True)
class Completion:
    """One value, with the fields that Typer's shells read."""

    value: str
    type: str = "plain"
    help: str | None = None


def completions(parameter: str, given: Mapping[str, Any], incomplete: str) -> list[Completion]:
    """Return the values of a parameter with this beginning; `given` are the command's other parameters."""
    return [Completion(value) for value in _values(parameter, given) if value.startswith(incomplete)]


def _values(parameter: str, given: Mapping[str, Any]) -> Iterable[str]:
    match parameter:
        case "group" | "groups":
            return sorted(_configured(given))
        case "topic":
            groups = _configured(given)
            named = groups.get(given.get("group") or "")
            return sorted({topic for topics in groups.values() for topic in topics} if named is None else named)
        case _:
            return VALUES.get(parameter, ())


def _configured(given: Mapping[str, Any]) -> dict[str, list[str]]:
    from rmqd.config.reading.files import configured_names, find_config

    config = given.get("config")
    try:
        return configured_names(find_config(config if isinstance(config, Path) else None))
    except OSError:
        return {}
