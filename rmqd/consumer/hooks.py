"""Hooks: plugins that are called before and after every batch, and that filter the messages for handlers.

An exception of a hook is logged and counted, and never affects a message. Without hooks, this module is not called.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog

from rmqd.consumer.handling.handler_threads import wrap_handler
from rmqd.handler_api.batch import Batch, DeadLetter, LoadedHandler, Retry, Suspend, is_made_of, raise_returned_decision
from rmqd.runtime.clock import Clock
from rmqd.runtime.plain_text import text_of
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.message import Message

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class HookContext:
    """The second argument of a hook: one object for each handler call and each pull, shared by all hooks."""

    group: str
    message_queue: MessageQueue
    client_id: str
    outcome: str | None = None
    """None before the end of a call. `success`: the handler returned; `declined`: it raised Retry, DeadLetter or
    Suspend; `failed`: it raised another exception; `cut_short`: `consume_timeout` or the group's end cancelled it."""
    exception: BaseException | None = None
    duration_seconds: float | None = None
    values: dict[str, Any] = field(default_factory=dict)
    """For hooks: values that `before_batch` stores here are available in `after_batch` of the same batch."""


BatchHook = Callable[[Batch, HookContext], object]


@dataclass(frozen=True, slots=True)
class Hook:
    """One installed hook; None for each method that it does not define."""

    name: str
    before_batch: BatchHook | None = None
    after_batch: BatchHook | None = None
    wants: Callable[[Message, HookContext], object] | None = None


class GroupHooks:
    """Calls the installed hooks for one group. Batch hooks of a synchronous handler run in the handler's threads."""

    def __init__(self, hooks: Sequence[Hook], group: str, client_id: str, clock: Clock) -> None:
        self._group = group
        self._client_id = client_id
        self._now = clock.monotonic
        self._before = [(hook.name, hook.before_batch) for hook in hooks if hook.before_batch is not None]
        self._after = [(hook.name, hook.after_batch) for hook in reversed(hooks) if hook.after_batch is not None]
        self._wants = [(hook.name, hook.wants) for hook in hooks if hook.wants is not None]
        self.has_filters = bool(self._wants)  # whether a hook filters messages
        self._counting = threading.Lock()
        self.failures: Counter[str] = Counter({hook.name: 0 for hook in hooks})
        self.rejected_counts: Counter[str] = Counter({name: 0 for name, _ in self._wants})

    def wrap_handler(self, handler: LoadedHandler) -> LoadedHandler:
        """Return the handler with hook calls around each call, or the handler itself if there are no batch hooks."""
        if not self._before and not self._after:
            return handler
        return wrap_handler(handler, self._around_async if handler.is_async else self._around)

    def unwanted_messages(self, messages: Sequence[Message], message_queue: MessageQueue) -> list[Message]:
        """Return the messages of a pull that a hook's `wants` rejects. A `wants` that raises rejects nothing."""
        context = HookContext(self._group, message_queue, self._client_id)
        return [message for message in messages if not message.finished and not self._is_wanted(message, context)]

    def _is_wanted(self, message: Message, context: HookContext) -> bool:
        for name, wants in self._wants:
            try:
                answer = wants(message, context)
                if not isinstance(answer, bool):
                    raise TypeError(f"the hook's wants() returned {answer!r}; expected True or False")  # noqa: TRY301
            except BaseException as error:  # noqa: BLE001  a hook's failure must not lose a message
                self._failed(name, "wants", error)
                continue
            if not answer:
                self.rejected_counts[name] += 1
                return False
        return True

    async def _around_async(self, call_next: Callable[[Batch], Any], batch: Batch) -> Any:
        # A context manager, here or in `_around`, would take longer than many handlers.
        context, started = self._begin(batch), self._now()
        try:
            if (result := await call_next(batch)) is not None:
                raise_returned_decision(result)
        except BaseException as error:
            self._end(batch, context, started, error)
            raise
        self._end(batch, context, started, None)
        return result

    def _around(self, call_next: Callable[[Batch], Any], batch: Batch) -> Any:
        context, started = self._begin(batch), self._now()
        try:
            if (result := call_next(batch)) is not None:
                raise_returned_decision(result)
        except BaseException as error:
            self._end(batch, context, started, error)
            raise
        self._end(batch, context, started, None)
        return result

    def _begin(self, batch: Batch) -> HookContext:
        context = HookContext(self._group, batch.message_queue, self._client_id)
        self._call("before_batch", self._before, batch, context)
        return context

    def _end(self, batch: Batch, context: HookContext, started: float, error: BaseException | None) -> None:
        context.duration_seconds = self._now() - started
        context.outcome, context.exception = _outcome(error), error
        self._call("after_batch", self._after, batch, context)

    def _call(self, what: str, calls: Sequence[tuple[str, BatchHook]], batch: Batch, context: HookContext) -> None:
        for name, call in calls:
            try:
                call(batch, context)
            except BaseException as error:  # noqa: BLE001  a hook's failure must not lose a message
                self._failed(name, what, error)

    def _failed(self, name: str, what: str, error: BaseException) -> None:
        with self._counting:  # hooks in handlers' threads can fail at the same time
            self.failures[name] += 1
        log.error("hook.failed", group=self._group, hook=name, call=what, error=text_of(error, repr), exc_info=error)


def _outcome(error: BaseException | None) -> str:
    if error is None:
        return "success"
    if is_made_of(error, (Retry, DeadLetter, Suspend)):
        return "declined"
    return "cut_short" if isinstance(error, asyncio.CancelledError) else "failed"
