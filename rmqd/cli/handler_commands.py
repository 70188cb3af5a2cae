"""`rmqd handlers`, which lists installed handlers and pipelines, and `rmqd new handler`, which creates a project."""

from __future__ import annotations

import importlib.util
import json
import keyword
import re
import shutil
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Annotated, Final

import typer

from rmqd.cli.terminal.options import Output, topic_name, topic_names
from rmqd.cli.terminal.output import say_json, to_document
from rmqd.runtime.lazy_imports import import_lazily

with import_lazily():
    from rmqd.plugins import entry_points, handler_catalogue


def handlers(output: Output = "table") -> None:
    """List the installed handlers and pipelines, and their options.

    Broken handlers are listed with their errors.

    Example: rmqd handlers -o json
    """
    found = handler_catalogue.describe_installed()
    if output == "json":
        say_json(to_document(found))
    elif found:
        typer.echo("\n\n".join("\n".join(handler_lines(handler)) for handler in found))
    else:
        typer.echo("no handlers are installed; rmqd's own are in the folder handlers/ of its source", err=True)


def handler_lines(handler: handler_catalogue.HandlerDescription) -> list[str]:
    """Return the lines that `rmqd handlers` prints for one handler or pipeline."""
    name = handler.name if handler.kind == "handler" else f"{handler.name} ({handler.kind})"
    lines = [f"{name}  {handler.distribution} {handler.version}  {handler.target}"]
    if handler.error is not None:
        return [*lines, f"  broken: {handler.error}"]
    lines += [f"  {handler.description}"] if handler.description else []
    if handler.options is None:
        return [*lines, f"  options: any, because the {handler.kind} has no model for them"]
    return [*lines, *(_option_line(option) for option in handler.options)]


def _option_line(option: handler_catalogue.OptionDescription) -> str:
    default = "none" if option.default is None else json.dumps(option.default, ensure_ascii=False)
    need = "required" if option.required else f"default {default}"
    described = f": {option.description}" if option.description else ""
    return f"  {option.name} ({option.type}, {need}){described}"


_NAME: Final = re.compile(r"[a-z][a-z0-9]*(?:[-_][a-z0-9]+)*")
_TAKEN: Final = ("rmqd", "tests", "pydantic", "pytest")  # modules that the created project imports or contains


def new_handler(
    name: Annotated[str, typer.Argument(help="Small letters, digits and dashes, such as order-book")],
    topic: Annotated[
        str, typer.Option("--topic", help="The topic whose messages it handles", autocompletion=topic_names)
    ] = "orders",
    wheels: Annotated[
        Path | None, typer.Option("--wheels", help="Folder with a wheel of rmqd, to copy into the project")
    ] = None,
) -> None:
    """Create a project with a typed handler, its tests and its configuration.

    The folder, the group and the handler's entry point are called NAME. The project works unchanged: in the folder
    pytest passes, and rmqd check and rmqd run find the configuration. An existing folder is not changed.

    pyproject.toml requires this rmqd from where it was installed: a package index, a folder or a file. With --wheels it
    requires a copy of the wheel, so the project can also be installed elsewhere.

    Example: rmqd new handler order-book --topic orders
    """
    module = name.replace("-", "_")
    wrong = ""
    if not _NAME.fullmatch(name):
        wrong = f"{name!r} is not a valid handler name; expected small letters, digits, single dashes"
    elif keyword.iskeyword(module) or module in sys.stdlib_module_names or module in _TAKEN or _is_installed(module):
        exists = "which exists in Python, rmqd or an installed package; expected another name"
        wrong = f"{name!r} would create the module {module}, {exists}"
    elif name in entry_points.installed_entry_points(handler_catalogue.HANDLER_ENTRY_POINTS):
        told = "which a configuration could not distinguish; expected another name"
        wrong = f"{name!r} is the name of an installed handler, {told}"
    elif (folder := Path(name)).exists():
        wrong = f"{folder.resolve()} exists already and was not changed; expected another name"
    if wrong:
        raise typer.BadParameter(wrong, param_hint="NAME")
    topic_name(topic, "--topic")
    found = sorted(wheels.glob("rmqd-*.whl")) if wheels is not None else []
    if wheels is not None and not found:
        raise typer.BadParameter(f"{wheels} has no rmqd-*.whl; make dist writes one to dist/", param_hint="--wheels")
    folder.mkdir()
    if found:
        (folder / "wheels").mkdir()
        shutil.copy(found[-1], folder / "wheels")
    requirement = f"rmqd @ {{root:uri}}/wheels/{found[-1].name}" if found else installed_requirement()
    for place, text in files_of(name, module, topic, requirement).items():
        file = folder / place
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        typer.echo(file)
    typer.echo(f"\nNext:  cd {name}  then  pytest  and  rmqd dev")


