"""The options and arguments that several commands share, their shell completion, and parsers of their values.

Shell completion offers names from the configuration. It queries no cluster, because a shell must not wait for an
unreachable name server.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from rmqd.errors import ConfigError, InvalidNameError
from rmqd.runtime.lazy_imports import import_lazily
from rmqd.wire.topics import check_topic

with import_lazily():
    from rmqd.config.model import forms
    from rmqd.config.reading import config_source
    from rmqd.runtime import value_kinds


def group_names(context: typer.Context) -> list[str]:
    """Return the names of the configured groups, for shell completion."""
    return sorted(_configured(context))


def topic_names(context: typer.Context) -> list[str]:
    """Return the configured topics for shell completion; if the command line has a group, only the group's topics."""
    groups = _configured(context)
    named = groups.get(context.params.get("group") or "")
    return sorted({topic for topics in groups.values() for topic in topics} if named is None else named)


def one_of(*values: str) -> Callable[[], list[str]]:
    """Return a function for shell completion that offers these values."""
    return lambda: [*values]


def _configured(context: typer.Context) -> dict[str, list[str]]:
    config = context.params.get("config")
    try:
        found = config_source.find_config(config if isinstance(config, Path) else None)
        return config_source.configured_names(found)
    except (ConfigError, OSError):
        return {}


def _known_format(output: str) -> str:
    if output not in ("table", "json"):
        raise typer.BadParameter(f"unknown format {output}; expected table or json", param_hint="-o")
    return output


Output = Annotated[
    str,
    typer.Option(
        "-o",
        "--output",
        metavar="table|json",
        help="table or json",
        callback=_known_format,
        autocompletion=one_of("table", "json"),
    ),
]
ConfigPath = Annotated[
    Path | None,
    typer.Option("--config", "-c", help="File or folder; default: $RMQD_CONFIG, config/rmqd.yaml, /etc/rmqd"),
]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a value, as a.b=c; repeatable")
]
Http = Annotated[
    str | None, typer.Option("--http", metavar="ADDRESS", help="The daemon's address, as 127.0.0.1:9464 or a URL")
]

GroupName = Annotated[str, typer.Argument(help="The group's name", autocompletion=group_names)]
GroupInConfig = Annotated[str, typer.Argument(help="The group's name in the configuration", autocompletion=group_names)]
TopicName = Annotated[str, typer.Argument(help="The topic's name", autocompletion=topic_names)]
SparkGroup = Annotated[
    str, typer.Argument(help="The group's name; optional if only one is on Spark", autocompletion=group_names)
]

WithSystem = Annotated[bool, typer.Option("--all", help="Include RocketMQ's own")]
Force = Annotated[bool, typer.Option("--force", help="Use a file of another cluster, namespace or group")]


def duration_ms(text: str, option: str) -> float:
    """Return the milliseconds of a duration such as 30s. Raises typer.BadParameter that names `option`."""
    try:
        return value_kinds.parse_duration_ms(text)
    except ValueError as error:
        raise typer.BadParameter(f"{error}; expected {value_kinds.DURATION_FORM}", param_hint=option) from None


def moment_ms(text: str, option: str, or_else: str = "") -> int:
    """Return the Unix milliseconds of a time: ISO 8601 with a zone, or @milliseconds.

    Raises typer.BadParameter that names `option`. The error lists the expected forms, followed by the text `or_else`.
    """
    moment: int = checked_value(forms.PointInTime(), text, option, or_else)
    return moment


def checked_value(kind: value_kinds.ValueKind, value: object, option: str, or_else: str = "") -> Any:
    """Return a value of the configuration's kind `kind`. Raises typer.BadParameter that names `option`."""
    try:
        return kind.parse(value)
    except ValueError as error:
        raise typer.BadParameter(f"{error}{or_else}", param_hint=option) from None


def moment_or_age_ms(text: str, option: str) -> int:
    """Return the Unix milliseconds of a time or an age such as 10m. Raises typer.BadParameter that names `option`."""
    try:
        return round(time.time() * 1000 - value_kinds.parse_duration_ms(text))
    except ValueError:
        return moment_ms(text, option, ", or an age such as 10m")


def topic_name(text: str, option: str) -> str:
    """Return the text if it is a valid topic name. Raises typer.BadParameter that names `option`."""
    try:
        return check_topic(text)
    except InvalidNameError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


def name_and_value(text: str, option: str, form: str = "name=value") -> tuple[str, str]:
    """Split a text NAME=VALUE into its name and value. Raises typer.BadParameter that names `option` and `form`."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise typer.BadParameter(f"{text!r} is not {form}", param_hint=option)
    return name, value
