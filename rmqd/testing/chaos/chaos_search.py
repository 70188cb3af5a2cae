"""Searches for a history in which a handler's result differs from an undisturbed run.

The initial state is recorded before the group runs. The search starts after the run, with the group's messages.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import groupby
from typing import Any, Final

from rmqd.consumer.consumer_options import ConsumerOptions
from rmqd.errors import RmqdError, install_command
from rmqd.runtime.plain_text import class_name
from rmqd.testing.chaos import chaos_trial
from rmqd.testing.chaos.chaos_history import (
    ChaosDelivery,
    History,
    QueueBatch,
    find_simplest_history,
    killed,
    undisturbed_history,
)
from rmqd.testing.chaos.chaos_memory import Path, comparable_state, differing_paths
from rmqd.testing.chaos.chaos_report import FailedHistory, NotRepeatableError
from rmqd.testing.chaos.killed import NoProcessError, ProcessRunner, RunsInLoop
from rmqd.testing.handler_run import RunResult
from rmqd.testing.test_group import GroupToRun
from rmqd.wire.messages.message import Message

SEARCH_SECONDS: Final = 5.0  # limit for all histories after the first, if the handler is slow
KILL_SECONDS: Final = 30.0  # limit for the ten histories with a killed process; each starts a process
SHORTEN_SECONDS: Final = 5.0
RETRY_PATIENCE_FACTOR: Final = 3

_SAW_NOTHING: Final = (
    "chaos=True saw no effect of the handler: nothing that it keeps in this process has changed. Use "
    "state=..., a function that returns the handler's writes elsewhere, such as the rows of its table"
)
_SAME_STATE: Final = (
    "chaos=True saw no effect of the handler: state() has not changed; it must return the handler's writes"
)
_NOT_PUT_BACK: Final = (
    "chaos=True only repeated messages, because the handler's writes could not be undone. Use reset=..., a function "
    "that undoes the writes: then chaos also cancels calls"
)
_NO_KILLS: Final = 'chaos="kills" killed no process of the handler: '


class ChaosSeesLessWarning(UserWarning):
    """Chaos cannot see an effect, undo it, or kill a process. The text says which."""


def split_by_queue(messages: Sequence[Message], size: int) -> list[QueueBatch]:
    """Split messages into batches of at most `size`, queue by queue, in the order of their offsets."""
    found: list[QueueBatch] = []
    indexed = sorted(enumerate(messages), key=lambda pair: (_queue(pair[1]), pair[1].queue_offset))
    for queue, ones in groupby(indexed, key=lambda pair: _queue(pair[1])):
        indexes = [index for index, _ in ones]
        found += [QueueBatch(queue, tuple(indexes[at : at + size])) for at in range(0, len(indexes), size)]
    return found


@dataclass(slots=True)
class ChaosSearch:
    """The search for a history with a wrong result, for one handler and its messages."""

    bench: chaos_trial.ChaosBench
    parts: Sequence[QueueBatch]
    acked: Collection[int]
    """The messages that the handler acknowledged when its group ran."""
    _leave_out: Collection[Path] = ()
    _hung: bool = False
    """Whether a call of the last history hung."""
    _is_patient: bool = False
    _expected: dict[frozenset[QueueBatch], Any] = field(default_factory=dict)

    def run(self) -> FailedHistory | None:
        """Return the simplest history whose result differs from an undisturbed run; None if none was found."""
        if not self.parts:
            return None
        once, began = undisturbed_history(self.parts), time.monotonic()
        if not self.bench.restore_state():
            return self._on_top()
        first = self.bench.run(once)
        took = (time.monotonic() - began) / len(once)
        self.bench.patience_seconds = min(
            chaos_trial.PATIENCE_SECONDS, max(chaos_trial.MIN_PATIENCE_SECONDS, took * chaos_trial.HANG_FACTOR)
        )
        self.bench.restore_state()
        second = self.bench.run(once)
        self._leave_out = frozenset(differing_paths(first.state, second.state))
        self._expected[frozenset(self.parts)] = self._compared(first)
        if first.state == self.bench.before:
            _warn(_SAW_NOTHING if self.bench.state is None else _SAME_STATE)
        if (history := self._simplest(first.awaits)) is not None:
            return self._found(history)
        if self.bench.others is not None:
            try:
                if (found := self._over_kills()) is not None:
                    return found
            except NoProcessError as error:
                _warn(f"{_NO_KILLS}{error}")
        self.bench.restore_state()
        self.bench.run(once)  # so that the test finds the state of an undisturbed run
        return None

    def _over_kills(self) -> FailedHistory | None:
        """Try histories in which the handler's process is killed. Raises NoProcessError if that is not possible.

        `state` runs in this process, so it must see the writes of the killed process.
        """
        if self.bench.state is None:
            raise NoProcessError("use state=..., a function that returns the handler's writes elsewhere")
        self.bench.restore_state()
        ended = self.bench.run_in_other_process(undisturbed_history(self.parts))
        if (
            comparable_state(self.bench.read_state(), self._leave_out),
            dict(sorted(ended.fates.items())),
        ) != self._expected[frozenset(self.parts)]:
            raise NoProcessError(
                "the handler has another result in a separate process, for example if state() reads the test's memory, "
                "or if the handler needs the test's mock or monkeypatch"
            )
        began = time.monotonic()
        for history in killed(self.parts, ended.lines):
            if self._is_wrong(history):
                at = [one.how for one in history].index("killed")
                alone = history[at], ChaosDelivery(history[at].part)
                return self._found(alone if self._is_wrong(alone) else history)
            if time.monotonic() - began > KILL_SECONDS:
                break
        return None

    def _simplest(self, awaits: int) -> History | None:
        """Return the simplest wrong history, or None. Results are cached, because Hypothesis repeats histories."""
        known: dict[History, bool] = {}
        until = 0.0

        def is_wrong(history: History) -> bool:
            nonlocal until
            if not known:  # the limit starts at the first history: importing Hypothesis may take seconds
                until = time.monotonic() + SEARCH_SECONDS
            if history not in known and time.monotonic() < until:
                known[history] = self._is_wrong(history) and self._is_no_pause(history)
                if known[history] and sum(known.values()) == 1:
                    until = time.monotonic() + SHORTEN_SECONDS
            return known.get(history, False)

        return find_simplest_history(self.parts, awaits, is_wrong, is_async=self.bench.is_async)

    def _is_wrong(self, history: History) -> bool:
        """Return whether the result of a history differs from an undisturbed run of the same batches."""
        parts = frozenset(one.part for one in history)
        if parts not in self._expected:
            self.bench.restore_state()
            self._expected[parts] = self._compared(self.bench.run(undisturbed_history(sorted(parts))))
        self.bench.restore_state()
        try:
            ending = self.bench.run(history)
        except NoProcessError:
            return False
        self._hung = ending.hung
        return bool(self._compared(ending) != self._expected[parts])

    def _is_no_pause(self, history: History) -> bool:
        """Return False if a hung call returns within a longer time limit: then the machine was merely busy."""
        if not self._hung or self._is_patient:
            return True
        self._is_patient = True
        self.bench.patience_seconds *= RETRY_PATIENCE_FACTOR
        return self._is_wrong(history)

    def _found(self, history: History) -> FailedHistory:
        self.bench.restore_state()
        ending = self.bench.run(history, look_each=True)
        expected = self._expected[frozenset(one.part for one in history)]
        return FailedHistory(self.bench.messages, ending, expected, self._compared(ending), self._leave_out)

    def _on_top(self) -> FailedHistory | None:
        """Check a handler whose writes cannot be undone: repeat batches of each queue; the state must not change."""
        before = comparable_state(self.bench.read_state(), ())
        for history in _backs(self.parts):
            ending = self.bench.run(history, look_each=True)
            after = comparable_state(ending.state, ())
            fates = {index: fate for index, fate in ending.fates.items() if index in self.acked}
            if after != before or any(fate != "handled" for fate in fates.values()):
                return FailedHistory(self.bench.messages, ending, (before, {}), (after, fates), (), on_top=True)
        _warn(_NOT_PUT_BACK)
        return None

    def _compared(self, ending: chaos_trial.HistoryResult) -> tuple[Any, Any]:
        return comparable_state(ending.state, self._leave_out), dict(sorted(ending.fates.items()))


def _backs(parts: Sequence[QueueBatch]) -> Iterator[History]:
    """Yield histories that repeat the last batch of each queue, then the last two, four, and so on."""
    queues = {queue: list(ones) for queue, ones in groupby(parts, key=lambda part: part.queue)}
    size = 1
    while True:
        for ones in queues.values():
            if size < 2 * len(ones):
                yield tuple(map(ChaosDelivery, ones[-size:]))
        if size >= max(map(len, queues.values())):
            return
        size *= 2


def _warn(text: str) -> None:
    warnings.warn(text, ChaosSeesLessWarning, stacklevel=6)  # shows the line of the test


def _queue(message: Message) -> tuple[str, int]:
    return message.topic, message.queue_id


@dataclass(frozen=True, slots=True)
class Chaos:
    """Arguments of `run_handler`: functions that return and restore the state, and whether to kill processes."""

    state: Callable[[], object] | None = None
    reset: Callable[[], object] | None = None
    kills: bool = field(default=False, kw_only=True)
    """Whether the handler also runs in separate processes that are killed. They do not have the test's patches."""

    def make_bench(
        self, group: GroupToRun, options: ConsumerOptions, run_in_loop: RunsInLoop
    ) -> chaos_trial.ChaosBench:
        """Return a bench with the state before the first message. Raises TypeError, RmqdError, constructor errors."""
        if find_spec("hypothesis") is None:
            raise RmqdError(f"chaos needs Hypothesis, which is not installed; run {install_command('testing')}")
        for name, function in (("state", self.state), ("reset", self.reset)):
            if function is not None and not callable(function):
                raise TypeError(f"{name} is a {class_name(function)}; expected a function without arguments")
        others = ProcessRunner(group, options, run_in_loop) if self.kills else None
        return chaos_trial.ChaosBench(
            group.make_handler, options, run_in_loop, self.state, self.reset, group.package, others
        )


def call_in_chaos(bench: chaos_trial.ChaosBench, result: RunResult, stored: Iterable[Message]) -> None:
    """Call the handler again with its group's messages, in other histories. Raises NotRepeatableError.

    `stored` are new copies of all messages of the group's topics, which no handler has changed.
    """
    __tracebackhide__ = True  # for pytest: the exception has the report
    got = {attempt.message.msg_id for attempt in result.attempts if attempt.number == 1}
    acked = {message.msg_id for message in result.acked}
    bench.messages = [message for message in stored if message.msg_id in got]
    done = frozenset(index for index, message in enumerate(bench.messages) if message.msg_id in acked)
    parts = split_by_queue(bench.messages, bench.options.consume_message_batch_max_size)
    if (found := ChaosSearch(bench, parts, done).run()) is not None:
        raise NotRepeatableError(found, result)
