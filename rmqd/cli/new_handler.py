"""`rmqd new handler`: creates a folder with a typed handler, its tests, its cases and its configuration."""

from __future__ import annotations

import importlib.util
import keyword
import re
import sys
from pathlib import Path
from typing import Annotated, Final

import typer

HELP = """\
The folder, the group and the handler's entry point are called NAME. The project works unchanged: in the folder pytest
passes, and rmqd check and rmqd run find the configuration. An existing folder is not changed.

Example: rmqd new handler order-book --topic orders
"""

_NAME: Final = re.compile(r"[a-z][a-z0-9]*(?:[-_][a-z0-9]+)*")
_TAKEN: Final = ("rmqd", "tests", "pydantic", "pytest")  # the project imports these


def new_handler(
    name: Annotated[str, typer.Argument(help="Small letters, digits and dashes, such as order-book")],
    topic: Annotated[str, typer.Option("--topic", help="The topic whose messages it handles")] = "orders",
) -> None:
    """Create a project with a typed handler, its tests and its configuration."""
    from rmqd.cli.new_project import files_of
    from rmqd.errors import InvalidNameError
    from rmqd.plugins.entry_points import installed
    from rmqd.plugins.handlers import ENTRY_POINT_GROUP
    from rmqd.wire.topics import check_topic

    module = name.replace("-", "_")
    if not _NAME.fullmatch(name):
        raise typer.BadParameter(
            f"{name!r} is not a valid handler name; expected small letters, digits, single dashes",
            param_hint="NAME",
        )
    if keyword.iskeyword(module) or module in sys.stdlib_module_names or module in _TAKEN or _is_installed(module):
        raise typer.BadParameter(
            f"{name!r} would create the module {module}, which exists in Python, rmqd or an installed package; "
            "expected another name",
            param_hint="NAME",
        )
    if name in installed(ENTRY_POINT_GROUP):
        raise typer.BadParameter(
            f"{name!r} is the name of an installed handler, which a configuration could not distinguish; "
            "expected another name",
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
            f"{folder.resolve()} exists already and was not changed; expected another name",
            param_hint="NAME",
        ) from None
    for place, text in files_of(name, module, topic).items():
        file = folder / place
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        typer.echo(file)
    typer.echo(f"\nNext:  cd {name}  then  pytest  and  rmqd run --reload")


def _is_installed(module: str) -> bool:
    """Return whether Python finds such a module. A folder without code, such as a project's, does not count."""
    found = importlib.util.find_spec(module)
    return found is not None and found.origin is not None
