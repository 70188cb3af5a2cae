"""State that rmqd stores outside RocketMQ: its keys are made from an Identity, which has every dimension.

A new store fails here until it is listed with the module that makes its keys, and that module uses an identity.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

import pytest

from rmqd.testing import make_message
from rmqd.wire.message_queue import Identity, MessageQueue

TOP = Path(__file__).parent.parent
DEDUPLICATION, ONCE = "rmqd/consumer/handling/deduplication.py", "rmqd/handler_api/once/once_mark.py"
KEYS_OF_STORES = {
    "rmqd/handler_api/leases/postgresql_store.py": DEDUPLICATION,
    "rmqd/handler_api/leases/redis_store.py": DEDUPLICATION,
    "rmqd/handler_api/leases/sqlite_store.py": DEDUPLICATION,
    "rmqd/handler_api/once/psycopg_connection.py": ONCE,
    "rmqd/handler_api/once/sqlalchemy_connection.py": ONCE,
    "rmqd/cli/offset_changes.py": "rmqd/cli/offset_changes.py",
    "rmqd/operate/dead_letters/dead_letter.py": "rmqd/operate/dead_letters/dead_letter.py",
    "rmqd/consumer/offsets/local_file_store.py": "rmqd/consumer/assembly.py",
    "rmqd/operate/replay/replay_plan.py": "rmqd/operate/replay/replay_plan.py",
    "handlers/rmqd_handlers/parquet/stored_files.py": "handlers/rmqd_handlers/parquet/handler.py",
    "handlers/rmqd_handlers/postgresql/offset_store.py": "rmqd/consumer/offsets/own_store.py",
    "handlers/rmqd_handlers/redis.py": "handlers/rmqd_handlers/redis.py",
}
"""The modules that write, with those that make the keys."""
OTHERS = set(
    # the ids of clusters themselves, locks, requested output files, and rows of the user's own tables
    "rmqd/client/routing/cluster_id.py rmqd/runtime/files.py rmqd/cli/handler_commands.py "
    "rmqd/demo/demo_play.py rmqd/demo/demo_run.py handlers/rmqd_handlers/postgresql/handler.py "
    "handlers/rmqd_handlers/sql/target.py".split()
)
WRITING_CALLS = {"replace_file", "write_text", "write_bytes", "put_kv", "insert"}
WRITING_TEXT = re.compile(r"\b(INSERT (OR \w+ )?INTO|CREATE TABLE)\b|redis\.call\('SET'")
WRITING_MODE = re.compile(r"[wax]b?\+?")


def is_writing(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        modes = [one.value for one in node.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
        is_list = name == "insert" and isinstance(node.func, ast.Attribute)
        return (name in WRITING_CALLS and not is_list) or (name == "open" and any(map(WRITING_MODE.fullmatch, modes)))
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and bool(WRITING_TEXT.search(node.value))


def writers() -> Iterator[str]:
    """Yield the modules that write, except the embedded broker and Spark, whose state is named by its checkpoints."""
    for path in (*(TOP / "rmqd").rglob("*.py"), *(TOP / "handlers" / "rmqd_handlers").rglob("*.py")):
        name = str(path.relative_to(TOP))
        if not name.startswith(("rmqd/broker/", "rmqd/spark/")) and any(map(is_writing, nodes(name))):
            yield name


def nodes(module: str) -> Iterator[ast.AST]:
    return ast.walk(ast.parse((TOP / module).read_text()))


def test_each_store_has_keys_by_identity() -> None:
    assert {*writers()} == KEYS_OF_STORES.keys() | OTHERS
    for store, keys in KEYS_OF_STORES.items():
        names = {node.attr for node in nodes(keys) if isinstance(node, ast.Attribute)} | {
            node.id for node in nodes(keys) if isinstance(node, ast.Name)
        }
        assert names & {"identity", "cluster_id"}, f"{keys} makes the keys of {store} without an identity"


WHOLE = Identity("c", "n", "g", "t", "l", "b", "0", "r")


@pytest.mark.parametrize("name", [one.name for one in fields(Identity)])
def test_each_dimension_counts(name: str) -> None:
    """Also if the value is empty, contains a separator, or makes the text too long."""
    values = ["", "x/y", "x", "~", "@", "%2F", "x" * 300, "x" * 301]
    texts = {str(replace(WHOLE, **{name: value})) for value in values}
    assert len(texts | {str(WHOLE)}) == len(values) + 1
    assert max(map(len, texts)) <= 200 or name == "cluster"


def test_a_queue_is_named_in_full() -> None:
    group = Identity("c1", "", "mailer")
    named = group.of_topic("orders", "eu").of_queue(MessageQueue("orders", "broker-a", 0))
    assert (str(group), str(named)) == ("c1/~/mailer", "c1/~/mailer/orders/eu/broker-a/0")


def test_a_message_names_its_lite_topic() -> None:
    """The message's own topic is the parent topic, which its lite topics share."""
    names = [str(make_message(topic="orders", properties=one).identity) for one in ({"__LITE_TOPIC": "eu"}, {})]
    assert names == ["orders/eu", "orders"]
