"""One run of a replay: a member of the shadow group calls the group's handler until all messages are handled.

A failed message is not sent back to the broker: delay levels could take hours, and the shadow group's retry topic is
removed at the end. So this process handles a failed message again, after some seconds, or in place in an orderly group.
If its last attempt fails, or the handler asks for a dead letter, the message's offset is written to a file.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final

import structlog

from rmqd.client.api.group_requests import get_consumer_list, subscription_groups, update_subscription_group
from rmqd.client.api.offset_requests import query_consumer_offset, update_consumer_offset
from rmqd.client.brokers import Brokers
from rmqd.client.instance import ClientInstance
from rmqd.client.remoting.remoting_client import RemotingClient
from rmqd.consumer.allocate import AllocateStrategy, averagely
from rmqd.consumer.consumer_options import ConsumerOptions
from rmqd.consumer.handling.settlement import LOCAL_RETRY_SECONDS
from rmqd.consumer.hooks import Hook, HookContext
from rmqd.consumer.push_consumer import PushConsumer
from rmqd.errors import RmqdError
from rmqd.handler_api.batch import LoadedHandler
from rmqd.operate.queries.topic_queries import OffsetWindow, windows_between
from rmqd.operate.replay.replay_plan import ReplayFailuresFile, ReplayPlan
from rmqd.plugins.strategies import hooks_of
from rmqd.runtime.plain_text import describe
from rmqd.wire.bodies.config_bodies import SubscriptionGroupConfig
from rmqd.wire.messages.message import Message

log = structlog.get_logger(__name__)


class ReplayRetry:
    """The retry policy of a shadow group: N retries make N + 1 attempts, all in this process."""

    def __init__(self, failures: ReplayFailuresFile, retries: int) -> None:
        self.limit = "all attempts of the replay failed"
        self._failures = failures
        self._retries = retries

    def is_last_attempt(self, message: Message, not_counted: int = 0) -> bool:
        return message.reconsume_times - not_counted >= self._retries

    def delay_level(self, message: Message, asked: int) -> int:
        """Return the requested level, which has no effect here: no broker delays the message."""
        return asked

    def delay_seconds(self, message: Message, level: int) -> float:
        return LOCAL_RETRY_SECONDS

    async def retry(self, message: Message, delay_level: int) -> bool:
        """Return False, so that the consumer keeps the message, counts the attempt and handles the message again."""
        return False

    async def dead_letter(self, message: Message, reason: str, error: BaseException | None) -> bool:
        """Write the message's offset and the reason to the file of failures. Returns False if it cannot be written."""
        failure = {
            "msg_id": message.msg_id,
            "topic": message.topic,
            "broker": message.broker_name,
            "queue": message.queue_id,
            "offset": message.queue_offset,
            "keys": message.keys,
            "reason": reason,
            "exception": None if error is None else describe(error),
            "attempts": message.reconsume_times + 1,
            "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
        }
        try:
            self._failures.add(failure)
        except OSError as fault:
            log.error("replay.failure_not_written", path=str(self._failures.path), error=str(fault))  # noqa: TRY400
            return False
        return True


POLL_SECONDS: Final = 0.25
PERSIST_SECONDS: Final = 1.0  # commit interval: after kill -9, the next run repeats at most the messages of this time


@dataclass(frozen=True, slots=True)
class ReplayProgress:
    """The progress of a replay. `passed` includes messages that filters excluded. `outcomes` are of this run only.

    The outcome `lost` counts messages that brokers deleted after the plan was made.
    """

    passed: int
    outcomes: Counter[str] = field(default_factory=Counter)
    is_done: bool = False


