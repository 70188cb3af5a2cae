"""One run of a replay. The group's handler is a member of the shadow group until all messages are handled, or it is
stopped.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from rmqd.client.instance import ClientInstance
from rmqd.consumer.allocate import AllocateStrategy, averagely
from rmqd.consumer.hooks import Hook, HookContext
from rmqd.consumer.push_consumer import PushConsumer
from rmqd.plugins.hooks import hooks_of
from rmqd.replaying.ways_back import ReplayWaysBack

if TYPE_CHECKING:
    from rmqd.consumer.options import ConsumerOptions
    from rmqd.loaded_handler import LoadedHandler
    from rmqd.replaying.plan import Failures, ReplayPlan
    from rmqd.wire.messages.message import Message

LOOK_SECONDS: Final = 0.25
PERSIST_SECONDS: Final = 1.0  # after kill -9, a run repeats at most the messages of this time


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a replay. `passed` includes messages that filters excluded. `outcomes` counts only this run."""

    passed: int
    outcomes: Counter[str] = field(default_factory=Counter)
    is_done: bool = False


class ReplayRun:
    """Runs a started replay until it is done or stopped. `rate` is in messages per second; 0 means no limit."""

    def __init__(
        self,
        plan: ReplayPlan,
        options: ConsumerOptions,
        handler: LoadedHandler,
        client: ClientInstance,
        failures: Failures,
        *,
        rate: int,
        retries: int,
    ) -> None:
        self._plan = plan
        self._client = client
        self._own_ends = {queue.without(options.namespace): end for queue, end in plan.ends.items()}
        own = ((one.queue.without(options.namespace), one) for one in plan.windows)
        self._windows = {(queue.topic, queue.broker_name, queue.queue_id): one for queue, one in own}
        self._passed = dict.fromkeys(plan.ends, 0)
        self._consumer = PushConsumer(
            _of_shadow(options, plan, rate, retries),
            handler,
            client,
            hooks=(*hooks_of(options), Hook("rmqd.replay", wants=self._is_within)),
            ways_back=ReplayWaysBack(failures, retries),
            ends=plan.ends,
        )

    def stop(self) -> None:
        """Wait for running handlers, commit, and leave the group."""
        self._consumer.stop()

    async def run(self, tell: Callable[[Progress], None]) -> Progress:
        """Handle the remaining messages. Raises errors that end the group, such as a handler that fails to start."""
        serving = asyncio.create_task(self._client.run(), name="client")
        consuming = asyncio.create_task(self._consumer.run(), name=f"group {self._plan.shadow}")
        try:
            while not consuming.done():
                tell(progress := self._progress())
                if progress.is_done:
                    self._consumer.stop()
                    break
                await asyncio.wait((consuming, serving), timeout=LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                if serving.done():
                    break
            self._consumer.stop()
            await asyncio.wait((consuming,))
            progress = self._progress()
        finally:
            self._consumer.stop(shutdown_timeout_seconds=0)
            await asyncio.wait((consuming,))
            self._client.stop()
            await asyncio.wait((serving,))
        for task in (serving, consuming):
            task.result()
        return progress

    def _progress(self) -> Progress:
        snapshot = self._consumer.snapshot()
        for queue in snapshot.queues:
            window = self._windows.get((queue.topic, queue.broker, queue.queue))
            if window is not None and not queue.is_retry and queue.committed is not None:
                self._passed[window.queue] = min(max(queue.committed - window.start, 0), window.size)
        outcomes: Counter[str] = Counter()
        for topic in snapshot.topics:
            outcomes.update(topic.handled)
        passed = sum(self._passed.values())
        return Progress(passed, outcomes, passed == self._plan.messages)

    def _is_within(self, message: Message, context: HookContext) -> bool:
        """Return whether a message is inside a window. A filter may return messages after its end."""
        end = self._own_ends.get(context.message_queue)
        return end is not None and message.queue_offset < end


def _of_shadow(options: ConsumerOptions, plan: ReplayPlan, rate: int, retries: int) -> ConsumerOptions:
    """Return the group's options for its shadow group. It is alone: it pulls all queues, and commits to the brokers."""
    return replace(
        options,
        group=plan.shadow,
        replay=plan.made_at,  # `message.once` and `deduplicate` work once per replay
        message_model="clustering",
        consume_mode="orderly" if options.consume_mode == "orderly" else "concurrently",
        allocate_strategy=AllocateStrategy("averagely", averagely),
        max_reconsume_times=retries,
        pull_rate_limit=rate,
        persist_consumer_offset_interval_seconds=PERSIST_SECONDS,
        deduplication=None,  # messages are handled again on purpose
        trace=None,
    )
