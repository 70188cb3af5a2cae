"""`rmqd send`: put messages into a topic."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmqd.cli.cluster import ConfigPath, NameServer, Overrides, ask_cluster, find_target
from rmqd.cli.control import Output, check_output

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from rmqd.client.instance import ClientInstance
    from rmqd.client.producer import OutgoingMessage, SendResult

HELP = """Send a message, or the same one several times, and print where the broker stored it.

A topic that does not exist is made by the broker if it may (autoCreateTopicEnable). With --count the queues take
turns, and up to 64 messages are under way at once. BODY is text; - reads it from standard input, bytes as they are.

Example: rmqd send orders '{"id": 17}' --keys order-17 --tags paid --property region=eu
"""

IN_FLIGHT = 64


def send(
    topic: Annotated[str, typer.Argument(help="The topic's name")],
    body: Annotated[str, typer.Argument(help="The message's body; - reads standard input")],
    keys: Annotated[str, typer.Option("--keys", help="Keys by which it can be found, separated by spaces")] = "",
    tags: Annotated[str, typer.Option("--tags", help="Its tag")] = "",
    properties: Annotated[
        list[str] | None, typer.Option("--property", "-p", help="A property of your own, as k=v; repeatable")
    ] = None,
    delay_level: Annotated[
        int, typer.Option("--delay-level", min=0, help="Deliver later: level 1 is 1 s, 3 is 10 s, 18 is 2 h")
    ] = 0,
    count: Annotated[int, typer.Option("--count", min=1, help="How often to send it")] = 1,
    nameserver: NameServer = None,
    config: ConfigPath = None,
    overrides: Overrides = None,
    output: Output = "table",
) -> None:
    """Send messages to a topic."""
    from rmqd.client.producer import OutgoingMessage
    from rmqd.errors import InvalidNameError
    from rmqd.wire.topics import check_topic

    check_output(output)
    try:
        check_topic(topic)
    except InvalidNameError as error:
        raise typer.BadParameter(str(error), param_hint="TOPIC") from None
    message = OutgoingMessage(
        topic, _body(body), tags=tags, keys=keys, delay_level=delay_level, properties=_properties(properties or [])
    )
    target = find_target(nameserver, config, overrides)
    report = _JsonReport() if output == "json" else _LineReport()
    try:
        ask_cluster(target.options, lambda client: _send_all(client, message, count, report))
    finally:
        report.end()
        if report.sent < count:
            typer.echo(f"rmqd: {report.sent} of {count} messages were sent", err=True)


async def _send_all(client: ClientInstance, message: OutgoingMessage, count: int, report: _Report) -> None:
    async for result in _results(client, message, count):
        report.add(result)


async def _results(client: ClientInstance, message: OutgoingMessage, count: int) -> AsyncIterator[SendResult]:
    """The results in the order of sending; the first failure ends it, when those before it have been given out."""
    import asyncio  # not needed to show the help

    started = 0
    sending: list[asyncio.Task[SendResult]] = []
    try:
        while sending or started < count:
            while started < count and len(sending) < IN_FLIGHT:
                sending.append(asyncio.create_task(client.producer.send(message)))
                started += 1
            yield await sending.pop(0)
    finally:
        for task in sending:
            task.cancel()
        await asyncio.gather(*sending, return_exceptions=True)


class _Report:
    """Tells what was sent, as it happens: a failure later takes nothing back."""

    def __init__(self) -> None:
        self.sent = 0

    def add(self, result: SendResult) -> None:
        self.write(result)
        self.sent += 1

    def write(self, result: SendResult) -> None:
        raise NotImplementedError

    def end(self) -> None:
        """After the last message."""


class _LineReport(_Report):
    def write(self, result: SendResult) -> None:
        queue = result.queue
        slow = "" if result.status == 0 else f"  {result.status.name}: stored, but not yet as safely as the broker asks"
        typer.echo(
            f"{result.msg_id}  {queue.topic}  {queue.broker_name}  queue {queue.queue_id}  "
            f"offset {result.queue_offset}{slow}"
        )


class _JsonReport(_Report):
    """One array, an element a line, complete also after a failure."""

    def write(self, result: SendResult) -> None:
        typer.echo(f"{',' if self.sent else '['}\n  {json.dumps(_document(result))}", nl=False)

    def end(self) -> None:
        typer.echo("\n]" if self.sent else "[]")


def _document(result: SendResult) -> dict[str, Any]:
    return {
        "msg_id": result.msg_id,
        "offset_msg_id": result.offset_msg_id,
        "topic": result.queue.topic,
        "broker": result.queue.broker_name,
        "queue": result.queue.queue_id,
        "offset": result.queue_offset,
        "status": result.status.name,
    }


def _body(text: str) -> bytes:
    # surrogateescape: an argument's bytes that are no UTF-8 go out as they came in
    return sys.stdin.buffer.read() if text == "-" else text.encode(errors="surrogateescape")


def _properties(pairs: list[str]) -> dict[str, str]:
    properties = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not key or not equals:
            raise typer.BadParameter(f"{pair!r} is not of the form k=v", param_hint="--property")
        properties[key] = value
    return properties