class ReplayRun:
    """Runs a replay whose shadow group exists. `rate` limits the messages per second; 0 means no limit."""

    def __init__(
        self,
        plan: ReplayPlan,
        options: ConsumerOptions,
        handler: LoadedHandler,
        client: ClientInstance,
        failures: ReplayFailuresFile,
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
            retry_policy=ReplayRetry(failures, retries),
            ends=plan.ends,
        )

    def stop(self) -> None:
        """Make the member drain, commit and leave the group. This call does not wait; `run` ends when that is done."""
        self._consumer.stop()

    async def run(self, on_progress: Callable[[ReplayProgress], None]) -> ReplayProgress:
        """Run until all messages are handled or `stop` is called. Raises, for example, if the handler cannot start."""
        serving = asyncio.create_task(self._client.run(), name="client")
        consuming = asyncio.create_task(self._consumer.run(), name=f"group {self._plan.shadow}")
        try:
            while not consuming.done():
                on_progress(progress := self._progress())
                if progress.is_done:
                    self._consumer.stop()
                    break
                await asyncio.wait((consuming, serving), timeout=POLL_SECONDS, return_when=asyncio.FIRST_COMPLETED)
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

    def _progress(self) -> ReplayProgress:
        snapshot = self._consumer.snapshot()
        for queue in snapshot.queues:
            window = self._windows.get((queue.topic, queue.broker, queue.queue))
            if window is not None and not queue.is_retry and queue.committed is not None:
                self._passed[window.queue] = window.clamp(queue.committed) - window.start
        outcomes: Counter[str] = Counter()
        for topic in snapshot.topics:
            outcomes.update(topic.handled, lost=topic.lost)
        passed = sum(self._passed.values())
        return ReplayProgress(passed, outcomes, passed == self._plan.messages)

    def _is_within(self, message: Message, context: HookContext) -> bool:
        """Return whether a message is before its window's end. With a filter, brokers also return later messages."""
        end = self._own_ends.get(context.message_queue)
        return end is not None and message.queue_offset < end


def _of_shadow(options: ConsumerOptions, plan: ReplayPlan, rate: int, retries: int) -> ConsumerOptions:
    """Return the group's options, changed for its shadow group: one member that pulls, and commits to brokers."""
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


MEMBER_TIMEOUT_SECONDS: Final = 10.0  # brokers remove the member of a killed process within this time
AGAIN_SECONDS: Final = 0.5


async def windows_of(
    client: ClientInstance, topics: Iterable[str], from_ms: int, to_ms: int
) -> tuple[OffsetWindow, ...]:
    """Return each queue's window of messages stored from `from_ms` to before `to_ms` (Unix time). Raises RmqdError."""
    parts = await asyncio.gather(*(windows_between(client, topic, from_ms, to_ms) for topic in topics))
    return tuple(window for part in parts for window in part)


async def create_shadow_group(brokers: Brokers, plan: ReplayPlan) -> None:
    """Create the shadow group with its group's settings on all brokers, and commit the windows' starts as its offsets.

    If the group exists already, its settings and offsets are replaced. Raises RmqdError.
    """
    client = brokers.client
    await look_up_routes(client, plan)

    async def make_at(remoting: RemotingClient, address: str) -> None:
        known = (await subscription_groups(remoting, address)).get(plan.group)
        settings = known or SubscriptionGroupConfig(group_name=plan.group)
        await update_subscription_group(
            remoting, address, replace(settings, group_name=plan.shadow, consume_enable=True, attributes={})
        )

    for error in (await brokers.request_masters(make_at)).errors.values():
        raise error
    for window in plan.windows:
        address = client.routes.address_for(window.queue)
        await update_consumer_offset(client.remoting, address, plan.shadow, window.queue, window.start)


async def count_handled(client: ClientInstance, plan: ReplayPlan) -> int:
    """Return how many messages of the windows are below the shadow group's stored offsets. Raises RmqdError."""
    await look_up_routes(client, plan)

    async def passed(window: OffsetWindow) -> int:
        address = client.routes.address_for(window.queue)
        committed = await query_consumer_offset(client.remoting, address, plan.shadow, window.queue)
        return window.clamp(committed) - window.start

    return sum(await asyncio.gather(*(passed(window) for window in plan.windows)))


async def check_not_running(brokers: Brokers, plan: ReplayPlan) -> None:
    """Raise RmqdError if the shadow group still has a member after 10 s: then the replay is already running."""
    waited = 0.0
    while members := {
        one for ids in (await brokers.request_masters(get_consumer_list, plan.shadow)).found.values() for one in ids
    }:
        if waited >= MEMBER_TIMEOUT_SECONDS:
            raise RmqdError(f"this replay is already running ({', '.join(sorted(members))}); wait until it ends")
        await asyncio.sleep(AGAIN_SECONDS)
        waited += AGAIN_SECONDS


async def look_up_routes(client: ClientInstance, plan: ReplayPlan) -> None:
    """Look up the routes of the windows' topics. Raises RmqdError."""
    for topic in {window.queue.topic for window in plan.windows}:
        await client.routes.lookup(topic)
