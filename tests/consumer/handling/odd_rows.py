"""Odd acts of handlers, the outcomes of their messages, and a stage that runs them.

A group whose handler does something odd with a message runs next to another group, in one event loop. The rows list
the outcomes of that message. All other messages of both groups are acknowledged.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import math
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import pytest

from rmqd import AlreadyHandled, Batch, DeadLetter, Retry, Suspend
from rmqd.testing import RocketMQ, RunResult
from tests.consumer.handling import odd_handlers as odd
from tests.consumer.handling.odd_handlers import Odd, leaving_a_task, made, raising, returning, spoiling

ACKED: Final = ["acked"]
RETRIED: Final = ["retried", "acked"]
DEAD: Final = ["dead_lettered"]

NEIGHBOURS: Final = 10

# Acts of a function in a thread, and of a coroutine that does the same.
RESULTS: list[tuple[str, Odd, list[str]]] = [
    ("returns nothing", returning(None), ACKED),
    ("returns False", returning(False), ACKED),
    ("returns an error", returning(ValueError("returned")), ACKED),
    ("returns NotImplemented", returning(NotImplemented), ACKED),
    ("returns Retry", returning(Retry(5)), RETRIED),
    ("returns the class Retry", returning(Retry), RETRIED),
    ("returns Suspend", returning(Suspend(1)), RETRIED),
    ("returns DeadLetter", returning(DeadLetter("why")), DEAD),
    ("returns the class DeadLetter", returning(DeadLetter), DEAD),
    ("returns a decision for each message", returning([None, DeadLetter("why")]), RETRIED),
    ("returns decisions by message", returning({"id": (1, Retry)}), RETRIED),
    ("returns decisions in a view of a dict", returning({"id": Retry}.values()), RETRIED),
    ("returns decisions in a queue", returning(deque([{Retry: 1}])), RETRIED),
    ("returns decisions in a list of lists", returning([[Retry()]]), RETRIED),
    ("returns a deeply nested list", returning(json.loads("[" * 600 + "]" * 600)), ACKED),
    ("acknowledges", lambda batch: batch.ack(batch[0]), ACKED),
    ("acknowledges, then raises", odd.fail_after_ack, ACKED),
    ("decides three times", odd.change_its_mind, ACKED),
    ("acknowledges nothing by ack_index", odd.ack_index, RETRIED),
    ("acknowledges what is not in the batch", odd.foreign, RETRIED),
    ("retries", lambda batch: batch.retry(batch[0]), RETRIED),
    ("retries at level 5", lambda batch: batch.retry(batch[0], 5), RETRIED),
    ("retries at a level that is text", lambda batch: batch.retry(batch[0], "5"), RETRIED),  # type: ignore[arg-type]
    ("dead-letters", lambda batch: batch.dead_letter(batch[0], "why"), DEAD),
    ("dead-letters because of nothing", lambda batch: batch.dead_letter(batch[0], None), DEAD),
    ("dead-letters because of a number", lambda batch: batch.dead_letter(batch[0], 404), DEAD),
    ("dead-letters because of an error", lambda batch: batch.dead_letter(batch[0], KeyError("k")), DEAD),
    ("dead-letters because of half a character", lambda batch: batch.dead_letter(batch[0], odd.LONE_SURROGATE), DEAD),
    ("dead-letters because of what has no text", lambda batch: batch.dead_letter(batch[0], odd.NoText()), DEAD),
    ("raises Retry", raising(Retry), RETRIED),
    ("raises Retry at level 18", raising(Retry(18)), RETRIED),
    ("raises Retry at level -1", raising(Retry(-1)), DEAD),
    ("raises Retry at level '5'", made(lambda: Retry("5")), RETRIED),  # type: ignore[arg-type]
    ("raises Retry at level 2**40", made(lambda: Retry(2**40)), RETRIED),
    ("raises a Retry of its own", made(odd.Later), RETRIED),
    ("raises Suspend in a group without order", raising(Suspend(1)), RETRIED),
    ("raises Suspend('2s')", made(lambda: Suspend("2s")), RETRIED),  # type: ignore[arg-type]
    ("raises Suspend(nan)", made(lambda: Suspend(math.nan)), RETRIED),
    ("raises DeadLetter", raising(DeadLetter("why")), DEAD),
    ("raises the class DeadLetter", raising(DeadLetter), DEAD),
    ("raises DeadLetter(None)", raising(DeadLetter(None)), DEAD),
    ("raises DeadLetter(404)", raising(DeadLetter(404)), DEAD),
    ("raises DeadLetter(error)", raising(DeadLetter(KeyError("k"))), DEAD),
    ("raises DeadLetter with half a character", raising(DeadLetter(odd.LONE_SURROGATE)), DEAD),
    ("raises DeadLetter with separators", raising(DeadLetter(odd.SEPARATORS)), DEAD),
    ("raises DeadLetter with a long text", raising(DeadLetter("é" * 100_000)), DEAD),
    ("raises DeadLetter with what has no text", raising(DeadLetter(odd.NoText())), DEAD),
    ("raises a DeadLetter of its own", made(lambda: odd.Poison(7)), DEAD),
    ("raises a DeadLetter whose reason fails", made(odd.Vague), DEAD),
    ("raises DeadLetter in groups", made(lambda: ExceptionGroup("x", [ExceptionGroup("y", [DeadLetter("z")])])), DEAD),
    ("raises Retry and DeadLetter", made(lambda: ExceptionGroup("x", [Retry(1), DeadLetter(), KeyError()])), DEAD),
    ("raises Retry and ValueError", made(lambda: ExceptionGroup("x", [Retry(1), ValueError()])), RETRIED),
    ("was handled before, as a group says", odd.handled_before_in_a_group, ACKED),
    ("was handled before, as a text", raising(AlreadyHandled("order 7")), ACKED),  # type: ignore[arg-type]
    ("was handled before, without its message", made(odd.Known), ACKED),
    ("spoils properties by a separator, gives up", spoiling(lambda p: p.update(n=odd.SEPARATORS), DeadLetter()), DEAD),
    ("spoils properties by a number, gives up", spoiling(lambda p: p.update({1: 2, "n": 3}), DeadLetter()), DEAD),
    ("spoils properties by 1 MB, gives up", spoiling(lambda p: p.update(n="x" * 10**6), DeadLetter()), DEAD),
    ("spoils its id, gives up", spoiling(lambda p: p.update(UNIQ_KEY=[odd.LONE_SURROGATE]), DeadLetter()), DEAD),
    ("deletes properties, gives up", spoiling(dict.clear, DeadLetter()), DEAD),
    ("spoils its id, raises", spoiling(lambda p: p.update(UNIQ_KEY=[1]), ValueError("x")), RETRIED),
    ("deletes properties, raises", spoiling(dict.clear, ValueError("x")), RETRIED),
    ("exits", odd.exit_process, RETRIED),
    ("recurses", odd.recurse, RETRIED),
]

# Each error is a failure: the message is retried, and dead-lettered at its last attempt.
ERRORS: list[tuple[str, Callable[[], BaseException]]] = [
    ("ValueError", lambda: ValueError("x")),
    ("an error with half a character", lambda: ValueError(odd.LONE_SURROGATE)),
    ("an error with separators", lambda: ValueError(odd.SEPARATORS)),
    ("an error of 1 MB", lambda: ValueError("x" * 10**6)),
    ("an error without a text", odd.NoText),
    ("an error whose text interrupts", odd.NoTextToSpeakOf),
    ("an error without attributes", odd.NoAttributes),
    ("an error with a strange class", lambda: type("N" * 10_000, (Exception,), {})()),
    ("an error that is its own cause", odd.its_own_cause),
    ("an odd SyntaxError", odd.odd_syntax_error),
    ("2,000 nested groups", odd.nested_groups),
    ("MemoryError", MemoryError),
    ("UnicodeDecodeError", lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "no")),
    ("StopIteration", lambda: StopIteration("x")),
    ("StopAsyncIteration", lambda: StopAsyncIteration("x")),
    ("TimeoutError", TimeoutError),
    ("CancelledError", asyncio.CancelledError),
    ("GeneratorExit", GeneratorExit),
    ("KeyboardInterrupt", KeyboardInterrupt),
    ("SystemExit", lambda: SystemExit(0)),
    ("a BaseException of its own", lambda: odd.Panic("pyo3")),
    ("a BaseExceptionGroup", lambda: BaseExceptionGroup("x", [KeyboardInterrupt(), SystemExit(1)])),
]

# Acts of coroutines only.
IN_THE_LOOP: list[tuple[str, odd.OddCoroutine, list[str]]] = [
    ("cancels itself", odd.cancel_itself, RETRIED),
    ("cancels itself, and returns", odd.cancel_itself_and_return, ACKED),
    ("cancels itself, and raises", odd.cancel_itself_and_fail, RETRIED),
    ("cancels itself five times, and returns", odd.cancel_itself_often, ACKED),
    ("cancels itself, and takes it back", odd.cancel_and_take_back, ACKED),
    ("has a timeout of its own making", odd.hand_made_timeout, RETRIED),
    ("has one that comes when it has returned", odd.late_timeout, ACKED),
    ("is cancelled by a task of its own", odd.cancelled_by_another, RETRIED),
    ("lets out a cancellation", odd.let_out_a_cancellation, RETRIED),
    ("takes too long for asyncio.timeout", odd.time_out, RETRIED),
    ("fails in a group of tasks", odd.fail_in_a_group_of_tasks, RETRIED),
    ("stops the loop", odd.stop_the_loop, ACKED),
    ("stops the loop, and waits", odd.stop_the_loop_and_wait, ACKED),
    ("closes the loop", odd.close_the_loop, RETRIED),
    ("runs a loop in the loop", odd.run_in_the_loop, RETRIED),
    ("sets another loop", odd.set_another_loop, ACKED),
    ("breaks the loop's exception handler", odd.break_the_exception_handler, ACKED),
    ("takes the loop's executor away", odd.take_the_executor, ACKED),
    ("fills the loop's executor", odd.fill_the_executor, ACKED),
    ("leaves a task that raises", leaving_a_task(ValueError("left")), ACKED),
    ("leaves a task that exits", leaving_a_task(SystemExit(3)), ACKED),
    ("leaves a task that interrupts", leaving_a_task(KeyboardInterrupt()), ACKED),
    ("leaves a callback that exits", odd.leave_a_callback, ACKED),
]

# Acts of functions in threads only.
IN_A_THREAD: list[tuple[str, Odd, list[str]]] = [
    ("runs a loop", odd.loop_in_a_thread, ACKED),
    ("leaves a thread", odd.leave_a_thread, ACKED),
]


class Stage:
    """Two groups on one broker."""

    def __init__(self, rocketmq: RocketMQ) -> None:
        self._rocketmq = rocketmq

    def play(self, act: Odd, *, is_async: bool, **group_keys: Any) -> list[str]:
        """Return the outcome of each attempt of the odd message. Checks the other messages too."""
        return self.play_all({"odd": act}, is_async=is_async, **group_keys)["odd"]

    def play_all(self, acts: Mapping[str, Odd], *, is_async: bool, **group_keys: Any) -> dict[str, list[str]]:
        """Do the same for several odd messages in one run. The keys are the names of acts."""
        rocketmq = self._rocketmq
        for topic in ("odd", "even"):
            rocketmq.create_topic(topic)
        for body in ("first", *acts, "last"):
            rocketmq.send("odd", body, keys=body, properties={"colour": "red"})
        for number in range(NEIGHBOURS):
            rocketmq.send("even", str(number))
        neighbours: list[RunResult] = []
        beside = threading.Thread(target=lambda: neighbours.append(self._neighbour()))
        beside.start()
        try:
            result = rocketmq.run_handler(_handler(acts, is_async), topic="odd", group="odd", **group_keys)
        finally:
            beside.join()
        assert [len(run.acked) for run in neighbours] == [NEIGHBOURS]
        assert sum(rocketmq.offsets("odd", "odd").values()) == len(acts) + 2
        for key in ("first", "last"):
            assert [one.outcome for one in result.attempts_of(key)] == ["acked"]
        outcomes = {name: [str(one.outcome) for one in result.attempts_of(name)] for name in acts}
        self.dead = rocketmq.dead_letters("odd")
        dead = [name for name, attempts in outcomes.items() if "dead_lettered" in attempts]
        assert sorted(message.keys or "" for message in self.dead) == sorted(dead)
        for message in self.dead:
            assert (message.body, message.properties["colour"]) == ((message.keys or "").encode(), "red")
        return outcomes

    def _neighbour(self) -> RunResult:
        async def handle(batch: Batch) -> None:
            await asyncio.sleep(0.005)

        return self._rocketmq.run_handler(handle, topic="even", group="even", concurrency=1)


def _handler(acts: Mapping[str, Odd], is_async: bool) -> Callable[[Batch], Any]:
    """Return a handler that acts at the first attempt of each odd message."""

    def handle(batch: Batch) -> object:
        act = None if batch[0].reconsume_times else acts.get(batch[0].body.decode())
        return None if act is None else act(batch)

    async def coroutine(batch: Batch) -> object:
        result = handle(batch)
        return await result if inspect.isawaitable(result) else result

    return coroutine if is_async else handle


@pytest.fixture
def stage() -> Iterator[Stage]:
    """A stage with its own broker."""
    with RocketMQ() as rocketmq:
        yield Stage(rocketmq)
    odd.HANGING.set()
    odd.HANGING.clear()
