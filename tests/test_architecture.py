"""The rooms of the house: which may know which, and how big they may get."""

from __future__ import annotations

import ast
import functools
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

TOP = Path(__file__).parent.parent
ROOT = TOP / "rmqd"
HANDLERS = TOP / "handlers"
TESTS = TOP / "tests"
PLAIN = (
    "access_refusal backoff broker_errors codes decisions errors clock exit_codes histogram own_threads plain_text "
    "version"
)
# room: (rooms of rmqd that it may import, third-party packages that it may import)
BELOW = {
    "__init__": ("handler_api offset_stores polling typed version wire", ""),
    "__main__": ("cli", ""),
    "access_refusal": ("codes", ""),
    "backoff": ("", ""),
    "codes": ("", ""),
    "clock": ("", ""),
    "decisions": ("plain_text wire", ""),
    "exit_codes": ("", ""),
    "version": ("", ""),
    "histogram": ("", ""),
    "own_threads": ("", ""),
    "plain_text": ("", ""),
    "errors": ("", ""),
    "broker_errors": ("access_refusal codes errors", ""),
    "wire": ("codes errors", "lz4 zstandard"),
    "handler_api": ("decisions errors plain_text wire", ""),
    "loaded_handler": ("handler_api", ""),
    "offset_stores": ("errors", ""),
    "typed": ("errors handler_api offset_stores own_threads plain_text wire", "pydantic msgspec fastavro"),
    "once": ("handler_api wire", "psycopg sqlalchemy"),
    "claims": ("errors own_threads", "psycopg psycopg_pool redis"),
    "diagnosis": ("broker_errors errors wire", ""),
    "client": (f"{PLAIN} wire diagnosis", "structlog"),
    "consumer": (f"{PLAIN} wire handler_api loaded_handler offset_stores once claims diagnosis client", "structlog"),
    "config": (f"{PLAIN} wire claims client consumer", "yaml pydantic pydantic_core"),
    "plugins": (
        f"{PLAIN} wire handler_api loaded_handler offset_stores typed client consumer config",
        "structlog pydantic pydantic_core",
    ),
    "process": (f"{PLAIN} wire handler_api consumer config", "structlog uvloop opentelemetry"),
    "handler_processes": (f"{PLAIN} wire handler_api loaded_handler once consumer config plugins process", "structlog"),
    "daemon": (
        f"{PLAIN} wire handler_api loaded_handler diagnosis client consumer config plugins process handler_processes",
        "structlog prometheus_client uvloop pydantic starlette uvicorn h11 jinja2",
    ),
    "broker": (f"{PLAIN} wire", "structlog"),
    "spark": (
        f"{PLAIN} wire handler_api loaded_handler once claims typed diagnosis client consumer config plugins process "
        "daemon",
        "structlog pyspark pyarrow py4j numpy psycopg zlib_ng fastavro google",
    ),
    "testing": (
        f"{PLAIN} wire handler_api loaded_handler offset_stores once client consumer config plugins process daemon "
        "broker",
        "pytest structlog yaml pydantic",
    ),
    "polling": (f"{PLAIN} wire loaded_handler diagnosis client consumer config plugins process", "structlog"),
    "forwarding": (f"{PLAIN} wire handler_api client config", "structlog pydantic"),
    "replaying": (f"{PLAIN} wire handler_api loaded_handler client consumer plugins", "structlog"),
    "trying": (f"{PLAIN} wire handler_api once client consumer config plugins process", ""),
    "demo": (f"{PLAIN} wire handler_api client consumer config plugins process daemon broker", "structlog rich"),
    "cli": (
        f"{PLAIN} wire handler_api diagnosis client consumer config plugins process daemon broker spark testing trying "
        "replaying demo",
        "typer rich",
    ),
}
# The floors of a room, lowest first: a folder or module imports what is on its own floor or below it. What is not named
# stands on a floor of its own at the top.
FLOORS = {
    "wire": "acl binary_header frame java_properties limits loose_json namespace schema_registry topics trace version "
    "| alike_headers command fields message_queue | identity | lite pop recall | bodies "
    "| filter headers topic_kinds | messages",
    "once": "mark | psycopg_connection sqlalchemy_connection | group",
    "claims": "store | postgresql_store redis_store sqlite_store | opening",
    "diagnosis": "causes facts subscriptions | failures finding | cluster daemon members progress | judge",
    "client": "client_id coalesce options | remoting | api membership pushed_resets | routing | heartbeat sending "
    "| instance | group_lag | looks | resets",
    "consumer": "allocate hooks options pauses | circuit stats | cache contract | services | handling | founding "
    "| context | announcing assigned | pull | offsets pop rebalance | group_status health lite "
    "| admin assembly dead_letters live_change | push_consumer",
    "config": "problems | model | reading rules schema shown | load",
    "typed": "annotations callables decorator | dependencies | form | avro | decoders | calls",
    "plugins": "entry_points lifecycle unknown_options | form hooks | typed_handlers "
    "| handler_plugin lookup strategies | middleware "
    "| handlers offset_stores pipelines | consumer_options | catalogue runnable",
    "process": "channel file_watch garbage kept_reload span_export structlog_without_rich | child logs signals "
    "telemetry | loop watched_child",
    "handler_processes": "suspects told_errors | order | handler_main handler_process | pool | calls",
    "daemon": "metrics state_dir systemd | groups | history | http page workers | reloading | daemon",
    "broker": "announced journal locks mq_version reply settings topic_attributes "
    "| priority "
    "| channel groups key_values offsets static_topics store system_topics "
    "| broker_stats filter held_pulls members server timers topics "
    "| housekeeping pop schedule | controller | name_server runtime_info | processors | embedded",
    "polling": "settings | pull_consumer | sync_pull_consumer",
    "forwarding": "copies | handler",
    "replaying": "plan | shadow ways_back | run",
    "trying": "dead_letters places | order | handler_process selection verdicts | calls trial | bisect handler_main",
    "spark": "answers hadoop_folder java option_values patience process_log queue_ends queue_questions spark_output "
    "views worker_garbage "
    "| access prepare values | queue_range | cluster group_order | source | handlers sink | format pipelines "
    "| __init__ | discovery session | engine | driver submit",
}
PURE = set(
    "access_refusal backoff codes decisions errors exit_codes histogram plain_text wire handler_api diagnosis".split()
)
IO = set("asyncio socket ssl selectors threading subprocess logging time".split())
PUBLIC = set("AlreadyHandled Batch Message MessageQueue Retry DeadLetter Suspend handler Depends __version__".split())
MOST_LINES = 400
MOST_DAILY_LINES, MOST_DAILY_CASES = 70_000, 5_500

