"""The child process of `rmqd try`: `python -m rmqd.operate.try_handler.trial_main DESCRIPTOR`.

It calls the handler with one batch at a time, as the consumer does, and reports how each message would be settled. The
handler's standard output is sent to standard error: the parent's standard output has only the command's results.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from dataclasses import replace
from functools import partial

from rmqd.client.instance import ClientInstance
from rmqd.config.load import configure_log
from rmqd.config.model.root_model import RootConfig
from rmqd.consumer.assembly import assemble_group
from rmqd.consumer.consumer_options import ConsumerOptions
from rmqd.consumer.handling.batch_worker import exception_of_background_call, make_background_batch
from rmqd.consumer.handling.handler_failures import decisions_of, dlq_reason
from rmqd.consumer.handling.handler_threads import HandlerNotAwaitedError, call_start_or_stop
from rmqd.consumer.handling.in_place_retries import dead_letter_by_name
from rmqd.consumer.handling.orderly import OrderlyRules
from rmqd.consumer.services import RetryPolicy
from rmqd.errors import ExitCode, NameServerError
from rmqd.handler_api.batch import (
    Batch,
    DeadLetter,
    Decision,
    InvalidPayloadError,
    ManualCommitBatch,
    Outcome,
    Retry,
    Suspend,
    is_made_of,
)
from rmqd.handler_api.once.once_group import once_for_group
from rmqd.operate.try_handler.selection import HandlerSource, failing_line
from rmqd.operate.try_handler.trial import CallResult, TrialDecision
from rmqd.plugins.handler_catalogue import load_handler
from rmqd.plugins.model_options import consumer_options
from rmqd.plugins.strategies import hooks_of
from rmqd.runtime.child_process import ChildChannel
from rmqd.runtime.event_loop import exit_process, run_in_loop
from rmqd.runtime.plain_text import describe
from rmqd.wire.messages.message import Message, once_in_group

_ACKED = TrialDecision("acked")


def is_failure(error: BaseException | None) -> bool:
    """Return whether a call raised an exception that is neither a decision (such as Retry) nor an invalid body."""
    return error is not None and not is_made_of(error, (Retry, DeadLetter, Suspend, InvalidPayloadError))


def trial_decisions_of(
    batch: Batch, error: BaseException | None, options: ConsumerOptions, retry_policy: RetryPolicy
) -> tuple[TrialDecision, ...]:
    """Return how the consumer would settle each message of a batch after this call, in the batch's order."""
    decisions = decisions_of(batch, error)
    if not options.retries_in_place:
        return tuple(_sent_back(*one, options, retry_policy) for one in zip(batch, decisions, strict=True))
    rules = OrderlyRules(retry_policy, options)
    reasons = rules.dead_letter_reasons(batch, decisions)
    done = rules.acknowledged_indexes(batch, decisions, reasons)
    left = sorted(set(range(len(batch))).difference(done, reasons))
    verdicts = {index: _given_up(reason, options) for index, reason in reasons.items()} | dict.fromkeys(done, _ACKED)
    for seconds, line in rules.indexes_by_suspension(left, decisions, error).items():
        verdicts |= dict.fromkeys(line, TrialDecision("retried", rest_seconds=seconds))
    return tuple(verdicts[index] for index in range(len(batch)))


def _sent_back(
    message: Message, decision: Decision, options: ConsumerOptions, retry_policy: RetryPolicy
) -> TrialDecision:
    group_level = options.delay_level_when_next_consume
    if decision.outcome is Outcome.ACK:
        return _ACKED
    if decision.outcome is Outcome.AGAIN:  # the handler was never called with this message
        return TrialDecision("retried", rest_seconds=decision.seconds)
    if (reason := dlq_reason(retry_policy, message, decision, group_level)) is not None:
        return _given_up(reason, options)
    level = group_level if decision.delay_level is None else decision.delay_level
    return TrialDecision("retried", delay_level=retry_policy.delay_level(message, level))


def _given_up(reason: str, options: ConsumerOptions) -> TrialDecision:
    return TrialDecision("dropped" if options.message_model == "broadcasting" else "dead_lettered", reason=reason)


class HandlerCalls:
    """The handler of a group, called inside the installed hooks. A consumer is built, but does not join the group.

    Raises ConfigError if the handler cannot be created.
    """

    def __init__(self, config: RootConfig, group: str) -> None:
        self._options = replace(consumer_options(config, group), deduplication=None, trace=None)
        self._handler = load_handler(group, config.groups[group])
        self._client = client = ClientInstance(config.cluster_of(group).client_options(config.state_dir))
        hooks = hooks_of(self._options)
        self._context, _ = assemble_group(self._options, self._handler, client, hooks)
        self.author = HandlerSource.of(self._handler.handle)

    async def start(self) -> None:
        """Look up the cluster's id if a name server responds. Call the handler's `start`, and raise its exceptions."""
        with contextlib.suppress(NameServerError):
            await self._client.cluster_id.learn(may_write=False)
        identity = partial(self._client.identity, self._options.group)
        once_in_group.set(once_for_group(self._options.group, identity))
        await call_start_or_stop(self._handler.start, self._context.clock)

    async def stop(self) -> None:
        """Call the handler's `stop` and close the client. Raises the exceptions of `stop`."""
        await call_start_or_stop(self._handler.stop, self._context.clock)
        await self._client.close()

    async def call(self, messages: list[Message]) -> CallResult:
        """Call the handler with messages of one queue. Raises HandlerNotAwaitedError if it returned unfinished work."""
        batch = make_background_batch(self._options, messages)
        started = time.monotonic()
        error = await exception_of_background_call(self._context.service, batch)
        seconds = time.monotonic() - started
        if isinstance(error, HandlerNotAwaitedError):
            raise error
        if self._options.failures is not None:
            dead_letter_by_name(batch, error, self._options.failures.dead_letter_on)
        verdicts = trial_decisions_of(batch, error, self._options, self._context.retry_policy)
        if error is None:  # the handler may have passed an exception with a message's decision
            error = next((one.error for one in batch.decisions().values() if one.error is not None), None)
        return CallResult(
            verdicts,
            seconds,
            None if error is None else describe(error),
            None if error is None else failing_line(error, self.author),
            is_failure(error),
            batch.closing.value if isinstance(batch, ManualCommitBatch) and batch.closing is not None else None,
        )


def main(descriptor: int) -> int:
    """Execute the parent's requests until it requests a stop or its process ends. Returns the exit code."""
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return run_in_loop(_serve(descriptor))


async def _serve(descriptor: int) -> int:
    channel, request = await ChildChannel.to_parent(descriptor)
    calls: HandlerCalls | None = None
    while request is not None:
        try:
            if calls is None:
                calls = await _started(request.argument)
                channel.answer(request, calls.author)
            elif request.action == "call":
                channel.answer(request, await calls.call(request.argument))
            else:
                await calls.stop()
                channel.answer(request)
        except Exception as error:  # noqa: BLE001  the handler's code may raise anything
            channel.refuse(request, error)
        if calls is None or request.action == "stop":
            break
        request = await channel.receive()
    await channel.close()
    return ExitCode.OK


async def _started(config: RootConfig) -> HandlerCalls:
    configure_log(config)
    (group,) = config.groups
    calls = HandlerCalls(config, group)
    await calls.start()
    return calls


if __name__ == "__main__":
    exit_process(main(int(sys.argv[1])))
