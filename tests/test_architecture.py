"""The rooms of the product: their permitted imports and their sizes."""

from __future__ import annotations

import ast
import functools
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

TOP = Path(__file__).parent.parent
ROOT = TOP / "rmqd"
HANDLERS = TOP / "handlers"
TESTS = TOP / "tests"
# room: the third-party packages that it may import. A room imports only rooms above it in this list.
ROOMS = {
    "codes": "",
    "version": "",
    "errors": "",
    "wire": "lz4 zstandard",
    "runtime": "structlog uvloop pydantic_core rich",
    "offset_stores": "",
    "handler_api": "pydantic msgspec fastavro psycopg psycopg_pool redis sqlalchemy",
    "client": "structlog",
    "consumer": "structlog",
    "config": "yaml pydantic pydantic_core",
    "plugins": "structlog pydantic pydantic_core opentelemetry",
    "operate": "structlog",
    "daemon": "structlog prometheus_client uvloop pydantic starlette uvicorn h11 jinja2",
    "broker": "structlog",
    "testing": "pytest hypothesis structlog yaml pydantic",
    "demo": "structlog rich",
    "spark": "structlog pyspark pyarrow py4j numpy psycopg zlib_ng fastavro google",
    "cli": "typer rich",
    "__main__": "",
    "__init__": "",
}
# Leaves, and the rooms that may import them. Every other room works without them.
LEAVES = {"broker": "testing demo cli", "testing": "cli", "demo": "cli", "spark": "cli"}
PURE = {"codes", "errors", "wire", "offset_stores"}
IO = set("asyncio socket ssl selectors threading subprocess logging time".split())
PUBLIC = set("AlreadyHandled Batch Message MessageQueue Retry DeadLetter Suspend handler Depends __version__".split())
MAX_LINES, MAX_IN_A_FOLDER, MAX_MODULES = 400, 20, 400
MAX_DAILY_LINES = 70_000

MODULES = sorted(ROOT.rglob("*.py"))
BY_NAME = {".".join(path.relative_to(TOP).with_suffix("").parts).removesuffix(".__init__"): path for path in MODULES}
HANDLER_MODULES = sorted(HANDLERS.rglob("*.py"))
NIGHTLY = TESTS / "nightly"
DAILY = [path for path in sorted(TESTS.rglob("*.py")) if NIGHTLY not in path.parents]


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@functools.cache
def imports(path: Path) -> tuple[str, ...]:
    """Return the absolute names that a file imports: modules, and names from modules. Includes lazy imports."""
    return tuple(_imports(path))


def _imports(path: Path) -> Iterator[str]:
    package = path.relative_to(TOP).parent.parts
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            yield from (".".join([*base, *filter(None, [node.module]), alias.name]) for alias in node.names)


def modules_imported(path: Path) -> set[str]:
    """Return the modules of rmqd that a file imports."""
    return {name if name in BY_NAME else name.rpartition(".")[0] for name in imports(path)} & BY_NAME.keys()


def complain(problems: Iterable[str]) -> None:
    """Fail with every problem, one a line."""
    found = [*problems]
    assert not found, "\n".join(["", *found])


def test_imports_point_down() -> None:
    """A room imports only rooms above it in ROOMS and its own third-party packages, and only some rooms do I/O."""
    complain(f"{path.relative_to(ROOT)} {problem}" for path in MODULES for problem in _import_problems(path))


def _import_problems(path: Path) -> Iterator[str]:
    room = path.relative_to(ROOT).parts[0].removesuffix(".py")
    above = [*ROOMS][: [*ROOMS].index(room) + 1]
    for name in imports(path):
        top, _, rest = name.partition(".")
        if top == "rmqd":
            other = rest.partition(".")[0]
            if other not in above or (other != room and room not in LEAVES.get(other, room).split()):
                yield f"may not import {name}"
        elif top in sys.stdlib_module_names:
            if room in PURE and top in IO and name != "threading.RLock":
                yield f"does no I/O and reads no clock, yet imports {name}"
        elif top not in ROOMS[room].split():
            yield f"may not import {top}"


def test_handlers_use_public_names_only() -> None:
    """Our handlers use only rmqd's public names, and so prove that other people's handlers can do the same."""

    def is_public(name: str, path: Path) -> bool:
        module, _, rest = name.rpartition(".")
        is_test = path.name.startswith("test_")
        return (
            (module == "rmqd" and rest in PUBLIC)
            or module == "rmqd.offset_stores"
            or module.startswith("rmqd.handler_api.destinations.")  # formats that Spark's sinks share
            or (module == "rmqd.testing" and is_test)
        )

    complain(
        f"{path.relative_to(HANDLERS)} imports {name}, which is not public"
        for path in HANDLER_MODULES
        for name in imports(path)
        if name.partition(".")[0] == "rmqd" and not is_public(name, path)
    )


