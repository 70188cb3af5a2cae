"""Handler plugins: how they are found, checked and created with their options. Errors have their position."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from rmqd.config.model.group_model import GroupConfig
from rmqd.errors import ConfigError
from rmqd.handler_api.batch import LoadedHandler
from rmqd.plugins.handler_catalogue import load_canary, load_handler
from rmqd.plugins.model_options import load_runnable
from tests.config.configuration import problems

CODE = """
import dataclasses
import functools
import pydantic
import rmqd

class Server(pydantic.BaseModel):
    host: str = "localhost"
    port_number: int = pydantic.Field(25, validation_alias=pydantic.AliasChoices("port", "tcp_port"))

class Usual(pydantic.BaseModel):
    sender: str = "x"
    dry_run: bool = False
    server: Server = Server()
    others: list[Server] = []

class Open(pydantic.BaseModel, extra="allow"):
    sender: str = "x"

class Careless(pydantic.BaseModel, extra="ignore"):
    sender: str = "x"

class Model(pydantic.BaseModel, extra="forbid"):
    sender: str = pydantic.Field(description="address of the sender")
    size: int = pydantic.Field(3, ge=1)
    nested: dict[str, int] = {}

def one(batch): return ("one", batch)
def two(batch, options): return ("two", batch, options)
def modelled(batch, options: Model): return ("modelled", batch, options)
def usual(batch, options: Usual): return ("usual", batch, options)
def open_one(batch, options: Open): return ("open", batch, options)
def careless(batch, options: Careless): return ("careless", batch, options)
def defaulted(batch, options=None): return ("defaulted", batch, options)
def with_timeout(batch, timeout=5): return ("timeout", batch, timeout)
def by_name(batch, timeout=5, *, options): return ("by name", batch, timeout, options)
async def async_one(batch): return ("async", batch)
async def async_two(batch, options): return ("async", batch, options)
def three(batch, options, more): ...
def none(): ...
def named(batch, *, key): ...
def generator(batch): yield
async def async_generator(batch): yield
def any_number(*args): return args
partial = functools.partial(two, options={"fixed": 1})
number = 7

class Callable:
    async def __call__(self, batch): return ("called", batch)
called = Callable()

class Wrapped:
    async def handle(self, *args): return ("wrapped", *args)

class Mailer:
    Options = Model
    def __init__(self, options): self.options = options
    async def start(self): ...
    async def handle(self, batch): return ("mailer", batch, self.options)
    def stop(self): ...

class Plain:
    def __init__(self, options): self.options = options
    def handle(self, batch): return ("plain", batch, self.options)

class Bare:
    def handle(self, batch): return ("bare", batch)

class Limited:
    def __init__(self, limit=5): self.limit = limit
    def handle(self, batch): return ("limited", batch, self.limit)

@dataclasses.dataclass
class Sized:
    limit: int = 5
    options: dict = None
    def handle(self, batch): return ("sized", batch, self.limit, self.options)

class MethodWithOptions:
    def handle(self, batch, options=None): ...
    @staticmethod
    def static(batch): return ("static", batch)

class Inheriting(Bare): ...

class TypedMethod:
    @rmqd.handler(json=dict)
    def handle(self, payload): ...

bare_method = Bare.handle
bare_partial = functools.partial(Bare.handle)

def connected(function):
    @functools.wraps(function)
    def around(batch): return function(batch, "connection")
    return around

@connected
def with_connection(batch, connection): return ("connected", batch, connection)

class Gathering:
    def handle(self, batch): ...
    def end_calls(self): return self

class TypedGathering(Gathering):
    @rmqd.handler(json=Server)
    async def handle(self, server): ...

class NoHandle:
    pass

class TwoArguments:
    def handle(self, batch, options): ...

class Generator:
    def handle(self, batch): yield

class StartsWithMore:
    def start(self, loop): ...
    def handle(self, batch): ...

class WrongOptions:
    class Options: ...
    def __init__(self, options): ...
    def handle(self, batch): ...

class ForgottenOptions:
    Options = Model
    def handle(self, batch): ...

class NeedsMore:
    def __init__(self, options, database): ...
    def handle(self, batch): ...

class Refuses:
    def __init__(self, options):
        raise RuntimeError("no such server")
    def handle(self, batch): ...
