"""Plugins: how they are found, checked and created, their options, and errors with line and column.

The core of these tests is in tests/plugins/test_handlers.py.
"""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from rmqd.errors import ConfigError
from rmqd.plugins.handler_catalogue import describe_installed, load_handler
from tests.config.configuration import problems
from tests.plugins.test_handlers import BATCH, group, handler, install, shop, site, text

__all__ = ["shop", "site"]


@pytest.mark.parametrize("plugin", ["shop:async_one", "shop:async_two", "shop:called", "shop:Mailer"])
async def test_an_asynchronous_handler_is_recognized_at_load(plugin: str) -> None:
    loaded = handler(plugin, "{sender: a@b}" if plugin == "shop:Mailer" else "")
    assert loaded.is_async
    assert BATCH in await loaded.handle(BATCH)


@pytest.mark.parametrize("name", ["Gathering", "TypedGathering"])
def test_end_calls_is_used_if_a_class_has_it(name: str) -> None:
    """Also for a typed handler."""
    loaded = handler(f"shop:{name}")
    assert loaded.end_calls is not None
    assert type(loaded.end_calls()).__name__ == name
    assert handler("shop:Bare").end_calls is None


@pytest.mark.parametrize("name", ["contextmanager", "asynccontextmanager"])
def test_a_context_manager_is_refused_as_a_handler(shop: Path, name: str) -> None:
    (shop / "late.py").write_text(
        f"import contextlib\n@contextlib.{name}\n"
        f"{'async ' if name.startswith('async') else ''}def handle(batch):\n    yield\n"
    )
    [problem] = problems(text("late:handle"), to_run=True)
    assert "the plugin is a handler with yield, which would never run" in problem


def test_a_generator_that_a_decorator_runs_is_a_handler(shop: Path) -> None:
    (shop / "steps.py").write_text(
        "import contextlib, functools\n"
        "def run(function):\n"
        "    return functools.wraps(function)(lambda batch: [*function(batch)])\n"
        "@contextlib.contextmanager\n"
        "def timed():\n    yield\n"
        "@timed()\n@run\ndef handle(batch):\n    yield batch\n"
    )
    assert handler("steps:handle").handle(BATCH) == [BATCH]


def test_options_from_variables_are_ordinary_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SENDER", "a@b")
    loaded = handler("shop:two", "{sender: '${SENDER}', list: ['${SENDER}']}")
    options = loaded.handle(BATCH)[2]
    assert options == {"sender": "a@b", "list": ["a@b"]}
    assert {type(options["sender"]), type(options["list"][0])} == {str}
    assert handler("shop:modelled", "{sender: x, size: '${SIZE:-5}'}").handle(BATCH)[2].size == 5


def test_a_pickled_configuration_keeps_line_and_column_of_its_keys() -> None:
    settings = pickle.loads(pickle.dumps(group("shop:Refuses")))
    with pytest.raises(ConfigError, match=r"^test\.yaml:5:5: groups\.mailer\.handler\.options: the handler's"):
        load_handler("mailer", settings)


def test_the_error_for_an_unknown_nested_option_names_the_valid_ones() -> None:
    """Also if the nested model, and not rmqd, forbids the option."""
    found = problems(text("webhook", "{url: 'http://localhost', tls: {authority: x, verfy: true}}"), to_run=True)
    assert found == [
        "test.yaml:7:48: groups.mailer.handler.options.tls.authority: unknown option; "
        "expected ca_file, cert_file, key_file, key_password, verify",
        "test.yaml:7:62: groups.mailer.handler.options.tls.verfy: unknown option; did you mean verify?",
    ]


def test_an_error_about_an_option_hides_secrets(shop: Path) -> None:
    (shop / "keyed.py").write_text(
        "import pydantic\n"
        "class Options(pydantic.BaseModel):\n"
        "    api_key: str\n"
        "    @pydantic.field_validator('api_key')\n"
        "    def known(cls, key): raise ValueError(f'{key} is unknown')\n"
        "def handle(batch, options: Options): ...\n"
    )
    [found] = problems(text("keyed:handle", "{api_key: k3y-17-of-shop}"), to_run=True)
    assert found.endswith("options.api_key: (hidden) is unknown")


IN_THE_PLACE_OF_A_LIST = {
    "a word": ("relay.py", "[relay.py]"),
    "several words": ("python3 relay.py --fast", "[a, b]"),
    "a secret": ("'${TOKEN}'", "[a, b]"),
    "a secret among words": ("\"curl -H 'Authorization: Bearer ${TOKEN}' https://api.example/\"", "[a, b]"),
}