def test_daily_tests_do_not_need_the_nightly_ones() -> None:
    """`tests/nightly` builds on `tests`, never the other way round, so that each daily test runs without it."""
    complain(
        f"{path.relative_to(TOP)} imports {name}"
        for path in DAILY
        for name in imports(path)
        if name.startswith("tests.nightly")
    )


def test_the_daily_tests_are_short() -> None:
    """All of them run for every change. A test that does not prevent a likely regression belongs into tests/nightly."""
    assert sum(path.read_bytes().count(b"\n") for path in DAILY) <= MAX_DAILY_LINES


def test_modules_are_few_and_short() -> None:
    """A module holds one thought: about 150 to 350 lines. A reader finds a module in a folder of at most 20."""
    modules = [path for path in MODULES + HANDLER_MODULES if path.name != "__init__.py"]
    lengths = {path: path.read_text().count("\n") for path in modules}
    complain(f"{path.relative_to(TOP)} has {lines} lines" for path, lines in lengths.items() if lines > MAX_LINES)
    folders = Counter(path.parent for path in modules)
    complain(
        f"{path.relative_to(TOP)} has {count} modules" for path, count in folders.items() if count > MAX_IN_A_FOLDER
    )
    assert len(modules) <= MAX_MODULES


def test_small_modules_have_several_users() -> None:
    """A module of less than 40 lines that one module imports belongs into that module."""
    users = Counter(name for path in MODULES for name in modules_imported(path))
    complain(
        f"{name} has one user"
        for name, path in BY_NAME.items()
        if users[name] == 1 and path.read_text().count("\n") < 40 and path.name != "__init__.py"
    )


def test_names_are_unique() -> None:
    """A class or module has one name in the whole product. Handlers may repeat a module's name among themselves."""
    places = defaultdict[str, set[str]](set)
    for path in MODULES + HANDLER_MODULES:
        is_example = "examples" in path.parts
        if path.name != "__init__.py" and not is_example:
            places[path.stem].add("handlers" if HANDLERS in path.parents else str(path))
        for node in [] if is_example else parsed(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].add(str(path))
    complain(f"{name} is defined in {', '.join(sorted(paths))}" for name, paths in places.items() if len(paths) > 1)


def test_no_modules_import_each_other() -> None:
    """No circle of imports, including lazy imports and imports for types."""
    graph = {name: modules_imported(path) - {name} for name, path in BY_NAME.items()}
    while ends := [
        one for one in graph if not graph[one] & graph.keys() or not any(one in graph[other] for other in graph)
    ]:
        for name in ends:
            del graph[name]
    assert not graph, f"these modules are part of, or between, import circles: {', '.join(sorted(graph))}"


TURNED = {"client", "consumer"}  # rooms that use an injected clock for the time and for waits
ASYNCIO_WAITS = set("timeout timeout_at wait_for".split())
LOOP_TIMES = set("time call_later call_at".split())
NAMES_ONLY = "time_ns"  # digits of a client id, which are not compared with a time


def times_of_their_own(path: Path) -> Iterator[str]:
    """Yield the places where a module reads the time, or waits, without its injected clock."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Attribute):
            whose = ast.unparse(node.value)
            is_wait = whose == "asyncio" and node.attr in ASYNCIO_WAITS
            is_time = whose == "time" and node.attr != NAMES_ONLY
            if is_wait or is_time or ("loop" in whose and node.attr in LOOP_TIMES):
                yield f"line {node.lineno}: {whose}.{node.attr}"
        elif isinstance(node, ast.Call):
            call = ast.unparse(node)
            is_timed_wait = call.startswith("asyncio.wait(") and any(word.arg == "timeout" for word in node.keywords)
            is_sleep = call.startswith("asyncio.sleep(") and call != "asyncio.sleep(0)"  # 0 only lets other tasks run
            if is_timed_wait or is_sleep:
                yield f"line {node.lineno}: {call}"


def test_client_and_consumer_use_the_given_clock() -> None:
    """Tests advance that clock, and simulations depend on it."""
    complain(
        f"{path.relative_to(ROOT)} {place}"
        for path in MODULES
        if path.relative_to(ROOT).parts[0] in TURNED
        for place in times_of_their_own(path)
    )
