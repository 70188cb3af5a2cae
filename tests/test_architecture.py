"""The rooms of the house: which may know which, and how big they may get."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

TOP = Path(__file__).parent.parent
ROOT = TOP / "rmqd"
HANDLERS = TOP / "handlers"
PLAIN = "codes errors clock exit_codes histogram own_threads plain_text"
# room: (rooms of rmqd that it may import, third-party packages that it may import)
BELOW = {
    "__init__": ("handler wire", ""),
    "__main__": ("cli", ""),
    "codes": ("", ""),
    "clock": ("", ""),
    "exit_codes": ("", ""),
    "histogram": ("", ""),
    "own_threads": ("", ""),
    "plain_text": ("", ""),
    "errors": ("codes", ""),
    "wire": ("codes errors", "lz4 zstandard"),
    "handler": ("errors plain_text wire", ""),
    "client": (f"{PLAIN} wire", "structlog"),
    "consumer": (f"{PLAIN} wire handler client", "structlog"),
    "config": (f"{PLAIN} wire client consumer", "yaml pydantic pydantic_core"),
    "plugins": (f"{PLAIN} wire handler client consumer config", "structlog pydantic pydantic_core"),
    "process": (f"{PLAIN} wire handler consumer config", "structlog uvloop opentelemetry"),
    "daemon": (
        f"{PLAIN} wire handler client consumer config plugins process",
        "structlog prometheus_client uvloop pydantic starlette uvicorn",
    ),
    "broker": (f"{PLAIN} wire", "structlog"),
    "spark": (
        f"{PLAIN} wire handler client consumer config plugins process daemon",
        "structlog pyspark pyarrow py4j numpy",
    ),
    "testing": (
        f"{PLAIN} wire handler client consumer config plugins process daemon broker",
        "pytest structlog yaml pydantic",
    ),
    "demo": (f"{PLAIN} wire handler client consumer config plugins process daemon broker", "structlog rich"),
    "cli": (
        f"{PLAIN} wire handler client consumer config plugins process daemon broker spark testing demo",
        "typer",
    ),
}
PURE = {"codes", "errors", "exit_codes", "histogram", "plain_text", "wire", "handler"}
IO = set("asyncio socket ssl selectors threading subprocess logging time".split())
PUBLIC = set("Batch Message MessageQueue Retry DeadLetter Suspend __version__".split())
MOST_LINES = 400

MODULES = sorted(ROOT.rglob("*.py"))
HANDLER_MODULES = sorted(HANDLERS.rglob("*.py"))


def imports(path: Path) -> Iterator[str]:
    """Absolute names of the modules that a file imports, lazy ones included."""
    package = path.relative_to(TOP).parent.parts
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*base, *filter(None, [node.module])])
            yield from [f"rmqd.{alias.name}" for alias in node.names] if module == "rmqd" else [module]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_down(path: Path) -> None:
    """A room imports only rooms below it, its own third-party packages, and does I/O only where that is its job."""
    room = path.relative_to(ROOT).parts[0].removesuffix(".py")
    rooms, packages = (set(names.split()) for names in BELOW[room])
    for name in imports(path):
        top, _, rest = name.partition(".")
        if top == "rmqd":
            assert rest.split(".")[0] in rooms | {room, "__version__"}, f"{room} may not import {name}"
        elif top in sys.stdlib_module_names:
            assert room not in PURE or top not in IO, f"{room} does no I/O and knows no time, yet imports {name}"
        else:
            assert top in packages, f"{room} may not import {top}"


@pytest.mark.parametrize("path", HANDLER_MODULES, ids=lambda path: str(path.relative_to(HANDLERS)))
def test_handlers_use_what_every_user_has(path: Path) -> None:
    """Our handlers know rmqd's public names alone, so that they prove what other people's handlers can do."""
    public = PUBLIC | {"testing"} if path.name.startswith("test_") else PUBLIC
    for name in imports(path):
        assert not name.startswith("rmqd.") or name.removeprefix("rmqd.") in public, f"{name} is not public"


@pytest.mark.parametrize("path", MODULES + HANDLER_MODULES, ids=lambda path: str(path.relative_to(TOP)))
def test_module_fits_a_readers_head(path: Path) -> None:
    """Aim at 300 lines; above 400 there are two things in one file."""
    assert len(path.read_text().splitlines()) <= MOST_LINES
