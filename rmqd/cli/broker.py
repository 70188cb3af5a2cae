"""`rmqd broker`: the embedded name server and broker, alone."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rmqd.exit_codes import ExitCode

if TYPE_CHECKING:
    from rmqd.broker.embedded import EmbeddedOptions

HELP = """Run a name server and a broker in this process, for development and for tests, until a signal.

The first line printed is the name server's address. Messages are kept in memory, or with --data-dir in a folder, where
they survive restarts and crashes.

Example: rmqd broker --listen 127.0.0.1:9876 --topic orders:4 --data-dir ./rocketmq
"""


MAX_PORT = 65535
MAX_QUEUES = 1024
DEFAULT_QUEUES = 4


def broker(
    listen: Annotated[
        str, typer.Option("--listen", help="HOST:PORT of the name server; port 0 is a free one")
    ] = "127.0.0.1:9876",
    data_dir: Annotated[
        Path | None, typer.Option("--data-dir", help="Keep messages and offsets in this folder; default: in memory")
    ] = None,
    topics: Annotated[
        list[str] | None, typer.Option("--topic", help="Make a topic, as name:queues; repeatable")
    ] = None,
    broker_port: Annotated[int, typer.Option("--broker-port", help="The broker's port; 0 is a free one")] = 0,
    settings: Annotated[
        list[str] | None, typer.Option("--setting", help="A broker setting by RocketMQ's name, as a=b; repeatable")
    ] = None,
) -> None:
    """Run the embedded RocketMQ until a signal."""
    from rmqd.broker.embedded import EmbeddedOptions
    from rmqd.broker.settings import BrokerSettings, UnknownSettingError
    from rmqd.daemon.loop import leave, run_in_loop

    host, port = _host_and_port(listen)
    try:
        changed = BrokerSettings().changed(dict(_pair(setting) for setting in settings or ()))
    except UnknownSettingError as error:
        raise typer.BadParameter(str(error), param_hint="--setting") from error
    wanted = dict(_topic(text) for text in topics or ())
    options = EmbeddedOptions(host, port, broker_port, data_dir, changed, wanted)
    leave(run_in_loop(_run(options)))


async def _run(options: EmbeddedOptions) -> int:
    import asyncio

    from rmqd.broker.embedded import embedded_rocketmq
    from rmqd.daemon.logs import configure_logging
    from rmqd.daemon.signals import signals_handled
    from rmqd.errors import RmqdError

    configure_logging("warning", "auto")
    stop = asyncio.Event()
    try:
        with signals_handled(lambda _: stop.set(), lambda: None):
            async with embedded_rocketmq(options) as rocketmq:
                print(f"nameserver: {rocketmq.nameserver}", flush=True)
                await stop.wait()
    except (OSError, RmqdError) as error:
        print(f"rmqd broker: {error}", file=sys.stderr)
        return ExitCode.FAILURE
    return ExitCode.OK


def _host_and_port(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > MAX_PORT:
        raise typer.BadParameter(f"{text!r} is no HOST:PORT, such as 127.0.0.1:9876", param_hint="--listen")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _topic(text: str) -> tuple[str, int]:
    from rmqd.errors import InvalidNameError
    from rmqd.wire.topics import check_topic

    name, _, queues = text.partition(":")
    if queues and not (queues.isdecimal() and 0 < int(queues) <= MAX_QUEUES):
        raise typer.BadParameter(f"{text!r} is no name:queues, such as orders:4", param_hint="--topic")
    try:
        return check_topic(name), int(queues or DEFAULT_QUEUES)
    except InvalidNameError as error:
        raise typer.BadParameter(str(error), param_hint="--topic") from error


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise typer.BadParameter(f"{text!r} is no name=value", param_hint="--setting")
    return name, value