"""


@pytest.fixture(autouse=True)
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with a module `shop` of handlers. The import is undone after the test."""
    monkeypatch.chdir(tmp_path)
    path, modules = list(sys.path), set(sys.modules)
    (tmp_path / "shop.py").write_text(CODE)
    yield tmp_path
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if name.split(".")[0] in ("shop", "broken", "quits", "typo", "lonely", "needs_absent"):
            del sys.modules[name]


def text(plugin: str, options: str = "") -> str:
    rest = f"      options: {options}\n" if options else ""
    return (
        "nameserver: a:1\ngroups:\n  mailer:\n    subscriptions: {orders: '*'}\n    handler:\n"
        f"      plugin: {plugin}\n{rest}"
    )


def group(plugin: str, options: str = "") -> GroupConfig:
    Path("test.yaml").write_text(text(plugin, options))
    return load_runnable(Path("test.yaml")).groups["mailer"]


def handler(plugin: str, options: str = "") -> LoadedHandler:
    return load_handler("mailer", group(plugin, options))


BATCH: Any = object()


@pytest.mark.parametrize(
    ("plugin", "options", "expected"),
    [
        ("shop:one", "", ("one", BATCH)),
        ("shop:two", "{a: 1}", ("two", BATCH, {"a": 1})),
        ("shop:two", "", ("two", BATCH, {})),
        ("shop:defaulted", "{a: 1}", ("defaulted", BATCH, {"a": 1})),
        ("shop:with_timeout", "", ("timeout", BATCH, 5)),
        ("shop:by_name", "{a: 1}", ("by name", BATCH, 5, {"a": 1})),
        ("shop:Limited", "", ("limited", BATCH, 5)),
        ("shop:Sized", "{a: 1}", ("sized", BATCH, 5, {"a": 1})),
        ("shop:MethodWithOptions.static", "", ("static", BATCH)),
        ("shop:any_number", "", (BATCH,)),
        ("shop:with_connection", "", ("connected", BATCH, "connection")),
        ("shop:Plain", "{a: [1, {b: c}]}", ("plain", BATCH, {"a": [1, {"b": "c"}]})),
        ("shop:Plain", "", ("plain", BATCH, {})),
        ("shop:Bare", "", ("bare", BATCH)),
    ],
)
def test_a_handler_is_called_with_the_batch_and_its_options(plugin: str, options: str, expected: object) -> None:
    loaded = handler(plugin, options)
    assert loaded.name == plugin
    assert not loaded.is_async
    assert loaded.handle(BATCH) == expected


@pytest.mark.parametrize("plugin", ["shop:modelled", "shop:Mailer"])
async def test_options_are_validated_by_the_handlers_own_model(plugin: str) -> None:
    loaded = handler(plugin, "{sender: a@b}")
    result = loaded.handle(BATCH)
    options = (await result if loaded.is_async else result)[2]
    assert type(options).__name__ == "Model"
    assert (options.sender, options.size) == ("a@b", 3)


def test_start_and_stop_are_used_if_a_class_has_them() -> None:
    mailer, bare = handler("shop:Mailer", "{sender: a}"), handler("shop:Bare")
    assert mailer.start is not None
    assert mailer.stop is not None
    assert (bare.start, bare.stop) == (None, None)


async def test_a_method_may_take_any_number_of_arguments() -> None:
    assert await handler("shop:Wrapped").handle(BATCH) == ("wrapped", BATCH)


def test_each_load_creates_a_new_handler() -> None:
    settings = group("shop:Plain", "{a: 1}")
    first, second = load_handler("mailer", settings), load_handler("mailer", settings)
    assert first.handle(BATCH)[2] is not second.handle(BATCH)[2]


def test_loading_a_configuration_does_not_create_the_handler() -> None:
    settings = group("shop:Refuses")
    with pytest.raises(ConfigError) as caught:
        load_handler("mailer", settings)
    (problem,) = caught.value.problems
    line = CODE[: CODE.index("raise RuntimeError")].count("\n") + 1
    assert str(problem) == (
        "test.yaml:5:5: groups.mailer.handler.options: the handler's constructor failed: "
        f"RuntimeError: no such server ({Path('shop.py').absolute()}:{line})"
    )