def test_an_error_suggests_a_list_with_the_value_only_if_it_is_one_word() -> None:
    """A list with one element of several words would be another command. A substituted value may be a secret."""
    place = "test.yaml:7:26: groups.mailer.handler.options.command"
    expected = {
        name: [f"{place}: the value should be a list, such as {shown}"]
        for name, (_, shown) in IN_THE_PLACE_OF_A_LIST.items()
    }
    found = {
        name: problems(text("exec", f"{{command: {command}}}"), to_run=True, environ={"TOKEN": "hunter2"})
        for name, (command, _) in IN_THE_PLACE_OF_A_LIST.items()
    }
    assert found == expected


@pytest.mark.parametrize("plugin", ["shop:open_one", "shop:careless"])
def test_a_model_may_accept_other_keys(plugin: str) -> None:
    """With `extra` in its configuration."""
    assert handler(plugin, "{sender: y, more: 1}").handle(BATCH)[2].sender == "y"


def test_a_broken_entry_point_names_its_distribution(site: Path) -> None:
    install(site, "shop", "1.2", "broken = absent:handle", "attribute = shop:absent", "whole = shop")
    place = "test.yaml:6:15: groups.mailer.handler.plugin"
    assert problems(text("broken"), to_run=True) == [
        f"{place}: absent:handle of shop cannot be imported: ModuleNotFoundError: No module named 'absent'; "
        "expected a module that can be imported"
    ]
    (found,) = problems(text("attribute"), to_run=True)
    assert found.startswith(f"{place}: shop:absent of shop cannot be imported: AttributeError: ")
    (found,) = problems(text("whole"), to_run=True)
    assert found.startswith(f"{place}: the plugin is a module, not a handler; ")


def test_a_handler_name_of_two_distributions_is_refused(site: Path) -> None:
    install(site, "shop", "1.2", "mailer = shop:Mailer")
    install(site, "store", "3.4", "mailer = store.mail:Mailer")
    assert problems(text("mailer"), to_run=True) == [
        "test.yaml:6:15: groups.mailer.handler.plugin: several distributions have a handler of this name: "
        "shop (shop:Mailer), store (store.mail:Mailer); expected module:attribute"
    ]


def test_a_distribution_that_is_found_twice_counts_once(site: Path) -> None:
    install(site, "shop", "1.2", "mailer = shop:Mailer")
    install(site.parent, "shop", "1.2", "mailer = shop:Mailer")
    assert handler("mailer", "{sender: a}").is_async


def test_the_catalogue_lists_installed_handlers_and_errors_of_broken_ones(site: Path) -> None:
    install(site, "shop", "1.2", "mailer = shop:Mailer", "plain = shop:Plain", "bare = shop:one", "broken = absent:x")
    found = {one.name: one for one in describe_installed()}
    assert {"log", "jsonl", "exec"} <= found.keys()
    mailer = found["mailer"]
    assert (mailer.distribution, mailer.version, mailer.target, mailer.error) == ("shop", "1.2", "shop:Mailer", None)
    assert mailer.options is not None
    assert [(one.name, one.type, one.required, one.default) for one in mailer.options] == [
        ("sender", "string", True, None),
        ("size", "integer", False, 3),
        ("nested", "mapping", False, {}),
    ]
    assert mailer.options[0].description == "address of the sender"
    assert found["plain"].options is None
    assert found["bare"].options == ()
    assert "No module named 'absent'" in (found["broken"].error or "")


METHODS = """
class Mailer:
    def decorate(function):
        def wrapper(*arguments, **named):
            return function(*arguments, **named)
        return wrapper

    @decorate
    def handle(self, batch): ...

    class Inner:
        handle = lambda self, batch: None

    @property
    def chosen(self): ...

def local():
    class Local:
        def handle(this, batch): ...
    return Local
Local = local()
"""


@pytest.mark.parametrize("path", ["Mailer.handle", "Mailer.Inner.handle", "Mailer.chosen", "Local.handle"])
def test_a_method_is_refused_with_any_decorator(shop: Path, path: str) -> None:
    (shop / "methods.py").write_text(METHODS)
    owner = path.rpartition(".")[0]
    [problem] = problems(text(f"methods:{path}"), to_run=True)
    assert f"methods:{path} is a method; name the class: methods:{owner}" in problem


