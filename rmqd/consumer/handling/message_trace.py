"""Message trace of a group: records of handled messages and their results, like Java's `ConsumeMessageTraceHookImpl`.

A hook makes the records, and a dispatcher sends them. Each message of a handler call has two records, SubBefore and
SubAfter. Both are sent together once the call has ended. If the dispatcher flushes while a call is running, SubBefore
is sent alone, so that the trace shows messages whose handler never ends.
"""

from __future__ import annotations

import itertools
import secrets
from dataclasses import dataclass

from rmqd.client.client_options import TraceOptions
from rmqd.client.instance import ClientInstance
from rmqd.client.sending.trace_dispatcher import TraceDispatcher
from rmqd.consumer.consumer_options import ConsumerOptions
from rmqd.consumer.handling.handler_failures import failed_decisions
from rmqd.consumer.hooks import Hook, HookContext
from rmqd.handler_api.batch import Batch
from rmqd.runtime.clock import Clock
from rmqd.wire.messages.properties import KEYS, MSG_REGION, TRACE_ON
from rmqd.wire.trace import TRACE_PRODUCER_PREFIX, ContextCode, TracePart, sub_after_record, sub_before_record

HOOK_NAME = "message_trace"


@dataclass(frozen=True, slots=True)
class _Call:
    """One handler call. `before` has the SubBefore records by the index of the message in the batch."""

    request_id: str
    before: dict[int, TracePart]


class MessageTrace:
    """The message trace of one group. The caller runs `dispatcher`, and closes it at the group's end."""

    def __init__(self, where: TraceOptions, options: ConsumerOptions, client: ClientInstance, clock: Clock) -> None:
        self.hook = Hook(HOOK_NAME, self._before, self._after)
        # Java numbers the dispatchers of a process, but here each group has only one, so the number is always 1
        sender = f"{TRACE_PRODUCER_PREFIX}-{options.group}-CONSUME-1"
        self.dispatcher = TraceDispatcher(client.producer, where, sender, clock)
        self.dispatcher.before_flush = self._send_begun
        self._timeout = options.consume_timeout_seconds
        self._clock = clock
        # Calls whose records were not sent yet. Threads need no lock, because each access is a single dict operation.
        self._begun: dict[str, _Call] = {}
        self._request_prefix = secrets.token_hex(8).upper()
        self._next_request = itertools.count(1).__next__

    def _before(self, batch: Batch, context: HookContext) -> None:
        if self.dispatcher.is_full:
            self.dispatcher.drop(2 * len(batch))
            return
        now_ms, request_id = int(self._clock.wall() * 1000), f"{self._request_prefix}{self._next_request():016X}"
        parts = {}
        for index, message in enumerate(batch):
            properties = message.stored_properties
            if properties.get(TRACE_ON) == "false":
                continue
            msg_id, keys = message.msg_id, properties.get(KEYS)
            record = sub_before_record(
                timestamp_ms=now_ms,
                region=properties.get(MSG_REGION),
                group=context.group,
                request_id=request_id,
                msg_id=msg_id,
                retry_times=message.reconsume_times,
                keys=keys,
            )
            parts[index] = TracePart(record, msg_id, keys)
        if parts:
            context.values[HOOK_NAME] = self._begun[request_id] = _Call(request_id, parts)

    def _after(self, batch: Batch, context: HookContext) -> None:
        call: _Call | None = context.values.get(HOOK_NAME)
        if call is None:
            return
        seconds = context.duration_seconds or 0.0
        now_ms, cost_ms = int(self._clock.wall() * 1000), int(seconds * 1000 / len(batch))
        is_new = self._begun.pop(call.request_id, None) is not None
        failed = failed_decisions(batch, context.exception)
        parts = []
        for index, before in call.before.items():
            record = sub_after_record(
                request_id=call.request_id,
                msg_id=before.msg_id,
                cost_ms=cost_ms,
                success=index not in failed,
                keys=before.keys,
                code=self._code(context, seconds, is_failed=index in failed),
                timestamp_ms=now_ms,
                group=context.group,
            )
            parts.append(TracePart(before.records + record if is_new else record, before.msg_id, before.keys))
        self.dispatcher.append(tuple(parts), len(parts) * (2 if is_new else 1))

    def _code(self, context: HookContext, seconds: float, *, is_failed: bool) -> ContextCode:
        """Return the result code that Java's consume services would put into the trace."""
        if context.outcome == "failed" and is_failed:
            return ContextCode.EXCEPTION
        if seconds >= self._timeout:
            return ContextCode.TIME_OUT
        return ContextCode.FAILED if is_failed else ContextCode.SUCCESS

    def _send_begun(self) -> None:
        """Send the SubBefore records of running calls, unless they were sent before. Called before each flush."""
        for request_id in list(self._begun):
            call = self._begun.pop(request_id, None)
            if call is not None:
                self.dispatcher.append(tuple(call.before.values()), len(call.before))
