"""Options that several commands share: declared once, and passed to each command as one value.

Shell completion: names of groups and topics, and the values of options with a few values.

Names are from the configuration. Clusters are not asked, because a shell must not wait for a dead name server.

The common parts of all commands: creation, parameters, help, completion, and errors.

Typer creates the parameters itself, and their class cannot be configured. So a command sets their class when they are
requested, because Typer adds some of them late.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, get_type_hints

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption
from typer.main import get_command

from rmqd.cli.terminal.command_list import Listed, ListedGroup
from rmqd.cli.terminal.output import say_json


def with_options(
    name: str, options: Callable[..., None], value: Callable[..., object]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the parameters of `options` as options, after its own.

    The command gets the result of `value`, which has the same parameters, as its parameter `name`.
    """
    shared = _parameters(options)

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def run(**given: Any) -> None:
            command(**{name: value(**{one: given.pop(one) for one in shared})}, **given)

        parameters = _parameters(command, besides=name) | shared
        # typer reads a command's options from its function's signature and annotations
        run.__signature__ = inspect.Signature(list(parameters.values()))  # type: ignore[attr-defined]
        run.__annotations__ = {one: parameter.annotation for one, parameter in parameters.items()}
        return run

    return decorate


def _parameters(function: Callable[..., None], besides: str = "") -> dict[str, inspect.Parameter]:
    # the type of the passed value may be imported only when the command runs
    function.__annotations__.pop(besides, None)
    hints = get_type_hints(function, include_extras=True)
    return {
        name: one.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
        for name, one in inspect.signature(function).parameters.items()
        if name != besides
    }


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
    from rmqd.config.reading.config_source import configured_names, find_config

    config = given.get("config")
    try:
        return configured_names(find_config(config if isinstance(config, Path) else None))
    except OSError:
        return {}


_SHOWN: Final[dict[object, str]] = {Path: "PATH", list[Path]: "PATH", int: "NUMBER", float: "NUMBER"}
_MAKE: Final[dict[object, Callable[[str], Any]]] = {str: str, list[str]: str, Path: Path, list[Path]: Path}
_USAGE_ERROR: Final[Any] = typer.BadParameter.__base__  # Typer does not export it under a name
_ASKS_JSON: Final = re.compile(r"(?:^| )(?:-o ?|--output[= ])json(?: |$)")


class Failed(typer.Exit):
    """The end of a failed command. With `-o json` it prints the document, if there is one."""

    def __init__(self, code: int, document: dict[str, object] | None) -> None:
        super().__init__(code)
        self.document = document

    def behind_data(self) -> Failed:
        """Return this exit without its document, because standard output already has one."""
        return Failed(self.exit_code, None)


class Values:
    """Reads the values of a parameter: text and paths unchanged, and others with Typer.

    Typer's own way imports pydantic, which takes 0.1 s of CPU. Most commands do not need it.
    """

    def __init__(self, kind: object, typers: Callable[[], Any]) -> None:
        self._kind = kind
        self._typers = typers

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return a value of the parameter's kind, from the command line or a default."""
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        make = _MAKE.get(self._kind)
        if make is None:
            is_given = isinstance(value, (str, list, tuple))
            return self._typers().coerce(value, param=param, ctx=ctx) if is_given else value
        return [make(one) for one in value] if isinstance(value, (list, tuple)) else make(value)


class Option(TyperOption):
    """An option, with its value in capitals: `--config PATH`."""

    def get_runtime_param(self) -> Any:
        """Return the reader of its value."""
        return Values(self.type_descriptor.annotation, super().get_runtime_param)

    def display_type_rich(self, ctx: Any) -> str | None:
        """Return the text after the option in the help."""
        values = "|".join(VALUES.get(self.name, ()))
        return self.metavar or values or _SHOWN.get(self.type_descriptor.annotation) or self.opts[-1].strip("-").upper()

    def get_help_record(self, ctx: Any) -> tuple[str, str] | None:
        """Return its row in the help."""
        return _in_words(super().get_help_record(ctx))

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Return its values that begin with `incomplete`."""
        return completions(self.name, ctx.params, incomplete) or super().shell_complete(ctx, incomplete)


class Argument(TyperArgument):
    """An argument, in capitals: `GROUP`, `[TOPIC]`, `[GROUP]...`."""

    def get_runtime_param(self) -> Any:
        """Return the reader of its value."""
        return Values(self.type_descriptor.annotation, super().get_runtime_param)

    @property
    def display_name_raw(self) -> str:
        """The name in help and errors. A list is named after one value."""
        return self.metavar or (self.name.removesuffix("s") if self.nargs == -1 else self.name).upper()

    def display_type_rich(self, ctx: Any) -> str | None:
        """Return None, because the help describes the argument."""
        return None

    def get_usage_pieces(self, ctx: Any) -> list[str]:
        """Return its part of the usage line."""
        name = self.display_name_raw if self.required else f"[{self.display_name_raw}]"
        return [f"{name}..." if self.nargs != 1 else name]

    def get_help_record(self, ctx: Any) -> tuple[str, str] | None:
        """Return its row in the help."""
        return _in_words(super().get_help_record(ctx))

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Return its values that begin with `incomplete`."""
        return completions(self.name, ctx.params, incomplete) or super().shell_complete(ctx, incomplete)


