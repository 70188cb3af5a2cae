"""`rmqd new handler`: a folder with a typed handler, its tests, its cases and its configuration."""

from __future__ import annotations

import importlib.util
import keyword
import re
import sys
from pathlib import Path
from typing import Annotated, Final

import typer

HELP = """\
The folder is called NAME, and so are the group and the handler's entry point. What is written works as it is: in it
pytest passes, and rmqd check and rmqd run find its configuration. A folder of that name that exists is refused.

Example: rmqd new handler order-book --topic orders
"""

_NAME: Final = re.compile(r"[a-z][a-z0-9]*(?:[-_][a-z0-9]+)*")
_TAKEN: Final = ("rmqd", "tests", "pydantic", "pytest")  # what the project imports


def new_handler(
    name: Annotated[str, typer.Argument(help="Small letters, digits and dashes, such as order-book")],
    topic: Annotated[str, typer.Option("--topic", help="The topic whose messages it handles")] = "orders",
) -> None:
    """Write a project with a typed handler, its tests and its configuration, to begin with."""
    from rmqd.cli.new_project import files_of
    from rmqd.errors import InvalidNameError
    from rmqd.plugins.entry_points import installed
    from rmqd.plugins.handlers import ENTRY_POINT_GROUP
    from rmqd.wire.topics import check_topic

    module = name.replace("-", "_")
    if not _NAME.fullmatch(name):
        raise typer.BadParameter(
            f"{name!r} cannot be the name of a handler; accepted: small letters, digits, single dashes",
            param_hint="NAME",
        )
    if keyword.iskeyword(module) or module in sys.stdlib_module_names or module in _TAKEN or _is_installed(module):
        raise typer.BadParameter(
            f"{name!r} would make the module {module}, which is Python's own, rmqd's or an installed one; "
            "accepted: another name",
            param_hint="NAME",
        )
    if name in installed(ENTRY_POINT_GROUP):
        raise typer.BadParameter(
            f"{name!r} is the name of an installed handler, and a configuration could not tell the two apart; "
            "accepted: another name",
            param_hint="NAME",
        )
    try:
        check_topic(topic)
    except InvalidNameError as error:
        raise typer.BadParameter(str(error), param_hint="--topic") from None
    folder = Path(name)
    try:
        folder.mkdir()
    except FileExistsError:
        raise typer.BadParameter(
            f"{folder.resolve()} exists already, and nothing in it is changed; accepted: a name that is not taken here",
            param_hint="NAME",
        ) from None
    for place, text in files_of(name, module, topic).items():
        file = folder / place
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        typer.echo(file)
    typer.echo(f"\nNext:  cd {name}  then  pytest  and  rmqd run --reload")


def _is_installed(module: str) -> bool:
    """Whether Python finds such a module. A folder without code, such as one of this name here, is none."""
    found = importlib.util.find_spec(module)
    return found is not None and found.origin is not None
