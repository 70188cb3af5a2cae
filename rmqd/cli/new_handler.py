"""`rmqd new handler`: a folder with a typed handler, its tests, its cases and its configuration."""

from __future__ import annotations

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


def new_handler(
    name: Annotated[str, typer.Argument(help="Small letters, digits and dashes, such as order-book")],
    topic: Annotated[str, typer.Option("--topic", help="The topic whose messages it handles")] = "orders",
) -> None:
    """Write a project with a typed handler, its tests and its configuration, to begin with."""
    from rmqd.cli.new_project import files_of
    from rmqd.errors import InvalidNameError
    from rmqd.wire.topics import check_topic

    module = name.replace("-", "_")
    if not _NAME.fullmatch(name):
        raise typer.BadParameter(
            f"{name!r} cannot be the name of a handler; accepted: small letters, digits, single dashes",
            param_hint="NAME",
        )
    if keyword.iskeyword(module) or module in sys.stdlib_module_names or module in ("rmqd", "tests"):
        raise typer.BadParameter(
            f"{name!r} would make the module {module}, which is Python's own or rmqd's; accepted: another name",
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