def _in_words(record: tuple[str, str] | None) -> tuple[str, str] | None:
    """Return the help of a parameter with the range of a number in words."""
    if record is None:
        return None
    text = re.sub(r"(\S+)<=x<=(\S+)(?=])", r"\1 to \2", record[1])
    return record[0], re.sub(r"x>=(\S+)(?=])", r"at least \1", text)


class Command(TyperCommand):
    """A command. With `-o json` it prints JSON even if it fails before it has data."""

    def get_params(self, ctx: Any) -> Any:
        """Return its parameters, including --help, which Typer adds last."""
        return _adapted_parameters(super().get_params(ctx))

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        words = " ".join(args)  # parsing empties the list
        try:
            return super().make_context(info_name, args, parent, **extra)
        except _USAGE_ERROR as error:
            if _ASKS_JSON.search(words) and any(parameter.name == "output" for parameter in self.params):
                _say_usage_error(error)
            raise

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except _USAGE_ERROR as error:
            if ctx.params.get("output") == "json":
                _say_usage_error(error)
            raise
        except Failed as failed:
            if failed.document is not None and ctx.params.get("output") == "json":
                say_json(failed.document)
            raise


def _say_usage_error(error: Any) -> None:
    say_json({"error": error.format_message(), "problems": []})


class Commands(TyperGroup):
    """A group of commands. Its help shows their full summaries."""

    def get_params(self, ctx: Any) -> Any:
        """Return its parameters, including --help and completion, which Typer adds last."""
        return _adapted_parameters(super().get_params(ctx))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        try:
            return super().resolve_command(ctx, args)
        except _USAGE_ERROR as error:
            if _ASKS_JSON.search(" ".join(args)):
                _say_usage_error(error)
            raise

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List its commands, each with the first sentence of its help."""
        commands: Any = self.commands
        with formatter.section("Commands"):
            formatter.write_dl([(name, one.summary) for name, one in commands.listed.items() if not one.hidden])


class LoadedCommands(Mapping[str, Any]):
    """Commands by name, each created on access: a run needs only one, and importing all takes longer than the help."""

    def __init__(self, listed: Mapping[str, Listed | ListedGroup]) -> None:
        self.listed = listed
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            one = self.listed[name]
            self._made[name] = _group(name, one) if isinstance(one, ListedGroup) else _command(name, one)
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.listed)

    def __len__(self) -> int:
        return len(self.listed)


def _group(name: str, listed: ListedGroup) -> Any:
    commands: Any = LoadedCommands(listed.commands)
    text = f"{listed.summary}\n\n{listed.help}"
    return Commands(name=name, commands=commands, help=text, no_args_is_help=True, rich_markup_mode=None)


def _command(name: str, listed: Listed) -> Any:
    module_name, function = listed.place.split(":")
    module = importlib.import_module(f"rmqd.cli.{module_name}")
    alone = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    text = f"{listed.summary}\n\n{getattr(module, listed.help_name)}"
    alone.command(name, cls=Command, help=text, hidden=listed.hidden)(getattr(module, function))
    return get_command(alone)


def _adapted_parameters(parameters: list[Any]) -> list[Any]:
    for parameter in parameters:
        parameter.__class__ = _OURS.get(type(parameter), type(parameter))
    return parameters


_OURS: Final[dict[type, type]] = {
    TyperOption: Option,
    TyperArgument: Argument,
}
