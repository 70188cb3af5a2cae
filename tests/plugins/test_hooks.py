"""Hooks that are found by entry point: each is created once, and a broken hook is a configuration error."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rmqd.daemon.groups.group_engine import LocalEngine
from rmqd.daemon.groups.local_groups import LocalGroups
from rmqd.daemon.groups.supervisor import LoopMonitor
from rmqd.errors import ConfigError
from rmqd.plugins.entry_points import forget_entry_points
from rmqd.plugins.model_options import consumer_options
from rmqd.plugins.strategies import hooks_of, load_hooks
from rmqd.runtime.clock import SystemClock
from tests.config.configs import config
from tests.config.configuration import GROUP, load, problems

CODE = """
made = []

class Tracing:
    def __init__(self): made.append(self)
    def before_batch(self, batch, context): ...
    def after_batch(self, batch, context): ...

class Choosy:
    def wants(self, message, context): return True
chosen = Choosy()

class Nothing: ...
class TakesMore:
    def __init__(self, options): ...
    def wants(self, message, context): ...
class Breaks:
    def __init__(self): raise OSError("no such collector")
    def wants(self, message, context): ...
class Asynchronous:
    async def before_batch(self, batch, context): ...
class Generator:
    def wants(self, message, context): yield True
class NoMethod:
    wants = 7
"""

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Installs a distribution with these hooks: `name=target`."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "shop_hooks.py").write_text(CODE)

    def write(distribution: str = "shop-tools", **found: str) -> None:
        info = tmp_path / f"{distribution}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
        lines = "".join(f"{name} = {target}\n" for name, target in found.items())
        (info / "entry_points.txt").write_text(f"[rmqd.hooks]\n{lines}")
        forget()

    yield write
    sys.modules.pop("shop_hooks", None)
    forget()


def forget() -> None:
    importlib.invalidate_caches()
    forget_entry_points()
    load_hooks.cache_clear()


def test_every_installed_hook_is_created_once(install: Install) -> None:
    """A class is called without arguments. Any other object is used as it is."""
    install(tracing="shop_hooks:Tracing", choosy="shop_hooks:chosen")
    choosy, tracing = load_hooks()
    assert (choosy.name, tracing.name) == ("choosy", "tracing")
    assert choosy.wants is not None
    assert (choosy.before_batch, choosy.after_batch, tracing.wants) == (None, None, None)
    assert load_hooks() is load_hooks()
    assert len(sys.modules["shop_hooks"].made) == 1


@pytest.mark.parametrize(("wanted", "has"), [("all", ["choosy", "tracing"]), ("none", []), ("[tracing]", ["tracing"])])
def test_a_group_has_the_hooks_that_it_names(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: str, has: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    install(tracing="shop_hooks:Tracing", choosy="shop_hooks:chosen")
    loaded = load(f"{GROUP}    hooks: {wanted}\n", to_run=True)
    assert [hook.name for hook in hooks_of(consumer_options(loaded, "mailer"))] == has


def test_an_unknown_hook_is_refused_with_a_list_of_installed_hooks(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    install(tracing="shop_hooks:Tracing", choosy="shop_hooks:chosen")
    assert problems(f"{GROUP}    hooks: [choosy, traicng]\n", to_run=True) == [
        "test.yaml:6:21: groups.mailer.hooks[1]: no hook 'traicng' is installed; did you mean tracing?; "
        "expected choosy, tracing"
    ]
    [said] = problems(f"{GROUP}    hooks: tracing\n")
    assert said.endswith("'tracing' is not a list of hooks; expected all | none | a list such as [tracing]")
    [said] = problems(f"{GROUP}    hooks: []\n")
    assert said.endswith("hooks: the list is empty; expected all | none | a list such as [a, b]")


async def test_a_broken_hook_is_reported_once_for_several_groups(install: Install) -> None:
    install(broken="nowhere:Hook")
    clock = SystemClock()
    with pytest.raises(ConfigError) as refused:
        LocalGroups(config("mailer", "audit"), LocalEngine(clock), clock, LoopMonitor(clock))
    assert len(refused.value.problems) == 1