FORMS = "expected a function of (batch) or (batch, options), or a class with handle(self, batch)"
PLUGINS = {
    "shop:number": f"the plugin is an int, not a handler; {FORMS}",
    "shop:three": f"the plugin takes 3 arguments; {FORMS}",
    "shop:none": f"the plugin takes no arguments; {FORMS}",
    "shop:named": f"the plugin needs keyword arguments that rmqd does not pass: key; {FORMS}",
    "shop:generator": f"the plugin is a handler with yield, which would never run; {FORMS}",
    "shop:async_generator": f"the plugin is a handler with yield, which would never run; {FORMS}",
    "shop:NoHandle": f"the plugin is the class NoHandle without a method handle; {FORMS}",
    "shop:TwoArguments": f"the plugin has a method handle that cannot be called as handle(self, batch); {FORMS}",
    "shop:Generator": f"the plugin is a handle with yield, which would never run; {FORMS}",
    "shop:StartsWithMore": f"the plugin has a method start that cannot be called as start(self); {FORMS}",
    "shop:WrongOptions": f"the plugin has Options that are not a pydantic.BaseModel but a type; {FORMS}",
    "shop:ForgottenOptions": f"the plugin has Options, but its constructor does not take them; {FORMS}",
    "shop:NeedsMore": f"the plugin has a constructor that needs 2 arguments, but rmqd passes only the options; {FORMS}",
    "shop:MethodWithOptions": f"the plugin has a method handle with options; take them in the constructor; {FORMS}",
    "shop:Bare.handle": "shop:Bare.handle is a method; name the class: shop:Bare",
    "shop:Inheriting.handle": "shop:Inheriting.handle is a method; name the class: shop:Inheriting",
    "shop:TypedMethod.handle": "shop:TypedMethod.handle is a method; name the class: shop:TypedMethod",
    "shop:bare_method": "shop:bare_method is a method; name the class: shop:Bare",
    "shop:bare_partial": "shop:bare_partial is a method; name the class: shop:Bare",
    "shop:Mialer": "the module shop has no Mialer: unknown name; did you mean Mailer?",
    "absent.mail:handle": (
        "the module absent.mail cannot be imported: ModuleNotFoundError: No module named 'absent'; "
        "expected a module that is installed, in PYTHONPATH, or in {here}"
    ),
    "shop.py:Mailer": (
        "the module shop.py cannot be imported: ModuleNotFoundError: No module named 'shop.py'; 'shop' is not a "
        "package; did you mean shop:Mailer?"
    ),
    "shop.Mailer": (
        "no handler 'shop.Mailer' is installed; did you mean shop:Mailer?; expected {known}, or module:attribute"
    ),
    "./shop.py:Mailer()": (
        "'./shop.py:Mailer()' is not valid; did you mean shop:Mailer?; expected the name of an installed handler, or "
        "module:attribute"
    ),
    "../shop.py:Mailer": (
        "'../shop.py:Mailer' is not valid; expected the name of an installed handler, or module:attribute"
    ),
    "mail/shop.py": "no handler 'mail/shop.py' is installed; expected {known}, or module:attribute",
    "'a b:c'": "'a b:c' is not valid; expected the name of an installed handler, or module:attribute",
    "jsnol": "no handler 'jsnol' is installed; did you mean jsonl?; expected {known}, or module:attribute",
    "cdc": "cdc is a pipeline, not a handler; expected engine: spark, pipeline: {plugin: cdc} instead of handler, and "
    "a sink; see docs/pipelines.md",
    "smtp": "no handler 'smtp' is installed; expected {known}, or module:attribute",
}


def test_a_plugin_that_is_not_a_handler_is_refused_with_its_position() -> None:
    known = ", ".join(sorted(entry_points(group="rmqd.handlers").names))
    expected = {
        plugin: [
            "test.yaml:6:15: groups.mailer.handler.plugin: "
            + said.replace("{known}", known).replace("{here}", str(Path.cwd()))
        ]
        for plugin, said in PLUGINS.items()
    }

    assert {plugin: problems(text(plugin), to_run=True) for plugin in PLUGINS} == expected


IMPORTS = {
    "broken": ("1 / 0\n", "ZeroDivisionError: division by zero ({folder}/broken.py:1)"),
    "quits": ("raise SystemExit(3)\n", "SystemExit: 3 ({folder}/quits.py:1)"),
    "typo": ("def (:\n", "SyntaxError: invalid syntax ({folder}/typo.py:1)"),
    "needs_variable": (
        "import os\n\nos.environ['ABSENT_DB']\n",
        "KeyError: 'ABSENT_DB' ({folder}/needs_variable.py:3)",
    ),
    "needs_absent": ("\nimport absent\n", "ModuleNotFoundError: No module named 'absent' ({folder}/needs_absent.py:2)"),
}


