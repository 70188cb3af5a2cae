"""Allocate strategies: built-in ones with their settings, installed ones by entry point, and wrong ones."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmqd.consumer.allocate import (
    ALLOCATE_STRATEGIES,
    STRATEGY_NAMES,
    AllocateByConfig,
    AllocateByMachineRoom,
    AllocateStrategy,
)
from rmqd.plugins.model_options import load_runnable
from rmqd.plugins.strategies import load_strategy
from rmqd.wire.message_queue import MessageQueue
from tests.config.configuration import problems

CODE = """
def first(group, client_id, queues, client_ids): return queues[:1]
class Weighted:
    def __call__(self, group, client_id, queues, client_ids): return list(queues)
weighted = Weighted()
def two(group, client_id): return []
async def later(group, client_id, queues, client_ids): return []
number = 7
"""
ENTRY_POINTS = {
    "first": "fleet:first",
    "weighted": "fleet:weighted",
    "cls": "fleet:Weighted",
    "two": "fleet:two",
    "later": "fleet:later",
    "number": "fleet:number",
    "gone": "fleet:gone",
    "averagely": "fleet:first",
}
TEXT = "nameserver: a:1\ngroups:\n  mailer:\n    subscriptions: {orders: '*'}\n    handler: {plugin: log}\n"
FORM = "expected a function of (group, client_id, queues, client_ids) that returns the member's queues, or an instance"


@pytest.fixture(autouse=True)
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A distribution `fleet` with strategies. Its import is undone after the test."""
    monkeypatch.chdir(tmp_path)
    site = tmp_path / "site"
    metadata = site / "fleet-1.0.dist-info"
    metadata.mkdir(parents=True)
    (site / "fleet.py").write_text(CODE)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: fleet\nVersion: 1.0\n")
    lines = "".join(f"{name} = {value}\n" for name, value in ENTRY_POINTS.items())
    (metadata / "entry_points.txt").write_text(f"[rmqd.allocate_strategies]\n{lines}")
    monkeypatch.syspath_prepend(site)
    yield
    sys.modules.pop("fleet", None)


def text(strategy: str, *rest: str) -> str:
    return TEXT + "".join(f"    {line}\n" for line in (f"allocate_strategy: {strategy}", *rest))


def strategy(name: str, *rest: str) -> AllocateStrategy:
    Path("test.yaml").write_text(text(name, *rest))
    config = load_runnable(Path("test.yaml"), ["client.instance_name=east@1"])
    return load_strategy("mailer", config.groups["mailer"])


@pytest.mark.parametrize("name", sorted(ALLOCATE_STRATEGIES))
def test_a_built_in_strategy_takes_precedence(name: str) -> None:
    """Also over an installed strategy with the same name."""
    assert strategy(name) == AllocateStrategy(name, ALLOCATE_STRATEGIES[name])


def test_settings_are_passed_to_their_strategy() -> None:
    queue = "allocate_queues: [{topic: orders, broker_name: b, queue_id: 3}]"
    assert strategy("by_config", queue).function == AllocateByConfig((MessageQueue("orders", "b", 3),))
    assert strategy("by_machine_room", "machine_rooms: [a, b]").function == AllocateByMachineRoom(frozenset("ab"))


@pytest.mark.parametrize("name", ["first", "weighted"])
def test_an_installed_strategy_is_called_as_it_is(name: str) -> None:
    found = strategy(name)
    queue = MessageQueue("orders", "b", 0)
    assert found.name == name
    assert found.share("g", "c", [queue], ["c"]) == {queue}


def test_a_group_on_spark_uses_no_strategy() -> None:
    """It may inherit one that is not installed on its driver."""
    pytest.importorskip("pyspark")
    Path("test.yaml").write_text(f"defaults: {{allocate_strategy: frist}}\n{TEXT}    engine: spark\n")
    config = load_runnable(Path("test.yaml"))
    assert load_strategy("mailer", config.groups["mailer"]).name == "averagely"


WRONG = {
    "frist": (
        f"no allocate strategy 'frist' is installed; did you mean first?; expected {', '.join(STRATEGY_NAMES)}, "
        "cls, first, gone, later, number, two, weighted"
    ),
    "cls": f"fleet:Weighted is a class; {FORM} that is called that way",
    "number": f"fleet:number cannot be called; {FORM} that is called that way",
    "two": f"fleet:two cannot be called with (group, client_id, queues, client_ids); {FORM} that is called that way",
    "later": f"fleet:later is asynchronous, but a strategy only computes; {FORM} that is called that way",
    "gone": (
        "fleet:gone of fleet cannot be imported: AttributeError: module 'fleet' has no attribute 'gone'; "
        "expected a module that can be imported"
    ),
}


def test_a_wrong_strategy_is_reported_with_its_position() -> None:
    place = "test.yaml:6:24: groups.mailer.allocate_strategy"
    expected = {name: [f"{place}: {said}"] for name, said in WRONG.items()}
    assert {name: problems(text(name), to_run=True) for name in WRONG} == expected
