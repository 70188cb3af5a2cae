"""Tools for testing handlers: an in-memory broker, runs of a handler without delays, and handmade messages.

With pytest, installing rmqd provides the fixtures `rocketmq`, `run_handler`, `make_message` and `make_batch`. Without
pytest: `with RocketMQ() as rocketmq: rocketmq.run_handler(...)`.

This package may import every other package, but only commands may import it. Its import must be cheap, because pytest
imports it in every run on a machine with rmqd.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rmqd.testing.chaos.chaos_report import NotRepeatableError
    from rmqd.testing.chaos.chaos_search import ChaosSeesLessWarning
    from rmqd.testing.handler_run import Attempt, RunResult, StillBusyError
    from rmqd.testing.message_factory import make_batch, make_message
    from rmqd.testing.offset_store_suite import OffsetStoreSuite
    from rmqd.testing.rocketmq import RocketMQ

__all__ = [
    "Attempt",
    "ChaosSeesLessWarning",
    "NotRepeatableError",
    "OffsetStoreSuite",
    "RocketMQ",
    "RunResult",
    "StillBusyError",
    "make_batch",
    "make_message",
]

_HOMES = {
    "Attempt": "handler_run",
    "ChaosSeesLessWarning": "chaos.chaos_search",
    "NotRepeatableError": "chaos.chaos_report",
    "OffsetStoreSuite": "offset_store_suite",
    "RocketMQ": "rocketmq",
    "RunResult": "handler_run",
    "StillBusyError": "handler_run",
    "make_batch": "message_factory",
    "make_message": "message_factory",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(f"rmqd.testing.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
