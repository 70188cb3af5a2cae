"""A RocketMQ for one test: an embedded broker in the event loop of a separate thread, and methods that tests call."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeVar

import structlog

from rmqd.broker.embedded_rocketmq import EmbeddedOptions, EmbeddedRocketMQ, embedded_rocketmq
from rmqd.client.api.send_requests import SendResult
from rmqd.client.client_options import ClientOptions
from rmqd.client.instance import ClientInstance
from rmqd.client.sending.outgoing_message import OutgoingMessage, select_by_hash, select_by_id
from rmqd.errors import RmqdError
from rmqd.plugins.handler_catalogue import load_canary, with_canary
from rmqd.runtime.event_loop import close_loop, run_loop_until
from rmqd.runtime.logs.log_setup import use_standard_logging
from rmqd.runtime.plain_text import duration
from rmqd.testing.handler_run import HandlerRun, RunResult
from rmqd.testing.message_factory import Body, as_bytes, as_properties, messages_of
from rmqd.testing.test_group import GroupToRun, JumpingClock, group_of
from rmqd.wire.bodies.config_bodies import SetMessageRequestModeRequestBody, TopicConfig
from rmqd.wire.bodies.pop_bodies import MessageRequestMode
from rmqd.wire.messages.message import Message
from rmqd.wire.topics import check_topic, dlq_topic, is_retry_topic, retry_topic

if TYPE_CHECKING:
    from rmqd.testing.chaos.chaos_search import Chaos


T = TypeVar("T")

GRACE_SECONDS: Final = 10.0  # extra time after a run's timeout, for a handler that ignores its cancellation
END_SECONDS: Final = 5.0


class LoopBlockedError(RuntimeError):
    """Code in the event loop blocks the loop. The text shows the location of this code."""


class BackgroundLoop:
    """An event loop in its own thread. Other threads run coroutines in it during the `with` block."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._is_over = False
        # a daemon thread, so that a handler that blocks the loop forever does not prevent pytest from ending
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: TracebackType | type[BaseException] | BaseException | None) -> None:
        self._is_over = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(END_SECONDS)

    def run(self, work: Callable[[], Coroutine[Any, Any, T]], timeout_seconds: float) -> T:
        """Run the coroutine that `work` creates. Returns its result, or raises its exception.

        The coroutine must limit itself to `timeout_seconds`. Raises LoopBlockedError if it exceeds this limit by
        `GRACE_SECONDS`, and RuntimeError if called in the loop's own thread, which would wait forever.
        """
        if threading.current_thread() is self._thread:
            raise RuntimeError(
                "the event loop of async handlers cannot make this call, because it would wait for itself forever; "
                "in an async handler use `await asyncio.to_thread(...)`"
            )
        future: Future[T] = asyncio.run_coroutine_threadsafe(work(), self._loop)
        try:
            return future.result(timeout_seconds + GRACE_SECONDS)
        except TimeoutError:
            if future.done():  # the coroutine's own TimeoutError
                raise
            raise LoopBlockedError(
                f"no end after {duration(timeout_seconds + GRACE_SECONDS)}: an async handler blocks the event loop, "
                f"which the consumer also uses; write it with `def` to run it in a thread. It is at:\n{self._stack()}"
            ) from None
        finally:
            future.cancel()

    def _serve(self) -> None:
        loop = self._loop
        asyncio.set_event_loop(loop)
        try:
            run_loop_until(loop, lambda: self._is_over)
        finally:
            close_loop(loop, END_SECONDS / 2)

    def _stack(self) -> str:
        frame = sys._current_frames().get(self._thread.ident or 0)
        return "".join(traceback.format_stack(frame)[-4:]) if frame is not None else "(its thread has ended)"


@contextlib.contextmanager
def logs_by_logging() -> Iterator[None]:
    """Pass log events to the standard library's `logging`, whose lines pytest shows when a test fails.

    If structlog is already configured, for example by the tested program, it is not changed.
    """
    if not use_standard_logging():
        yield
        return
    try:
        yield
    finally:
        structlog.reset_defaults()


REQUEST_SECONDS: Final = 10.0
RUN_SECONDS: Final = 30.0


