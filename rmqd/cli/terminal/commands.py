"""Typer commands with parameters, help and errors. A command's module is imported only when the command is called.

A command is a function of a module in `rmqd.cli`. Its parameters become options and arguments as Typer documents it,
and its docstring is the help. If a parameter's type is a dataclass, each field becomes an option. So options that
several commands share are declared once, in a dataclass.
"""

from __future__ import annotations

import functools
import gc
import importlib
import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, Final, NoReturn, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from rmqd.cli.terminal.output import say, say_json
from rmqd.errors import ConfigError, ExitCode, RmqdError

_FOLDER: Final = Path(__file__).parents[1]
_SHOWN: Final[dict[object, str]] = {Path: "PATH", list[Path]: "PATH", int: "NUMBER", float: "NUMBER"}
_MAKE: Final[dict[object, Callable[[str], Any]]] = {str: str, list[str]: str, Path: Path, list[Path]: Path}
_USAGE_ERROR: Final[Any] = typer.BadParameter.__base__  # the class UsageError, which Typer does not export
_ASKS_JSON: Final = re.compile(r"(?:^| )(?:-o ?|--output[= ])json(?: |$)")


class Failed(typer.Exit):
    """Raised to end a failed command with an exit code. `document` is printed with `-o json`; None prints nothing."""

    def __init__(self, code: int, document: dict[str, object] | None) -> None:
        super().__init__(code)
        self.document = document


def fail(code: int, error: str = "", *, problems: Iterable[str] = (), has_printed: bool = False) -> NoReturn:
    """End the command with an exit code, and print the error and each problem as lines on standard error.

    With `-o json` they are also printed as JSON to standard output, unless the command `has_printed` JSON already.
    """
    listed = list(problems)
    say([*filter(None, [error]), *listed], err=True)
    said = error.removeprefix("rmqd: ") or "the configuration is wrong"
    raise Failed(code, None if has_printed else {"error": said, "problems": listed})


class Command(TyperCommand):
    """A command of rmqd. `place` is its function as module:function, with the module relative to `rmqd.cli`.

    A ConfigError ends the command with 78, another RmqdError with 1. With `-o json` it prints JSON even if it fails.
    """

    def __init__(self, name: str, place: str, *, hidden: bool = False) -> None:
        super().__init__(name, hidden=hidden, rich_markup_mode=None)
        self._place = place

    def get_short_help_str(self, limit: int = 45) -> str:
        """Return the first line of the function's docstring, read from the module's source without importing it."""
        if self.help is None:
            module, function = self._place.split(":")
            text = (_FOLDER / f"{module}.py").read_text()
            start = text.index('"""', text.index(f"\ndef {function}(")) + 3
            self.help = text[start : text.index("\n", start)]
        return super().get_short_help_str(limit)

    def load(self) -> Command:
        """Import the command's function, and set parameters, callback and help from it. Only the first call does."""
        if self.callback is None:
            module, function = self._place.split(":")
            app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
            gc.disable()  # imported objects stay in memory, so garbage collections would only take time
            app.command()(_with_fields(getattr(importlib.import_module(f"rmqd.cli.{module}"), function)))
            gc.enable()
            made = get_command(app)
            self.params, self.callback, self.help = made.params, made.callback, made.help
        return self

    def get_params(self, ctx: Any) -> Any:
        """Return the command's parameters, including Typer's --help, adapted for rmqd."""
        return [_adapted(parameter) for parameter in super().get_params(ctx)]

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        self.load()
        words = " ".join(args)  # joined before parsing, which empties `args`
        try:
            return super().make_context(info_name, args, parent, **extra)
        except _USAGE_ERROR as error:
            if _ASKS_JSON.search(words) and any(parameter.name == "output" for parameter in self.params):
                _say_usage_error(error)
            raise

    def invoke(self, ctx: Any) -> Any:
        try:
            return self._invoke(ctx)
        except _USAGE_ERROR as error:
            if ctx.params.get("output") == "json":
                _say_usage_error(error)
            raise
        except Failed as failed:
            if failed.document is not None and ctx.params.get("output") == "json":
                say_json(failed.document)
            raise

    def _invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except ConfigError as error:
            fail(ExitCode.CONFIG, problems=map(str, error.problems))
        except RmqdError as error:
            fail(ExitCode.FAILURE, f"rmqd: {error}")

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the words of the usage line, without the braces that Typer prints around required arguments."""
        return [re.sub("[{}]", "", piece) for piece in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        for kind in ("argument", "option"):
            if rows := [*help_rows(self, ctx, kind)]:
                with formatter.section(f"{kind.capitalize()}s"):
                    formatter.write_dl(rows)


class Commands(TyperGroup):
    """A group of commands, such as `rmqd groups`. Its help shows each command's first sentence without an import."""

    def get_params(self, ctx: Any) -> Any:
        """Return the group's parameters, including Typer's --help, adapted for rmqd."""
        return [_adapted(parameter) for parameter in super().get_params(ctx)]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        try:
            return super().resolve_command(ctx, args)
        except _USAGE_ERROR as error:
            if _ASKS_JSON.search(" ".join(args)):
                _say_usage_error(error)
            raise

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, one.get_short_help_str(1000)) for name, one in self.commands.items() if not one.hidden]
            )