@pytest.mark.parametrize(("module", "code", "expected"), [(name, *rest) for name, rest in IMPORTS.items()], ids=IMPORTS)
def test_a_module_that_cannot_be_imported_is_reported_with_the_failing_line(
    shop: Path, module: str, code: str, expected: str
) -> None:
    (shop / f"{module}.py").write_text(code)
    assert problems(text(f"{module}:handle"), to_run=True) == [
        f"test.yaml:6:15: groups.mailer.handler.plugin: the module {module} cannot be imported: "
        f"{expected.format(folder=shop)}; expected a module that can be imported"
    ]


def test_a_module_that_another_one_hides_is_named(shop: Path) -> None:
    (shop / "email.py").write_text("def handle(batch): ...\n")
    assert problems(text("email:handle"), to_run=True) == [
        "test.yaml:6:15: groups.mailer.handler.plugin: the module email has no handle: another module of this name "
        f"hides {shop}/email.py; rename this file"
    ]


@pytest.mark.parametrize("parameter", ["message", "msg"])
def test_a_handler_for_one_message_without_annotations_is_refused(shop: Path, parameter: str) -> None:
    module = f"one_{parameter}"
    (shop / f"{module}.py").write_text(f"def handle({parameter}):\n    print({parameter}.keys)\n")
    [problem] = problems(text(f"{module}:handle"), to_run=True)
    assert f"gets a Batch in the parameter {parameter} of its handler; name it batch, and loop over the" in problem


OPTIONS = {
    "missing": ("{}", ["7:7: options.sender: missing; expected address of the sender"]),
    "misspelt": (
        "{sendr: x}",
        [
            "7:7: options.sender: missing; expected address of the sender",
            "7:17: options.sendr: unknown option; did you mean sender?",
        ],
    ),
    "wrong type": (
        "{sender: 7}",
        ["7:25: options.sender: the value should be a valid string"],
    ),
    "out of range": (
        "{sender: x, size: 0}",
        ["7:34: options.size: the value should be greater than or equal to 1"],
    ),
    "wrong inside": (
        "{sender: x, nested: {a: b}}",
        ["7:40: options.nested.a: the value should be a valid integer, unable to parse string as an integer"],
    ),
    "no mapping": ("[a]", ["7:7: options: a list is not a mapping; expected a mapping of names to values"]),
}


def check_options(plugin: str, cases: dict[str, tuple[str, list[str]]]) -> None:
    """Each case has options and their expected problems."""
    expected = {
        name: [f"test.yaml:{line}".replace(" options", " groups.mailer.handler.options") for line in lines]
        for name, (_, lines) in cases.items()
    }
    assert {name: problems(text(plugin, given), to_run=True) for name, (given, _) in cases.items()} == expected


def test_wrong_options_are_reported_with_their_positions() -> None:
    check_options("shop:Mailer", OPTIONS)


TYPOS = {
    "at the top": ("{dry_rn: true}", ["7:17: options.dry_rn: unknown option; did you mean dry_run?"]),
    "beside a wrong value": (
        "{dry_rn: true, others: 7}",
        [
            "7:17: options.dry_rn: unknown option; did you mean dry_run?",
            "7:39: options.others: the value should be a list, such as [7]",
        ],
    ),
    "in a model of its own": (
        "{server: {hots: a, tcp_port: 26}}",
        ["7:26: options.server.hots: unknown option; did you mean host?"],
    ),
    "in a list": ("{others: [{}, {prt: 1}]}", ["7:31: options.others[1].prt: unknown option; did you mean port?"]),
}


def test_an_option_that_does_not_match_its_pattern_is_reported_with_its_description() -> None:
    told = "options.url: the value is not valid; expected the destination: http:// or https://"
    check_options("webhook", {"no scheme": ("{url: localhost}", [f"7:22: {told}"])})


def test_an_option_that_the_model_does_not_have_is_reported() -> None:
    """pydantic would ignore a misspelt `dry_run`, and the run would be a real one."""
    check_options("shop:usual", TYPOS)


@pytest.mark.parametrize("plugin", ["shop:one", "shop:Bare", "shop:partial", "shop:with_timeout", "shop:Limited"])
def test_options_for_a_handler_without_options_are_refused(plugin: str) -> None:
    name = {"shop:with_timeout": "timeout", "shop:Limited": "limit"}.get(plugin)
    hint = f"; to get them, rename its parameter {name} to options" if name else ""
    expected = f"the handler takes no options{hint}; expected no options"
    found = problems(text(plugin, "{a: 1}"), to_run=True)
    assert found == [f"test.yaml:7:7: groups.mailer.handler.options: {expected}"]


