"""For tests of handlers: a RocketMQ of each test's own, a handler run against it without waiting, messages by hand.

With pytest the fixtures `rocketmq`, `run_handler`, `make_message` and `make_batch` are there once rmqd is installed.
Without it: `with RocketMQ() as rocketmq: rocketmq.run_handler(...)`.

This room is a leaf: it may use every other one, and only the commands use it. Importing it loads nothing heavy: pytest
does so in every run of everybody who has rmqd installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rmqd.testing.messages import make_batch, make_message
    from rmqd.testing.result import Attempt, RunResult
    from rmqd.testing.rocketmq import RocketMQ
    from rmqd.testing.run import StillBusyError

__all__ = ["Attempt", "RocketMQ", "RunResult", "StillBusyError", "make_batch", "make_message"]

_HOMES = {
    "Attempt": "result",
    "RocketMQ": "rocketmq",
    "RunResult": "result",
    "StillBusyError": "run",
    "make_batch": "messages",
    "make_message": "messages",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(f"rmqd.testing.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