MODULES = sorted(ROOT.rglob("*.py"))
BY_NAME = {".".join(path.relative_to(TOP).with_suffix("").parts).removesuffix(".__init__"): path for path in MODULES}
FOLDERS = [path for path in MODULES if path.name == "__init__.py" and path.parent != ROOT]
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
    """A room imports only rooms below it and its own third-party packages, and only some rooms do I/O."""
    complain(f"{path.relative_to(ROOT)} {problem}" for path in MODULES for problem in _import_problems(path))


def _import_problems(path: Path) -> Iterator[str]:
    room = path.relative_to(ROOT).parts[0].removesuffix(".py")
    rooms, packages = (set(names.split()) for names in BELOW[room])
    for name in imports(path):
        top, _, rest = name.partition(".")
        if top == "rmqd":
            if rest.split(".")[0] not in rooms | {room, "__version__"}:
                yield f"may not import {name}"
        elif top in sys.stdlib_module_names:
            if room in PURE and top in IO:
                yield f"does no I/O and knows no time, yet imports {name}"
        elif top not in packages:
            yield f"may not import {top}"


def test_handlers_use_public_names_only() -> None:
    """Our handlers use only rmqd's public names, and so prove that other people's handlers can do the same."""

    def is_public(name: str, path: Path) -> bool:
        module, _, rest = name.rpartition(".")
        is_test = path.name.startswith("test_")
        return (
            (module == "rmqd" and rest in PUBLIC)
            or module == "rmqd.offset_stores"
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


def test_the_daily_tests_are_few(request: pytest.FixtureRequest) -> None:
    """All of them run for every change. What does not guard against a likely regression belongs into tests/nightly."""
    lines = sum(path.read_bytes().count(b"\n") for path in DAILY)
    cases = sum(NIGHTLY not in item.path.parents for item in request.session.items)  # all of them in a run of all
    assert lines <= MOST_DAILY_LINES
    assert cases <= MOST_DAILY_CASES


def test_modules_are_short() -> None:
    """Aim at 300 lines; a module of more than 400 holds two thoughts."""
    lengths = {path: path.read_text().count("\n") for path in MODULES + HANDLER_MODULES}
    complain(f"{path.relative_to(TOP)} has {lines} lines" for path, lines in lengths.items() if lines > MOST_LINES)


def test_a_folder_has_a_map_of_its_modules() -> None:
    """The docstring of a folder names each module and folder in it: `    name, other name  the contents`."""
    for path in FOLDERS:
        named = re.findall(r"^    (\w+(?:, \w+)*)  +\S", ast.get_docstring(parsed(path)) or "", re.MULTILINE)
        inside = {one.stem for one in path.parent.iterdir() if one.suffix == ".py" or any(one.glob("*.py"))}
        assert {name for names in named for name in names.split(", ")} == inside - {"__init__"}, path.parent


def place(name: str) -> tuple[str, str]:
    """A module's room, and the part of it that the module is, or is in."""
    _, room, part, *_ = [*name.split("."), "__init__", "__init__"]
    return room, part


def test_rooms_have_floors() -> None:
    """An import inside a room goes down or stays on its floor. Imports for types count too."""
    complain(problem for room in FLOORS for problem in _floor_problems(room))


def _floor_problems(room: str) -> Iterator[str]:
    floor = {part: number for number, parts in enumerate(FLOORS[room].split("|")) for part in parts.split()}
    floor.setdefault("__init__", 0)
    own = {name: place(name)[1] for name in BY_NAME if place(name)[0] == room}
    yield from (f"{room}: {part} needs one floor" for part in set(own.values()) ^ floor.keys())
    for name, part in own.items():
        for other in modules_imported(BY_NAME[name]) & own.keys():
            if floor.get(own[other], 0) > floor.get(part, 0):
                yield f"{name} may not import {other}, which is on a floor above it"


def test_no_modules_import_each_other() -> None:
    """No circle of imports, lazy ones and those for types included."""
    graph = {name: modules_imported(path) - {name} for name, path in BY_NAME.items()}
    while ends := [
        one for one in graph if not graph[one] & graph.keys() or not any(one in graph[other] for other in graph)
    ]:
        for name in ends:
            del graph[name]
    assert not graph, f"these import each other, or stand between such: {', '.join(sorted(graph))}"


TURNED = {"client", "consumer"}  # rooms that read the time, and whose waits end, by the clock that they are given
ASYNCIO_WAITS = set("timeout timeout_at wait_for".split())
LOOP_TIMES = set("time call_later call_at".split())
NAMES_ONLY = "time_ns"  # digits of a client id, which nobody compares with a time


def times_of_their_own(path: Path) -> Iterator[str]:
    """Where a module reads the time or waits by another clock than the one that it was given."""
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
            is_sleep = call.startswith("asyncio.sleep(") and call != "asyncio.sleep(0)"  # 0 only gives others a turn
            if is_timed_wait or is_sleep:
                yield f"line {node.lineno}: {call}"


def test_client_and_consumer_use_the_given_clock() -> None:
    """Tests advance that clock, and a simulation lives by it."""
    complain(
        f"{path.relative_to(ROOT)} {place}"
        for path in MODULES
        if path.relative_to(ROOT).parts[0] in TURNED
        for place in times_of_their_own(path)
    )