def help_rows(command: Any, ctx: Any, *kinds: str) -> Iterator[tuple[str, str]]:
    """Yield the name and help of each parameter of `kinds` (argument, option). Number ranges are written in words."""
    for parameter in command.get_params(ctx):
        record = parameter.get_help_record(ctx)
        if record is not None and parameter.param_type_name in kinds:
            text = re.sub(r"(\S+)<=x<=(\S+)(?=])", r"\1 to \2", record[1])
            text = re.sub(r"x>=(\S+)(?=])", r"at least \1", text)
            if parameter.param_type_name == "argument":  # Typer's name for an argument would include its type
                name = parameter.metavar + "..." * (parameter.nargs != 1)
            else:
                name = record[0]
            yield name, text


def _say_usage_error(error: Any) -> None:
    say_json({"error": error.format_message(), "problems": []})


def _with_fields(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command as a function that has, in place of dataclass parameters, their fields as parameters."""
    shared: dict[str, Any] = {name: kind for name, kind in get_type_hints(command).items() if is_dataclass(kind)}
    if not shared:
        return command
    fields = {name: _parameters(kind) for name, kind in shared.items()}

    @functools.wraps(command)
    def run(**given: Any) -> None:
        values = {name: kind(**{field: given.pop(field) for field in fields[name]}) for name, kind in shared.items()}
        command(**values, **given)

    parameters = {name: one for name, one in _parameters(command).items() if name not in shared}
    parameters |= {name: one for options in fields.values() for name, one in options.items()}
    # Typer reads a command's options from its function's signature and annotations
    run.__signature__ = inspect.Signature(list(parameters.values()))  # type: ignore[attr-defined]
    run.__annotations__ = {name: one.annotation for name, one in parameters.items()}
    return run


def _parameters(function: Callable[..., object]) -> dict[str, inspect.Parameter]:
    hints = get_type_hints(function, include_extras=True)
    return {
        name: one.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
        for name, one in inspect.signature(function).parameters.items()
    }


class _Reader:
    """Converts the command-line values of one parameter: texts and paths itself, other types with Typer.

    Typer's conversion imports pydantic, which takes 0.1 s of CPU time and is not needed for most commands.
    """

    def __init__(self, parameter: Any) -> None:
        self._kind = parameter.type_descriptor.annotation
        self._typers = parameter.get_runtime_param

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return a value converted to the parameter's type. Called by Typer with command-line values and defaults."""
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        make = _MAKE.get(self._kind)
        if make is None:
            is_given = isinstance(value, (str, list, tuple))
            return self._typers().coerce(value, param=param, ctx=ctx) if is_given else value
        return [make(one) for one in value] if isinstance(value, (list, tuple)) else make(value)


def _adapted(parameter: Any) -> Any:
    """Change and return a Typer parameter: help shows its value in capitals (`--config PATH`), _Reader converts it."""
    if "get_runtime_param" not in vars(parameter):
        if parameter.param_type_name == "argument":
            name = parameter.name.removesuffix("s") if parameter.nargs == -1 else parameter.name
            parameter.metavar = parameter.metavar or name.upper()
        else:
            shown = _SHOWN.get(parameter.type_descriptor.annotation)
            parameter.metavar = parameter.metavar or shown or parameter.opts[-1].strip("-").upper()
        reader = _Reader(parameter)
        parameter.get_runtime_param = lambda: reader
    return parameter
