"""Tools for testing handlers: a RocketMQ for each test, a handler run against it without delays, handmade messages.

With pytest, installing rmqd provides the fixtures `rocketmq`, `run_handler`, `make_message` and `make_batch`. Without
pytest: `with RocketMQ() as rocketmq: rocketmq.run_handler(...)`.

This room is a leaf: it may use every other room, and only the commands use it. Importing it must be cheap, because
pytest does so in every run on a machine with rmqd.

    plugin, collecting   the pytest plugin: fixtures; files of cases as tests
    rocketmq             RocketMQ: an embedded broker in a thread, and its functions for tests
    run, result          runs a group until nothing is left to do; all attempts, and the outcomes of the messages
    group                makes a group from the arguments of `run_handler`
    clock                a clock that jumps when nothing else is left to do
    background           an event loop in a thread
    messages             messages and batches without a broker
    records              reads a broker's stored messages
    case_file, case_run  cases in YAML: reading, running
    chaos                repeats, cancels and reorders handler calls: whether the resulting state is the same
    offset_store_suite   tests of a store for `offset_store`
    logs                 the log output during a test
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rmqd.testing.chaos.report import NotRepeatableError
    from rmqd.testing.chaos.search import ChaosSeesLessWarning
    from rmqd.testing.messages import make_batch, make_message
    from rmqd.testing.offset_store_suite import OffsetStoreSuite
    from rmqd.testing.result import Attempt, RunResult
    from rmqd.testing.rocketmq import RocketMQ
    from rmqd.testing.run import StillBusyError

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
    "Attempt": "result",
    "ChaosSeesLessWarning": "chaos.search",
    "NotRepeatableError": "chaos.report",
    "OffsetStoreSuite": "offset_store_suite",
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