def installed_requirement() -> str:
    """Return the requirement that installs this rmqd: `rmqd` or, if it is not from a package index, `rmqd @ URL`."""
    try:
        recorded = distribution("rmqd").read_text("direct_url.json")
    except PackageNotFoundError:
        recorded = None
    if recorded is None:
        return "rmqd"
    origin = json.loads(recorded)
    if "vcs_info" in origin:
        return f"rmqd @ {origin['vcs_info']['vcs']}+{origin['url']}@{origin['vcs_info']['commit_id']}"
    return f"rmqd @ {origin['url']}"


def _is_installed(module: str) -> bool:
    """Return whether a module with this name can be imported. A folder without `__init__.py` does not count."""
    found = importlib.util.find_spec(module)
    return found is not None and found.origin is not None


_PYPROJECT: Final = """\
[build-system]
requires = ["hatchling>=1.27"]
build-backend = "hatchling.build"

[project]
name = "NAME"
version = "0.1.0"
requires-python = ">=3.11"
dependencies = [
    "REQUIREMENT",
    "pydantic>=2.7",
]

[project.optional-dependencies]
dev = ["pytest", "ruff", "mypy"]

[tool.hatch.metadata]
allow-direct-references = true

# Once this is installed, a configuration may say `plugin: NAME`.
[project.entry-points."rmqd.handlers"]
NAME = "MODULE.handler:handle"

[tool.hatch.build.targets.wheel]
packages = ["MODULE"]

[tool.pytest.ini_options]
pythonpath = ["."]
addopts = ["--import-mode=importlib"]

[tool.ruff]
line-length = 100

[tool.mypy]
strict = true
"""

_CONFIG: Final = """\
# For development: rmqd dev, which brings a RocketMQ. With the RocketMQ at this address: rmqd run
nameserver: ${RMQD_NAMESERVER:-127.0.0.1:9876}
groups:
  "NAME":
    subscriptions: {"TOPIC": "*"}
    consume_from_where: first_offset
    handler: {plugin: "MODULE.handler:handle"}
"""

_HANDLER: Final = '''\
"""Handles the messages of TOPIC."""

import logging

import pydantic
import rmqd
from rmqd import Message

log = logging.getLogger(__name__)


class Order(pydantic.BaseModel):
    """The body of a message. A message with another body is dead-lettered, with the reason."""

    id: str
    total: int


@rmqd.handler(json=Order)
async def handle(order: Order, message: Message) -> None:
    """Returning acknowledges; raising retries. A message may be delivered twice, so the effect must be repeatable."""
    log.info("%s: order %s over %d", message.msg_id, order.id, order.total)
'''

_TEST: Final = '''\
"""Tests with the real consumer. Each test has its own RocketMQ."""

from collections.abc import Callable

from rmqd.testing import RocketMQ, RunResult

from MODULE.handler import handle

Run = Callable[..., RunResult]


def test_an_order_is_handled(rocketmq: RocketMQ, run_handler: Run) -> None:
    rocketmq.send("TOPIC", {"id": "order-1", "total": 12}, keys="order-1")
    result = run_handler(handle, topic="TOPIC", group="NAME")
    assert [message.keys for message in result.acked] == ["order-1"]


def test_an_invalid_order_is_dead_lettered(rocketmq: RocketMQ, run_handler: Run) -> None:
    rocketmq.send("TOPIC", {"id": "order-2"}, keys="order-2")
    run_handler(handle, topic="TOPIC", group="NAME")
    (dead,) = rocketmq.dead_letters("NAME")
    assert "total" in dead.properties["RMQD_REASON"]
'''

_CASES: Final = """\
# Run: rmqd test tests, or pytest. --chaos also tests whether the effect is repeatable. The handler is not replaced, so
# let it write to a database for tests.
config: ../config/rmqd.yaml
group: "NAME"
cases:
  one of two messages is not an order:
    messages:
      - {keys: order-1, body: {id: order-1, total: 12}}
      - {keys: order-2, body: {id: order-2}}
    expect:
      acked: [order-1]
      dead_letters: {order-2: total}
"""

_FILES: Final = {
    "pyproject.toml": _PYPROJECT,
    "config/rmqd.yaml": _CONFIG,
    "MODULE/__init__.py": "",
    "MODULE/handler.py": _HANDLER,
    "MODULE/py.typed": "",
    "tests/test_handler.py": _TEST,
    "tests/MODULE.cases.yaml": _CASES,
    ".gitignore": "__pycache__/\n.venv/\n.*_cache/\n",
}


def files_of(name: str, module: str, topic: str, requirement: str) -> Mapping[str, str]:
    """Return the text of each file of a new project, by the file's path below the project's folder."""
    values = {"NAME": name, "MODULE": module, "TOPIC": topic, "REQUIREMENT": requirement}

    def filled(text: str) -> str:
        return re.sub(r"\b(?:NAME|MODULE|TOPIC|REQUIREMENT)\b", lambda found: values[found[0]], text)

    return {filled(place): filled(text) for place, text in _FILES.items()}
