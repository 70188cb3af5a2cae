"""The daemon's side of a handler with `handler.processes`: passes batches to worker processes, and applies results."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import structlog

from rmqd.config.model.group_model import GroupConfig
from rmqd.consumer.consumer_options import ConsumerOptions
from rmqd.consumer.handling.handler_failures import DEADLINE_CANCEL_MESSAGE, EXPIRED_DELAY_LEVEL
from rmqd.consumer.handling.handler_threads import UnusableHandlerError
from rmqd.handler_api.batch import (
    ACK,
    AGAIN_DECISION,
    PROCESS_LOSS_CAUSES,
    Batch,
    Decision,
    LoadedHandler,
    Outcome,
    ProcessCounts,
    decision_for_error,
)
from rmqd.plugins.worker_processes.handler_pool import HandlerPool, ProcessLoss, SuspectMessages
from rmqd.plugins.worker_processes.handler_process import CallOutcome, HandlerProcess, WorkerHandlerSpec
from rmqd.runtime.child_process import ChildGoneError
from rmqd.runtime.clock import Clock
from rmqd.runtime.logs.log_setup import log_settings
from rmqd.runtime.plain_text import duration, traceback_of

log = structlog.get_logger(__name__)

Cause = Literal["died", "hung", "memory"]


def handler_in_processes(name: str, settings: GroupConfig, options: ConsumerOptions, clock: Clock) -> LoadedHandler:
    """Return a group's handler, whose calls run in worker processes. The processes are started with the group."""
    assert settings.handler is not None
    own = settings.handler
    counts = ProcessCounts(0, dict.fromkeys(PROCESS_LOSS_CAUSES, 0))
    order = WorkerHandlerSpec(name, options.group, settings, own.process_memory, log_settings())
    pool = HandlerPool(order, own.processes, clock, counts)
    calls = PooledCalls(pool, options.consume_timeout_seconds, clock)

    async def start() -> None:
        await pool.start()
        if pool.keeps_calls_open:
            loaded.end_calls = pool.end_calls

    loaded = LoadedHandler(own.plugin, calls.handle, is_async=True, start=start, stop=pool.stop)
    loaded.ready, loaded.processes = pool.ready, counts
    return loaded


