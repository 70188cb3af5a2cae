"""Only ProcessQueue itself changes its state."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmqd.consumer.cache.process_queue import ProcessQueue

ROOT = Path(__file__).parents[4] / "rmqd"


OWN = ROOT / "consumer/cache/process_queue.py"


CONSTANT = {"message_queue", "public_queue", "stats"}  # mypy checks these
SET_ELSEWHERE = {"awaits_lock", "is_batching", "is_full", "unavailable"}  # the queue only stores them


CHANGING = set("append appendleft clear extend insert pop popleft remove reverse rotate sort".split())


def changed_in_place(node: ast.AST) -> ast.expr | None:
    """The object that a method call changes, judged by the method's name."""
    is_change = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGING
    return node.func.value if is_change else None  # type: ignore[attr-defined]


def changes(tree: ast.AST) -> Iterator[ast.Attribute]:
    """Attributes that a module assigns, deletes, or changes in place."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
            yield node
        elif isinstance(changed := changed_in_place(node), ast.Attribute):
            yield changed


@pytest.mark.slow
def test_only_its_own_methods_change_a_process_queue() -> None:
    """Other modules of rmqd may change attributes of these names only on `self`."""
    state = set(ProcessQueue.__slots__) - CONSTANT - SET_ELSEWHERE
    for path in ROOT.rglob("*.py"):
        if path != OWN:
            for found in changes(ast.parse(path.read_text())):
                owner = ast.unparse(found.value)
                assert found.attr not in state or owner == "self", f"{path}:{found.lineno}: {owner}.{found.attr}"