class RocketMQ:
    """A name server and a broker in memory, for the duration of a `with` block. Methods may be called in any thread.

    Methods block their thread, so an async handler must call `await asyncio.to_thread(rocketmq.send, ...)`.
    """

    def __init__(self, options: EmbeddedOptions | None = None) -> None:
        self._options = options
        self._clock = JumpingClock()
        self._runs: set[HandlerRun] = set()
        self._ending = contextlib.ExitStack()
        self._async_ending = contextlib.AsyncExitStack()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as ending:
            ending.enter_context(logs_by_logging())
            folder = tempfile.TemporaryDirectory(prefix="rmqd-testing-")
            self._state_dir = Path(ending.enter_context(folder))
            self._loop = ending.enter_context(BackgroundLoop("rmqd.testing"))
            self._embedded: EmbeddedRocketMQ = self._run(self._start)
            ending.callback(self._run, self._async_ending.aclose)
            self._ending = ending.pop_all()
        return self

    def __exit__(self, *_: TracebackType | type[BaseException] | BaseException | None) -> None:
        self._ending.close()

    @property
    def nameserver(self) -> str:
        """The name server's `host:port`, for other clients."""
        return self._embedded.nameserver

    def now(self) -> float:
        """Return the broker's time in seconds since 1970: the machine's time plus the skipped time."""
        return self._clock.wall()

    def create_topic(self, name: str, queues: int = 1) -> None:
        """Create a topic, or change its number of queues. Raises InvalidNameError."""
        check_topic(name)
        if queues < 1:
            raise ValueError(f"a topic cannot have {queues} queues; expected 1 or more")
        config = TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues)
        self._do(lambda: self._embedded.broker.topics.put(config))

    def send(
        self,
        topic: str,
        body: Body,
        keys: str = "",
        tags: str = "",
        properties: Mapping[str, str] | None = None,
        *,
        delay_level: int = 0,
        sharding_key: str = "",
        queue_id: int | None = None,
    ) -> SendResult:
        """Send a message. Returns its position: `msg_id`, `queue`, `queue_offset`.

        Messages are distributed to the queues in turn, unless `queue_id` or `sharding_key` selects a queue. A missing
        topic is created with 4 queues, as in RocketMQ. Raises RmqdError if the message is refused.
        """
        message = OutgoingMessage(
            topic,
            as_bytes(body),
            keys=keys or "",
            tags=tags or "",
            properties=as_properties(properties or {}),
            delay_level=delay_level,
            sharding_key=sharding_key,
        )
        selector = None
        if queue_id is not None:
            selector = select_by_id(queue_id, "")
        elif sharding_key:
            selector = select_by_hash(sharding_key)
        return self._run(lambda: self._client.producer.send(message, selector=selector))

    def messages(self, topic: str) -> list[Message]:
        """Return all messages of a topic, in storage order, without consuming them."""
        return self._do(lambda: messages_of(self._embedded.broker, topic))

    def dead_letters(self, group: str) -> list[Message]:
        """Return the dead letters of a group, in storage order. The reason is in the property RMQD_REASON."""
        return self.messages(dlq_topic(group))

    def retries(self, group: str) -> list[Message]:
        """Return the messages that were redelivered to a group, in storage order, each with its `reconsume_times`."""
        return self._do(lambda: self._retries(group))

    def offsets(self, group: str, topic: str) -> dict[int, int]:
        """Return a group's committed offsets by queue id. Queues without a commit are omitted."""
        return self._do(lambda: dict(sorted(self._embedded.broker.offsets.queues(group, topic).items())))

    def run_handler(
        self,
        handler: object,
        topic: str = "",
        group: str = "",
        *,
        timeout: float = RUN_SECONDS,
        until: Callable[[], object] | None = None,
        chaos: bool | Literal["kills"] = False,
        state: Callable[[], object] | None = None,
        reset: Callable[[], object] | None = None,
        **group_keys: Any,
    ) -> RunResult:
        """Run a group until nothing is left to do, including retries and delayed messages, and stop it.

        With `until`, run until it returns a true value. Raises RmqdError if nothing is left to do before that.

        `chaos` checks that the handler's effect is repeatable: it calls the handler again with repeated, cancelled and
        expired deliveries and other orders of queues, and compares the resulting state. `state` returns this state, by
        default the handler's memory in this process; `reset` restores it. Raises NotRepeatableError, an AssertionError,
        with the shortest history that has another result. `chaos="kills"` also kills processes of the handler: they
        import the handler again, so the test's mocks and monkeypatches do not exist there.

        `handler` is a function, a class or an object, or a plugin's name. `group_keys` are the keys of the group in
        YAML, including `options` and `concurrency`. `expression` filters the topic; `subscriptions` may be given
        instead of `topic`. A second run of the group starts at the committed offsets of the first run.

        Delays take no real time: when all work is done, the clocks of broker and consumer jump to the next delay.
        `timeout` is in real seconds, like the time of handlers. Raises StillBusyError after `timeout`, ConfigError for
        invalid keys, and the errors of the handler's constructor, `start` or `stop`.
        """
        __tracebackhide__ = True  # pytest omits this frame, so its report begins in the test
        if not group:
            raise TypeError("run_handler() needs a group, such as group='mailer'")
        if bool(topic) == ("subscriptions" in group_keys):
            raise TypeError("run_handler() needs a topic, such as topic='orders', or subscriptions instead")
        if chaos not in (False, True, "kills"):
            raise TypeError(f"chaos is {chaos!r}; expected True, or 'kills' to also kill the handler's process")
        if not chaos and (state or reset):
            raise TypeError("state and reset need chaos=True")
        to_run = group_of(handler, topic, group, group_keys)
        if chaos:
            from rmqd.testing.chaos.chaos_search import Chaos

            return self.run_group_in_chaos(to_run, Chaos(state, reset, kills=chaos == "kills"), timeout, until)
        return self.run_group(to_run, timeout, until)

    def run_group_in_chaos(
        self, group: GroupToRun, chaos: Chaos, timeout: float = RUN_SECONDS, until: Callable[[], object] | None = None
    ) -> RunResult:
        """Run a checked group as `run_handler` does, with chaos. Raises NotRepeatableError."""
        __tracebackhide__ = True
        from rmqd.testing.chaos.chaos_search import call_in_chaos

        bench = chaos.make_bench(group, group.options(self._state_dir), self._run)
        result = self.run_group(group, timeout, until)
        call_in_chaos(bench, result, [one for topic in bench.options.subscriptions for one in self.messages(topic)])
        return result

    def run_group(
        self, group: GroupToRun, timeout: float = RUN_SECONDS, until: Callable[[], object] | None = None
    ) -> RunResult:
        """Run a checked group as `run_handler` does, without chaos."""
        options, handler = group.options(self._state_dir), group.make_handler()
        if group.settings.handler is not None and group.settings.handler.canary is not None:
            canary = load_canary(group.name, group.settings, handler)
            handler = with_canary(handler, canary, options, self._clock)

        async def run() -> RunResult:
            broker = self._embedded.broker
            for topic in options.subscriptions:
                if broker.topics.get(topic) is None:
                    raise RmqdError(f"topic {topic} does not exist; create it with rocketmq.create_topic({topic!r})")
                if options.consume_mode == "pop":  # like an administrator with mqadmin setConsumeMode
                    mode = SetMessageRequestModeRequestBody(topic, options.group, MessageRequestMode.POP)
                    broker.groups.set_request_mode(mode)
            return await HandlerRun(self._embedded, self._clock, options, handler, self._runs).run(timeout, until)

        return self._run(run, timeout)

    def _retries(self, group: str) -> list[Message]:
        """Return the messages of all retry topics of a group. A pop group also has a retry topic for each topic."""
        broker = self._embedded.broker
        topics = {retry_topic(group), *filter(is_retry_topic, broker.offsets.topics_of(group))}
        found = [message for topic in topics for message in messages_of(broker, topic)]
        return sorted(found, key=lambda message: message.commit_log_offset)

    async def _start(self) -> EmbeddedRocketMQ:
        embedded = await self._async_ending.enter_async_context(embedded_rocketmq(self._options, self._clock))
        self._client = ClientInstance(ClientOptions(nameservers=(embedded.nameserver,)), clock=self._clock)
        self._async_ending.push_async_callback(self._client.close)
        return embedded

    def _do(self, work: Callable[[], T]) -> T:
        """Call a function in the loop's thread, where the broker's state is consistent."""

        async def call() -> T:
            return work()

        return self._run(call)

    def _run(self, work: Callable[[], Coroutine[Any, Any, T]], timeout_seconds: float = REQUEST_SECONDS) -> T:
        return self._loop.run(work, timeout_seconds)
