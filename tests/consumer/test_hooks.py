"""Hooks: calls before and after each batch, skipped messages, and failures of hooks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from rmqd import Batch, DeadLetter, Message, MessageQueue, Retry
from rmqd.client.client_options import ClientOptions
from rmqd.client.instance import ClientInstance
from rmqd.consumer.hooks import GroupHooks, Hook, HookContext
from rmqd.consumer.push_consumer import PushConsumer
from rmqd.handler_api.batch import LoadedHandler
from rmqd.runtime.clock import SystemClock
from tests.client.running import running
from tests.consumer.groups import GROUP, TOPIC, group_options, handler_of
from tests.consumer.scripted_broker import ScriptedBroker
from tests.handlers.messages import make_batch, make_message
from tests.seen import Seen


class Recording:
    """A hook that records its calls; `fails` is the call in which it raises."""

    def __init__(self, fails: str = "") -> None:
        self.calls: list[tuple[str, HookContext]] = []
        self.threads: set[int] = set()
        self._fails = fails

    def before_batch(self, batch: Batch, context: HookContext) -> None:
        context.values["bodies"] = [message.body for message in batch]
        self._note("before", context)

    def after_batch(self, batch: Batch, context: HookContext) -> None:
        self._note("after", context)

    def _note(self, call: str, context: HookContext) -> None:
        self.calls.append((call, context))
        self.threads.add(threading.get_ident())
        if call == self._fails:
            raise ValueError("the hook's own fault")


def hook(target: Any, name: str = "recording") -> Hook:
    methods = ("before_batch", "after_batch", "wants")
    return Hook(name, **{method: getattr(target, method, None) for method in methods})


def hooks(*found: Hook) -> GroupHooks:
    return GroupHooks(found, GROUP, "10.0.0.1@1", SystemClock())


def handler(raises: BaseException | None = None, *, is_async: bool) -> LoadedHandler:
    def sync(batch: Batch) -> str:
        if raises is not None:
            raise raises
        return "done"

    async def asynchronous(batch: Batch) -> str:
        return sync(batch)

    return handler_of(asynchronous if is_async else sync, is_async=is_async)


async def call(loaded: LoadedHandler, batch: Batch) -> object:
    result = loaded.handle(batch)
    return await result if loaded.is_async else result


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize(
    ("raised", "outcome"),
    [
        (None, "success"),
        (Retry(), "declined"),
        (DeadLetter("no"), "declined"),
        (ExceptionGroup("x", [DeadLetter("no"), Retry()]), "declined"),
        (ExceptionGroup("x", [DeadLetter("no"), OSError()]), "failed"),
        (OSError("away"), "failed"),
        (SystemExit(1), "failed"),
        (asyncio.CancelledError(), "cut_short"),
    ],
)
async def test_a_hook_is_called_before_and_after_each_batch(
    is_async: bool, raised: BaseException | None, outcome: str
) -> None:
    """The context has group, queue and client, later the outcome. The handler's result or exception is unchanged."""
    recording = Recording()
    loaded = hooks(hook(recording)).wrap_handler(handler(raised, is_async=is_async))
    batch = make_batch(make_message(b"one"))
    if raised is None:
        assert await call(loaded, batch) == "done"
    else:
        with pytest.raises(type(raised)) as caught:
            await call(loaded, batch)
        assert caught.value is raised
    (before, context), (after, same) = recording.calls
    assert (before, after) == ("before", "after")
    assert same is context
    assert (context.group, context.client_id, context.message_queue) == (GROUP, "10.0.0.1@1", batch.message_queue)
    assert (context.outcome, context.exception) == (outcome, raised)
    assert context.duration_seconds is not None
    assert context.values == {"bodies": [b"one"]}


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize("fails", ["before", "after"])
async def test_a_hook_that_raises_is_counted_and_disturbs_nothing(is_async: bool, fails: str) -> None:
    """The handler and the other hooks are called, and the handler's result counts."""
    broken, sound = Recording(fails), Recording()
    group = hooks(hook(broken, "broken"), hook(sound, "sound"))
    loaded = group.wrap_handler(handler(is_async=is_async))
    assert await call(loaded, make_batch(make_message(b"one"))) == "done"
    assert [name for name, _ in sound.calls] == ["before", "after"]
    assert group.failures == {"broken": 1, "sound": 0}


def test_without_batch_hooks_the_handler_is_not_wrapped() -> None:
    """Batches cost nothing more without hooks."""
    plain = handler(is_async=True)
    assert hooks().wrap_handler(plain) is plain
    assert hooks(Hook("chooses", wants=lambda message, context: True)).wrap_handler(plain) is plain


def test_messages_that_a_hook_does_not_want_are_skipped() -> None:
    """Only False skips a message. If the hook raises or returns None, the message is handled."""
    for wants, left_out, failures in [
        (lambda message, context: message.body != b"b", [b"b"], 0),
        (lambda message, context: True, [], 0),
        (lambda message, context: None, [], 3),
        (lambda message, context: message.properties["no"], [], 3),
    ]:
        group = hooks(Hook("choosy", wants=wants))
        messages = [make_message(body) for body in (b"a", b"b", b"c")]
        assert [message.body for message in group.unwanted_messages(messages, MessageQueue(TOPIC, "a", 0))] == left_out
        assert (group.rejected_counts["choosy"], group.failures["choosy"]) == (len(left_out), failures)


# --- in a group


class Consuming:
    """A consumer with hooks."""

    def __init__(self, broker: ScriptedBroker, handle: Callable[..., Any], *found: Hook, **values: Any) -> None:
        is_async = bool(values.pop("is_async", True))
        self.client = ClientInstance(ClientOptions(nameservers=(broker.peer.address,)))
        options = group_options(persist_consumer_offset_interval_seconds=0.05, **values)
        self.consumer = PushConsumer(options, handler_of(handle, is_async=is_async), self.client, found)

    async def __aenter__(self) -> PushConsumer:
        self._client = running(self.client.run())
        await self._client.__aenter__()
        self._task = asyncio.create_task(self.consumer.run())
        return self.consumer

    async def __aexit__(self, *details: object) -> None:
        self.consumer.stop(shutdown_timeout_seconds=1)
        await self._task
        await self._client.__aexit__(None, None, None)


async def test_skipped_messages_count_as_consumed(broker: ScriptedBroker, queue: MessageQueue, seen: Seen) -> None:
    """They are neither handled nor lag, and are counted under the hook's name."""
    told: list[HookContext] = []

    def wants(message: Message, context: HookContext) -> bool:
        told.append(context)
        return not message.body.startswith(b"x")

    await broker.store(queue, b"x1", b"1", b"x2", b"2", b"x3")
    async with Consuming(broker, seen, Hook("choosy", wants=wants)) as consumer:
        await seen.has(b"1", b"2")
        await broker.committed(GROUP, queue, 5)
        snapshot = consumer.snapshot()
        assert snapshot.left_out_by_hooks == {"choosy": 3}
        assert snapshot.topics[0].received == 2
    assert {(one.group, one.message_queue, one.outcome) for one in told} == {(GROUP, queue, None)}
