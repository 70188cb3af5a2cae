"""Chaos around the run of a group: records the state before, and takes the group's messages after."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from rmqd.consumer.options import ConsumerOptions
from rmqd.plain_text import class_name
from rmqd.testing.chaos.killed import OtherProcesses
from rmqd.testing.chaos.report import NotRepeatableError
from rmqd.testing.chaos.search import Search, parts_of
from rmqd.testing.chaos.trial import Bench, RunsInLoop
from rmqd.testing.group import GroupToRun
from rmqd.testing.result import RunResult
from rmqd.wire.messages.message import Message


@dataclass(frozen=True, slots=True)
class Chaos:
    """The state to compare, and its reset: the arguments of `run_handler`."""

    state: Callable[[], object] | None = None
    reset: Callable[[], object] | None = None
    kills: bool = field(default=False, kw_only=True)
    """Whether the handler also runs in processes that are killed, without the test's patches."""

    def prepared(self, group: GroupToRun, options: ConsumerOptions, run_in_loop: RunsInLoop) -> Bench:
        """Record the state before the first message. Raises TypeError, and errors of the handler's constructor."""
        for name, function in (("state", self.state), ("reset", self.reset)):
            if function is not None and not callable(function):
                raise TypeError(f"{name} is a {class_name(function)}; expected a function without arguments")
        package = _package(group)
        others = OtherProcesses(group, options, package) if self.kills else None
        return Bench(group.make_handler, options, run_in_loop, self.state, self.reset, package, others)


def look_for_chaos(bench: Bench, result: RunResult, stored: Iterable[Message]) -> None:
    """Call the handler again with its group's messages, in other ways. Raises NotRepeatableError.

    `stored` are the messages of the group's topics, in copies that no handler has seen.
    """
    got = {attempt.message.msg_id for attempt in result.attempts if attempt.number == 1}
    acked = {message.msg_id for message in result.acked}
    bench.messages = [message for message in stored if message.msg_id in got]
    done = frozenset(index for index, message in enumerate(bench.messages) if message.msg_id in acked)
    parts = parts_of(bench.messages, bench.options.consume_message_batch_max_size)
    if (found := Search(bench, parts, done).run()) is not None:
        raise NotRepeatableError(found, result)


def _package(group: GroupToRun) -> str:
    handler = group.settings.handler
    return "" if handler is None or ":" not in handler.plugin else handler.plugin.partition(":")[0].partition(".")[0]
