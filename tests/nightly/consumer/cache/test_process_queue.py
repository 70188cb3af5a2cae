"""The cache of one queue: what it hands out, and the offset that may be committed."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmqd.consumer.cache.process_queue import ProcessQueue

ROOT = Path(__file__).parents[4] / "rmqd"


OWN = ROOT / "consumer/cache/process_queue.py"


CONSTANT = {"message_queue", "public_queue", "stats"}  # mypy sees to these
SET_ELSEWHERE = {"awaits_lock", "is_batching", "is_full", "unavailable"}  # the queue only remembers them


CHANGING = set("append appendleft clear extend insert pop popleft remove reverse rotate sort".split())


def changed_in_place(node: ast.AST) -> ast.expr | None:
    """What a method call changes, as far as the method's name tells."""
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
def test_a_process_queue_changes_through_its_methods_alone() -> None:
    """Elsewhere in rmqd nothing that has a name of its attributes is changed, but by the object that has it."""
    state = set(ProcessQueue.__slots__) - CONSTANT - SET_ELSEWHERE
    for path in ROOT.rglob("*.py"):
        if path != OWN:
            for found in changes(ast.parse(path.read_text())):
                owner = ast.unparse(found.value)
                assert found.attr not in state or owner == "self", f"{path}:{found.lineno}: {owner}.{found.attr}"
