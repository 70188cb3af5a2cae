"""`rmqd send`: sends messages to a topic."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

import typer

from rmqd.cli.terminal.cluster_command import ClusterOptions
from rmqd.cli.terminal.commands import Failed
from rmqd.cli.terminal.options import TopicName, duration_ms, moment_ms, name_and_value, topic_name
from rmqd.cli.terminal.output import say
from rmqd.runtime.lazy_imports import import_lazily
from rmqd.wire.topics import TRACE_TOPIC

with import_lazily():
    from rmqd.client import client_options, instance
    from rmqd.client.api import send_requests
    from rmqd.client.sending import outgoing_message, trace_dispatcher
    from rmqd.runtime import clock

IN_FLIGHT = 64
_KEY = "--sharding-key"


def send(
    cluster: ClusterOptions,
    topic: TopicName,
    body: Annotated[str, typer.Argument(help="The message's body; - reads standard input")],
    keys: Annotated[str, typer.Option("--keys", help="Keys of the message, separated by spaces")] = "",
    tags: Annotated[str, typer.Option("--tags", help="The message's tag")] = "",
    properties: Annotated[
        list[str] | None,
        typer.Option("--property", "-p", metavar="KEY=VALUE", help="A user property, as k=v; repeatable"),
    ] = None,
    delay_level: Annotated[
        int, typer.Option("--delay-level", min=0, max=18, help="Delay level: 1 is 1 s, 3 is 10 s, 18 is 2 h")
    ] = 0,
    delay: Annotated[
        str | None,
        typer.Option("--delay", metavar="DURATION", help="Delay, such as 90s or 12h (RocketMQ 5.0 and later)"),
    ] = None,
    deliver_at: Annotated[
        str | None,
        typer.Option(
            "--deliver-at", metavar="TIME", help="Delivery time: ISO 8601 with a zone, or @milliseconds (5.0 and later)"
        ),
    ] = None,
    sharding_key: Annotated[str | None, typer.Option("--sharding-key", help="Key whose messages stay in order")] = None,
    queue: Annotated[str | None, typer.Option("--queue", help="Queue to send to: its id, or broker:id")] = None,
    count: Annotated[int, typer.Option("--count", min=1, help="Number of times to send the message")] = 1,
    trace: Annotated[
        bool, typer.Option("--trace", help="Send RocketMQ's message trace, for mqadmin queryMsgTraceById")
    ] = False,
) -> None:
    """Send a message, once or several times, and print its queue and offset.

    The broker creates a missing topic if it may (autoCreateTopicEnable). With --count the queues take turns, and up to
    64 messages are in flight at once. BODY is text; - reads bytes from standard input.

    Delayed: --delay-level uses one of the broker's levels. --delay and --deliver-at need RocketMQ 5.0 or later, and
    allow any time up to the broker's timerMaxDelaySec, by default 3 days ahead. In order: --sharding-key selects a
    queue like Java's SelectMessageQueueByHash, --queue selects a given one; then messages are sent one after the other.

    Example: rmqd send orders '{"id": 17}' --keys order-17 --tags paid --property region=eu

    Example: rmqd send orders '{"id": 17, "step": 2}' --sharding-key order-17 --delay 90s
    """
    topic_name(topic, "TOPIC")
    if "||" in tags:  # no filter could select such a tag, because || joins tags in filters
        told = f"{tags!r} is an expression, and a message has one tag, such as paid"
        raise typer.BadParameter(told, param_hint="--tags")
    selector = _selector(sharding_key, queue)
    delay_ms, deliver_at_ms = _timer(delay, deliver_at, delay_level)
    named = {
        "TAGS": ("--tags", tags),
        "KEYS": ("--keys", keys),
        "DELAY": ("--delay-level", delay_level),
        "TIMER_DELAY_MS": ("--delay", delay),
        "TIMER_DELIVER_MS": ("--deliver-at", deliver_at),
        "__SHARDINGKEY": ("--sharding-key", sharding_key),
    }
    others = _properties(properties or [], {name: option for name, (option, value) in named.items() if value})
    target = cluster.target()
    message = outgoing_message.OutgoingMessage(
        target.with_namespace(topic),
        _body(body),
        tags=tags,
        keys=keys,
        delay_level=delay_level,
        delay_ms=delay_ms,
        deliver_at_ms=deliver_at_ms,
        sharding_key=sharding_key or "",
        properties=others,
    )
    report = _Report(target.options.namespace, cluster.as_json)
    try:
        target.ask(lambda client: _send_all(client, message, selector, count, report, trace))
    except Failed as failed:
        raise Failed(failed.exit_code, None) from None  # no document for the error: the report has printed one
    finally:
        report.end()
        if report.sent < count:
            typer.echo(f"rmqd: {report.sent} of {count} messages were sent", err=True)


async def _send_all(
    client: instance.ClientInstance,
    message: outgoing_message.OutgoingMessage,
    selector: outgoing_message.MessageQueueSelector | None,
    count: int,
    report: _Report,
    trace: bool,
) -> None:
    if not trace:
        await _send(partial(client.producer.send, message, selector=selector), count, selector, report)
        return

    import asyncio

    options = client_options.TraceOptions(TRACE_TOPIC, client_options.MAX_CALLS_PER_TRACE_MESSAGE)
    producer = trace_dispatcher.TracedProducer(
        client.producer, client.routes, options, clock.SystemClock(), namespace=client.options.namespace
    )
    tracing = asyncio.create_task(producer.dispatcher.run())
    try:
        await _send(partial(producer.send, message, selector=selector), count, selector, report)
    finally:
        tracing.cancel()
        await asyncio.wait((tracing,))
        await producer.dispatcher.close()
        lost = producer.dispatcher.counts["failed"] + producer.dispatcher.counts["full"]
        if lost:
            typer.echo(f"rmqd: {lost} records of message trace were not sent: {producer.dispatcher.failure}", err=True)


async def _send(
    send_one: Callable[[], Coroutine[Any, Any, send_requests.SendResult]],
    count: int,
    selector: outgoing_message.MessageQueueSelector | None,
    report: _Report,
) -> None:
    """Send `count` messages, and report the results in sending order. Raises the first failure, in the same order."""
    import asyncio

    started, most = 0, IN_FLIGHT if selector is None else 1
    sending: list[asyncio.Task[send_requests.SendResult]] = []
    try:
        while sending or started < count:
            while started < count and len(sending) < most:
                sending.append(asyncio.create_task(send_one()))
                started += 1
            report.add(await sending.pop(0))
    finally:
        for task in sending:
            task.cancel()
        await asyncio.gather(*sending, return_exceptions=True)


@dataclass(slots=True)
class _Report:
    """Prints each result immediately, in case a later send fails: as a line, or as an element of a JSON array."""

    namespace: str
    as_json: bool
    sent: int = 0

    def add(self, result: send_requests.SendResult) -> None:
        result = replace(result, queue=result.queue.without(self.namespace))
        if self.as_json:
            typer.echo(f"{',' if self.sent else '['}\n  {json.dumps(_document(result))}", nl=False)
        else:
            queue, status = result.queue, result.status
            slow = "" if status == 0 else f"  {status.name}: stored, but not yet flushed or replicated"
            where = f"{queue.topic}  {queue.broker_name}  queue {queue.queue_id}  offset {result.queue_offset}"
            say([f"{result.msg_id}  {where}{slow}"])
        self.sent += 1

    def end(self) -> None:
        """Print the end of the JSON array. Called once, also after a failure."""
        if self.as_json:
            typer.echo("\n]" if self.sent else "[]")


def _document(result: send_requests.SendResult) -> dict[str, Any]:
    return {
        "msg_id": result.msg_id,
        "offset_msg_id": result.offset_msg_id,
        "topic": result.queue.topic,
        "broker": result.queue.broker_name,
        "queue": result.queue.queue_id,
        "offset": result.queue_offset,
        "status": result.status.name,
        **({} if result.recall_handle is None else {"recall_handle": result.recall_handle}),
    }


def _body(text: str) -> bytes:
    # Python decodes arguments with surrogateescape; encoding with it restores bytes that are not UTF-8
    return sys.stdin.buffer.read() if text == "-" else text.encode(errors="surrogateescape")


def _selector(sharding_key: str | None, queue: str | None) -> outgoing_message.MessageQueueSelector | None:
    if sharding_key is not None and queue is not None:
        raise typer.BadParameter("it selects the queue; expected --sharding-key or --queue, not both", param_hint=_KEY)
    if sharding_key is not None:
        if not sharding_key:
            raise typer.BadParameter("it must not be empty", param_hint=_KEY)
        return outgoing_message.select_by_hash(sharding_key)
    if queue is None:
        return None
    broker_name, _, number = queue.rpartition(":")
    if not number.isascii() or not number.isdigit() or queue.startswith(":"):
        raise typer.BadParameter(
            f"{queue!r} is not a queue; expected an id such as 3, or broker-a:3", param_hint="--queue"
        )
    return outgoing_message.select_by_id(int(number), broker_name)


def _timer(delay: str | None, deliver_at: str | None, delay_level: int) -> tuple[int | None, int | None]:
    """Return the milliseconds of `--delay`, and the Unix milliseconds of `--deliver-at`; None for a missing option."""
    given = {"--delay-level": delay_level > 0, "--delay": delay is not None, "--deliver-at": deliver_at is not None}
    options = [option for option, is_given in given.items() if is_given]
    if len(options) > 1:
        raise typer.BadParameter(f"given with {options[0]}; expected one of {', '.join(given)}", param_hint=options[1])
    delay_ms = None if delay is None else round(duration_ms(delay, "--delay"))
    if delay_ms is not None and delay_ms < 1:
        raise typer.BadParameter(f"{delay} is not a delay; expected 1ms or longer", param_hint="--delay")
    deliver_at_ms = None if deliver_at is None else moment_ms(deliver_at, "--deliver-at")
    if deliver_at_ms is not None and deliver_at_ms <= time.time() * 1000:
        told = f"{deliver_at} has passed; expected a time in the future, or no --deliver-at to deliver at once"
        raise typer.BadParameter(told, param_hint="--deliver-at")
    return delay_ms, deliver_at_ms


def _properties(pairs: list[str], taken: Mapping[str, str]) -> dict[str, str]:
    """Return the properties from `--property`. `taken` maps each property that another option sets to that option."""
    properties = {}
    for pair in pairs:
        key, value = name_and_value(pair, "--property", "of the form k=v")
        if key in taken:
            raise typer.BadParameter(f"{taken[key]} sets {key} too; give only one of the two", param_hint="--property")
        properties[key] = value
    return properties
