"""The files of a new handler's project. The author's choices replace NAME, MODULE and TOPIC."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

_PYPROJECT: Final = """\
[build-system]
requires = ["hatchling>=1.25"]
build-backend = "hatchling.build"

[project]
name = "NAME"
version = "0.1.0"
requires-python = ">=3.11"
dependencies = ["rmqd", "pydantic>=2.7"]

[project.optional-dependencies]
dev = ["pytest", "ruff", "mypy"]

# Once this is installed, a configuration may say `plugin: NAME`.
[project.entry-points."rmqd.handlers"]
NAME = "MODULE.handler:handle"

[tool.hatch.build.targets.wheel]
packages = ["MODULE"]

[tool.pytest.ini_options]
pythonpath = ["."]
addopts = ["--import-mode=importlib"]

[tool.ruff]
line-length = 100

[tool.mypy]
strict = true
"""

_CONFIG: Final = """\
# rmqd run --reload; without a RocketMQ at that address: rmqd broker --topic TOPIC:4
nameserver: ${RMQD_NAMESERVER:-127.0.0.1:9876}
groups:
  "NAME":
    subscriptions: {"TOPIC": "*"}
    consume_from_where: first_offset
    handler: {plugin: "MODULE.handler:handle"}
"""

_HANDLER: Final = '''\
"""Handles the messages of TOPIC."""

import logging

import pydantic
import rmqd
from rmqd import Message

log = logging.getLogger(__name__)


class Order(pydantic.BaseModel):
    """The body of a message. A message with another body is dead-lettered, with the reason."""

    id: str
    total: int


@rmqd.handler(json=Order)
async def handle(order: Order, message: Message) -> None:
    """Returning acknowledges; raising retries. A message may be delivered twice, so the effect must be repeatable."""
    log.info("%s: order %s over %d", message.msg_id, order.id, order.total)
'''

_TEST: Final = '''\
"""Tests with the real consumer. Each test has its own RocketMQ."""

from collections.abc import Callable

from rmqd.testing import RocketMQ, RunResult

from MODULE.handler import handle

Run = Callable[..., RunResult]


def test_an_order_is_handled(rocketmq: RocketMQ, run_handler: Run) -> None:
    rocketmq.send("TOPIC", {"id": "order-1", "total": 12}, keys="order-1")
    result = run_handler(handle, topic="TOPIC", group="NAME")
    assert [message.keys for message in result.acked] == ["order-1"]


def test_an_invalid_order_is_dead_lettered(rocketmq: RocketMQ, run_handler: Run) -> None:
    rocketmq.send("TOPIC", {"id": "order-2"}, keys="order-2")
    run_handler(handle, topic="TOPIC", group="NAME")
    (dead,) = rocketmq.dead_letters("NAME")
    assert "total" in dead.properties["RMQD_REASON"]
'''

_CASES: Final = """\
# Run: rmqd test tests, or pytest. --chaos also tests whether the effect is repeatable. The handler is not replaced, so
# let it write to a database for tests.
config: ../config/rmqd.yaml
group: "NAME"
cases:
  one of two messages is not an order:
    messages:
      - {keys: order-1, body: {id: order-1, total: 12}}
      - {keys: order-2, body: {id: order-2}}
    expect:
      acked: [order-1]
      dead_letters: {order-2: total}
"""

_FILES: Final = {
    "pyproject.toml": _PYPROJECT,
    "config/rmqd.yaml": _CONFIG,
    "MODULE/__init__.py": "",
    "MODULE/handler.py": _HANDLER,
    "MODULE/py.typed": "",
    "tests/test_handler.py": _TEST,
    "tests/MODULE.cases.yaml": _CASES,
    ".gitignore": "__pycache__/\n.venv/\n.*_cache/\n",
}


def files_of(name: str, module: str, topic: str) -> Mapping[str, str]:
    """Return the text of each file of a project, by its path in the folder."""
    values = {"NAME": name, "MODULE": module, "TOPIC": topic}

    def filled(text: str) -> str:
        return re.sub(r"\b(?:NAME|MODULE|TOPIC)\b", lambda found: values[found[0]], text)

    return {filled(place): filled(text) for place, text in _FILES.items()}