class PooledCalls:
    """Calls one group's handler in the processes of a pool."""

    def __init__(self, pool: HandlerPool, timeout_seconds: float, clock: Clock) -> None:
        self._pool = pool
        self._clock = clock
        self._timeout_seconds = timeout_seconds
        self._suspects = SuspectMessages()

    async def handle(self, batch: Batch) -> None:
        """Handle a batch in a worker process. Raises the handler's exception, or HandlerProcessLostError.

        If a process was lost while it handled a message of this batch, the handler is called with each message alone,
        because any of them may have caused the loss.
        """
        if not self._suspects.any_of(batch):
            await self._call(batch)
            return
        has_whole_time = True  # the calls share one consume_timeout, and the first call may take all of it
        for index in range(len(batch)):
            if self._give_up(batch, index):
                continue
            part = batch.part([index])
            try:
                await self._call(part, has_whole_time=has_whole_time)
            except UnusableHandlerError:
                raise
            except asyncio.CancelledError:
                for behind in range(index, len(batch)):
                    batch.decide(behind, AGAIN_DECISION)
                raise
            except BaseException as error:  # noqa: BLE001  any exception of a handler is its result
                part.decide(0, replace(decision_for_error(error), error=error))
            part.decide(0, ACK)
            if batch.ends_at(index):
                return
            has_whole_time = False

    def _give_up(self, batch: Batch, index: int) -> bool:
        """Dead-letter a message that has cost too many processes. Return whether the message was dead-lettered.

        This replaces a decision that the handler made about the message before the process was lost.
        """
        error = self._suspects.dead_letter_error(batch[index])
        if error is None:
            return False
        batch.replace_decision(index, Decision(Outcome.DEAD_LETTER, reason=str(error), error=error))
        self._suspects.clear(batch[index])
        return True

    async def _call(self, batch: Batch, *, has_whole_time: bool = True) -> None:
        """Handle a batch with one call in a worker process. Raises the handler's exception, or HandlerProcessLostError.

        `has_whole_time`: whether the call may take all of consume_timeout. If not, a timeout does not count as an
        attempt of the messages.
        """
        process = await self._pool.take()
        try:
            answer = await process.call(batch, self._clock)
        except asyncio.CancelledError as cut:
            await self._cut_off(
                process, batch, is_late=cut.args == (DEADLINE_CANCEL_MESSAGE,), is_blamed=has_whole_time
            )
            raise
        except ChildGoneError:
            self._isolate(batch, await self._lose_dead(process, batch))
            return
        except BaseException:
            self._pool.put(process)
            raise
        error = answer.apply_to(batch)
        try:
            if answer.no_memory:
                self._end_for_memory(process, batch, answer, error)
                includes_error = len(batch.decisions()) == len(batch)  # then the decisions include the error
            else:
                self._pool.put(process)
                self._clear(batch, error)
                includes_error = False
            if error is not None and not includes_error:
                raise error
        finally:
            del error  # the error's traceback refers to this frame, and would keep the batch alive

    async def _lose_dead(self, process: HandlerProcess, batch: Batch) -> ProcessLoss:
        """Replace a process that died or closed its socket, even if this call is cancelled. Return how it was lost."""
        how = process.describe_current_end()
        try:
            how = await process.how()
        finally:
            loss = ProcessLoss(how, process.thread_stacks())
            self._lose(process, "died", batch, range(len(batch)), loss)
        return loss

    async def _cut_off(self, process: HandlerProcess, batch: Batch, *, is_late: bool, is_blamed: bool) -> None:
        """Called when a call was cancelled, because it expired, or because the group or an operator's call ends.

        The process is killed and replaced. A call that is late counts as an attempt of its messages if `is_blamed`.
        """
        if not is_late:
            self._pool.replace_lost(process, "")
            return
        try:
            if (answer := await process.decisions_so_far()) is not None:
                answer.apply_to(batch)
            await process.kill_with_stacks()
        finally:
            undecided = [index for index in range(len(batch)) if index not in batch.decisions()]
            how = f"did not finish its call within consume_timeout ({duration(self._timeout_seconds)}), and was killed"
            loss = ProcessLoss(how, process.thread_stacks(), is_hang=True)
            self._lose(process, "hung", batch, undecided or range(len(batch)), loss)
            if is_blamed:
                error = loss.error()
                for index in undecided:
                    batch.decide(index, Decision(Outcome.RETRY, EXPIRED_DELAY_LEVEL, error=error))

    def _end_for_memory(
        self, process: HandlerProcess, batch: Batch, answer: CallOutcome, error: BaseException | None
    ) -> None:
        raised = batch.decisions()[answer.no_memory[0]].error if answer.no_memory[0] in batch.decisions() else error
        stacks = "" if raised is None else traceback_of(raised)
        loss = ProcessLoss("reached its memory limit (handler.process_memory), and was ended", stacks)
        self._lose(process, "memory", batch, answer.no_memory, loss)
        if error is not None and len(batch) > 1:
            self._isolate(batch, loss)

    def _lose(
        self, process: HandlerProcess, cause: Cause, batch: Batch, indexes: Sequence[int], loss: ProcessLoss
    ) -> None:
        """Replace a process, and record the messages that it was handling. Dead-letter them after too many losses."""
        self._pool.replace_lost(process, cause)
        first = batch[indexes[0]]
        log.error(
            "handler_process.lost",
            pid=process.pid,
            how=loss.how,
            queue=str(first.message_queue),
            msg_id=first.msg_id,
            messages=len(indexes),
        )
        self._suspects.add((batch[index] for index in indexes), loss)
        for index in indexes:
            self._give_up(batch, index)

    def _isolate(self, batch: Batch, loss: ProcessLoss) -> None:
        """Decide that the undecided messages are handled again, each alone, because one of them ended the process.

        Raises HandlerProcessLostError if the batch has only one message, because then the loss was its attempt.
        """
        undecided = [index for index in range(len(batch)) if index not in batch.decisions()]
        if undecided and len(batch) == 1:
            raise loss.error()
        for index in undecided:
            batch.decide(index, Decision(Outcome.AGAIN, error=loss.error()))

    def _clear(self, batch: Batch, error: BaseException | None) -> None:
        if not self._suspects.any_of(batch):
            return
        decisions, rest = batch.decisions(), decision_for_error(error)
        for index, message in enumerate(batch):
            if decisions.get(index, rest).outcome in (Outcome.ACK, Outcome.DEAD_LETTER):
                self._suspects.clear(message)