TYPES = """
import dataclasses, functools, typing
import pydantic
import rmqd

class Model(pydantic.BaseModel):
    size: int = 3
class Other(pydantic.BaseModel): ...
class Derived(Model): ...
class Keys(typing.TypedDict): ...
@dataclasses.dataclass
class Plain:
    size: int
    def handle(self, batch): ...

def number(batch, timeout: int): ...
def one_order(order: Model): ...
def options_first(options, batch): ...
undecorating = rmqd.handler(json=dict)
def like_list(batch: list[rmqd.Message], options: Model): return options
def unknown_type(batch: "Missing", options: Model): return options
def either_type(batch: rmqd.Batch | None, options: Model): return options
def any_type(batch: typing.Any, options: Model): return options
def one_dict(order: Keys): ...
class OneMessage:
    def handle(self, message: rmqd.Message): ...
class StartYields:
    async def start(self): yield
    def handle(self, batch): ...
class AsyncEnd:
    def handle(self, batch): ...
    async def end_calls(self): ...
def names(batch, names: list[str]): ...
def plain(batch, options: Plain): ...
def keys(batch, options: Keys): return options
def mapping(batch, options: typing.Mapping[str, int]): return options
def anything(batch, options: typing.Any): return options
def maybe(batch, options: Model | None = None): return options
def annotated(batch, options: typing.Annotated[Model, "for mails"]): return options

def timed(function):
    @functools.wraps(function)
    def wrapper(*arguments): return function(*arguments)
    return wrapper
@timed
@rmqd.handler(json=dict)
def timed_typed(order): ...
partial_typed = functools.partial(timed_typed)
class TimedTyped:
    @timed
    @rmqd.handler(json=dict)
    def handle(self, order): ...
def with_default(batch, connected=rmqd.Depends(dict)): ...
class WithDefault:
    def handle(self, batch, connected=rmqd.Depends(dict)): ...

def connect(options: Model): ...
Connected = typing.Annotated[object, rmqd.Depends(connect)]
@rmqd.handler(json=dict)
def typed_plain(order, options: Plain): ...
@rmqd.handler(json=dict)
def typed_other(order, options: Other, connected: Connected): ...
@rmqd.handler(json=dict)
def typed_derived(order, options: Derived, connected: Connected): ...
class Typed:
    @rmqd.handler(json=dict)
    def handle(self, order, connected: Connected): ...
"""


@pytest.fixture
def options_types(shop: Path) -> None:
    (shop / "types_of_options.py").write_text(TYPES)


@pytest.mark.usefixtures("options_types")
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("one_order", "gets a Batch in the parameter order: Model of its handler; loop over the messages of the batch"),
        ("one_dict", "gets a Batch in the parameter order: Keys of its handler; loop over the messages of the batch"),
        ("options_first", "gets a Batch in the parameter options of its handler; loop over the messages of the batch"),
        ("OneMessage", "gets a Batch in the parameter message: Message of its handle; loop over the messages of"),
        ("undecorating", "is the decorator rmqd.handler; name the function that it decorates"),
        ("rmqd.handler", "is the decorator rmqd.handler; name the function that it decorates"),
        ("StartYields", "has a method start with yield or async, which would never run"),
        ("AsyncEnd", "has a method end_calls with yield or async, which would never run"),
        ("number", "gets its options in the parameter timeout, which is annotated as int, not as a pydantic model"),
        ("names", "in the parameter names, which is annotated as list[str], not"),
        ("plain", "in the parameter options, which is annotated as types_of_options.Plain, not"),
        ("Plain", "in the parameter size, which is annotated as int, not"),
        ("typed_plain", "in the parameter options, which is annotated as types_of_options.Plain, not"),
        ("typed_other", "takes its options as Other and as Model; expected one model"),
        ("timed_typed", "is a handler with a decorator or partial around @rmqd.handler, which must be outermost"),
        ("partial_typed", "is a handler with a decorator or partial around @rmqd.handler, which must be outermost"),
        ("TimedTyped", "is a handle with a decorator or partial around @rmqd.handler, which must be outermost"),
        ("with_default", "has Depends in its parameter connected, which only @rmqd.handler supports"),
        ("WithDefault", "has Depends in its parameter connected, which only @rmqd.handler supports"),
        ("Typed", "has a dependency that takes other options than its constructor; use one model for both"),
    ],
)
def test_parameters_that_rmqd_does_not_pass_are_refused(name: str, said: str) -> None:
    [problem] = problems(text(f"types_of_options:{name}"), to_run=True)
    assert said in problem


BATCHES = dict.fromkeys(("like_list", "unknown_type", "either_type", "any_type"), 3)


@pytest.mark.usefixtures("options_types")
@pytest.mark.parametrize("name", ["keys", "mapping", "anything", "maybe", "annotated", "typed_derived", *BATCHES])
def test_supported_types_of_parameters_are_accepted(name: str) -> None:
    options = handler(f"types_of_options:{name}").handle
    assert name == "typed_derived" or getattr(options(BATCH), "size", None) == {
        "maybe": 3,
        "annotated": 3,
        **BATCHES,
    }.get(name)