def test_only_the_handlers_of_the_groups_to_run_are_loaded(shop: Path) -> None:
    (shop / "lonely.py").write_text("raise RuntimeError('imported')\n")
    Path("test.yaml").write_text(
        text("lonely:handle") + "  other:\n    subscriptions: {a: '*'}\n    handler: {plugin: 'shop:one'}\n"
    )
    assert list(load_runnable(Path("test.yaml"), groups=["other"]).groups) == ["mailer", "other"]
    with pytest.raises(ConfigError, match="imported"):
        load_runnable(Path("test.yaml"), groups=["mailer"])


# --- entry points


def install(folder: Path, distribution: str, version: str, *points: str) -> None:
    """Write the metadata of a distribution with handlers, as pip does."""
    info = folder / f"{distribution}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text("\n".join(["[rmqd.handlers]", *points]) + "\n")


@pytest.fixture
def site(shop: Path) -> Path:
    site = shop / "site"
    sys.path.insert(0, str(shop))
    sys.path.insert(0, str(site))
    return site


def test_a_handler_is_found_by_its_entry_point(site: Path) -> None:
    install(site, "shop", "1.2", "mailer = shop:Mailer", "broken = absent:handle")
    assert handler("mailer", "{sender: a}").name == "mailer"


@pytest.mark.parametrize(
    ("canary", "problem"),
    [
        ("{}", "groups.mailer.handler.canary.plugin: missing"),
        (
            "{plugin: 'shop:one', share: 1}",
            "canary.share: 1 is not a percentage; expected a percentage from 0% to 100%",
        ),
        ("{plugin: 'shop:one', by: user}", "canary.by: 'user' is not valid; expected keys, sharding_key, msg_id, or "),
        ("{plugin: 'shop:nothing'}", "groups.mailer.handler.canary.plugin: the module shop has no nothing"),
        ("{plugin: 'shop:modelled', options: {size: 0}}", "groups.mailer.handler.canary.options.size: "),
        (
            "{plugin: 'shop:async_one'}",
            "canary.plugin: shop:async_one is written with async def, but the handler shop:one",
        ),
        ("{plugin: 'shop:async_one', mode: shadow}", ""),
        ("{plugin: 'shop:two', share: 2.5%, by: 'property:user'}", ""),
    ],
)
def test_a_canary_is_checked_like_a_handler(canary: str, problem: str) -> None:
    """Problems are reported at the canary's own keys. A promoted canary is the group's handler."""
    Path("test.yaml").write_text(f"{text('shop:one')}      canary: {canary}\n")

    def canary_of_group() -> LoadedHandler:
        settings = load_runnable(Path("test.yaml")).groups["mailer"]
        first = load_handler("mailer", settings)
        assert first.name == "shop:one"
        canary = load_canary("mailer", settings, first)
        assert load_handler("mailer", settings.promoted).name == canary.name
        return canary

    if problem:
        with pytest.raises(ConfigError) as caught:
            canary_of_group()
        assert problem in "\n".join(map(str, caught.value.problems))
    else:
        assert canary_of_group().name in canary


def test_a_new_name_in_imported_code_needs_a_restart() -> None:
    """The error lists handlers, not the module's imports, and says why `rmqd check` accepts the name."""
    code = Path("grown.py")
    code.write_text("import os\nfrom rmqd import Batch\ndef mail(batch): ...\n")
    unknown = "test.yaml:6:15: groups.mailer.handler.plugin: the module grown has no ship: unknown name; expected mail"
    assert problems(text("grown:ship"), to_run=True) == [unknown]
    with code.open("a") as file:
        file.write("def ship(batch): ...\n")
    changed = f"; {code.absolute()} has changed since it was imported: restart the process to use new names"
    assert problems(text("grown:ship"), to_run=True) == [unknown + changed]


def test_names_that_cannot_be_read_do_not_hide_a_wrong_name() -> None:
    """A module may import a name when it is read, and fail without an extra."""
    lazy = "def mail(batch): ...\ndef __dir__(): return ['mail', 'heavy']\ndef __getattr__(name):\n"
    Path("lazily_imported.py").write_text(lazy + "    raise ImportError if name == 'heavy' else AttributeError\n")
    found = "the module lazily_imported has no ship: unknown name; expected mail"
    assert found in problems(text("lazily_imported:ship"), to_run=True)[0]
