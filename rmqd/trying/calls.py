"""A group's handler in this process: created and started as the consumer does, and called with one batch at a time."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Literal

from rmqd.client.instance import ClientInstance
from rmqd.consumer.assembly import assemble
from rmqd.consumer.handling.apart import batch_apart, called_apart
from rmqd.consumer.handling.failures import give_up
from rmqd.consumer.handling.threads import HandlerNotAwaitedError, call_start_or_stop
from rmqd.errors import NameServerError
from rmqd.handler_api import Batch, Closing, ManualBatch
from rmqd.once.group import once_of
from rmqd.plain_text import describe
from rmqd.plugins.consumer_options import consumer_options
from rmqd.plugins.handlers import load_handler
from rmqd.plugins.hooks import hooks_of
from rmqd.trying.order import CallResult
from rmqd.trying.places import Author, place_of
from rmqd.trying.verdicts import is_failure, verdicts_of
from rmqd.wire.messages.once import once_in_group

if TYPE_CHECKING:
    from rmqd.config.model.root import RootConfig
    from rmqd.wire.messages.message import Message


class HandlerCalls:
    """The handler of a group, inside the installed hooks. A consumer of the group is built, but never joins it.

    Raises ConfigError if the handler cannot be created.
    """

    def __init__(self, config: RootConfig, group: str) -> None:
        self._options = replace(consumer_options(config, group), deduplication=None, trace=None)
        self._handler = load_handler(group, config.groups[group])
        self._client = client = ClientInstance(config.cluster_of(group).client_options(config.state_dir))
        hooks = hooks_of(self._options)
        self._context, _ = assemble(self._options, self._handler, client, client.clock, hooks)
        self.author = Author.of(self._handler.handle)

    async def start(self) -> None:
        """Learn the cluster's id, and call the handler's `start`. Raises its exceptions."""
        with contextlib.suppress(NameServerError):
            await self._client.cluster_id.learn(may_write=False)
        identity = partial(self._client.identity, self._options.group)
        once_in_group.set(once_of(self._options.group, identity))
        await call_start_or_stop(self._handler.start, self._context.clock)

    async def stop(self) -> None:
        """Call the handler's `stop`. Raises its exceptions."""
        await call_start_or_stop(self._handler.stop, self._context.clock)
        await self._client.close()

    async def call(self, messages: list[Message]) -> CallResult:
        """Call the handler with messages of one queue. Raises HandlerNotAwaitedError."""
        batch = batch_apart(self._options, messages)
        started = time.monotonic()
        error = await called_apart(self._context.service, batch)
        seconds = time.monotonic() - started
        if isinstance(error, HandlerNotAwaitedError):
            raise error
        if self._options.failures is not None:
            give_up(batch, error, self._options.failures.dead_letter_on)
        verdicts = verdicts_of(batch, error, self._options, self._context.send_back)
        if error is None:  # an exception that was raised for one message only
            error = next((one.error for one in batch.decisions().values() if one.error is not None), None)
        return CallResult(
            verdicts,
            seconds,
            None if error is None else describe(error),
            None if error is None else place_of(error, self.author),
            is_failure(error),
            _closing(batch),
        )


def _closing(batch: Batch) -> Literal["commit", "rollback"] | None:
    if not isinstance(batch, ManualBatch) or batch.closing is None:
        return None
    return "commit" if batch.closing is Closing.COMMIT else "rollback"
