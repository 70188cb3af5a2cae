"""`rmqd broker`: runs only the embedded name server and broker."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rmqd.exit_codes import ExitCode

if TYPE_CHECKING:
    from rmqd.broker.embedded import EmbeddedOptions

HELP = """\
The first line of the output is the name server's address, for clients. Messages and offsets are kept in memory. With
--data-dir they are kept in a folder, and survive restarts and crashes. SIGTERM or SIGINT stops it with exit code 0.

Only this machine can reach it by default. --listen 0.0.0.0:9876 listens on every address. The broker then announces
the machine's own address to clients, or --setting brokerIP1=ADDRESS. --broker-port sets a fixed port to publish.

Example: rmqd broker --topic orders:4 --data-dir ./rocketmq
"""

MAX_PORT = 65535
MAX_QUEUES = 1024
DEFAULT_QUEUES = 4


def broker(
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="HOST:PORT of the name server; port 0: a free port")
    ] = "127.0.0.1:9876",
    data_dir: Annotated[
        Path | None, typer.Option("--data-dir", help="Folder for messages and offsets; default: in memory")
    ] = None,
    topics: Annotated[
        list[str] | None,
        typer.Option(
            "--topic", metavar="NAME:QUEUES", help="Create a topic if it is missing, as name:queues; repeatable"
        ),
    ] = None,
    broker_port: Annotated[
        int, typer.Option("--broker-port", min=0, max=MAX_PORT, help="The broker's port; 0: a free port")
    ] = 0,
    settings: Annotated[
        list[str] | None,
        typer.Option("--setting", metavar="NAME=VALUE", help="A broker setting by RocketMQ's name, as a=b; repeatable"),
    ] = None,
) -> None:
    """Run the embedded RocketMQ until a signal."""
    from rmqd.broker.settings import BrokerSettings, UnknownSettingError

    host, port = _host_and_port(listen)
    wanted = dict(_topic(text) for text in topics or ())
    try:
        changed = BrokerSettings().changed(dict(_pair(setting) for setting in settings or ()))
    except UnknownSettingError as error:
        raise typer.BadParameter(str(error), param_hint="--setting") from error

    from rmqd.process.loop import leave, put_off_garbage_collection, run_in_loop

    put_off_garbage_collection()

    # Imported before any module that logs, because it keeps structlog from importing rich.
    from rmqd.process.logs.logs import configure_logging

    # isort: split

    from rmqd.broker.embedded import EmbeddedOptions

    configure_logging("warning", "auto")
    leave(run_in_loop(_run(EmbeddedOptions(host, port, broker_port, data_dir, changed, wanted))))


async def _run(options: EmbeddedOptions) -> int:
    import asyncio

    from rmqd.broker.embedded import embedded_rocketmq
    from rmqd.errors import RmqdError
    from rmqd.process.loop import settle_garbage_collection
    from rmqd.process.signals import signals_handled

    stop = asyncio.Event()
    try:
        # SIGHUP means that the terminal was closed: there is no configuration to reload
        with signals_handled(lambda _: stop.set(), stop.set):
            async with embedded_rocketmq(options) as rocketmq:
                print(f"nameserver: {rocketmq.nameserver}", flush=True)
                _print_hints(options, rocketmq.nameserver, rocketmq.broker.address)
                _warn_of_strangers(options.host)
                settle_garbage_collection()
                await stop.wait()
    except OSError as error:
        print(f"rmqd broker: {error.strerror or error}", file=sys.stderr)
        return ExitCode.FAILURE
    except RmqdError as error:
        print(f"rmqd broker: {error}", file=sys.stderr)
        return ExitCode.FAILURE
    return ExitCode.OK


def _warn_of_strangers(host: str) -> None:
    from ipaddress import ip_address

    with contextlib.suppress(ValueError):  # a host name
        if ip_address(host).is_loopback:
            return
    if host != "localhost":
        warning = "anyone who can reach this address may read, send, delete and change settings; it is for development"
        print(f"rmqd broker: warning: {warning}", file=sys.stderr)


def _print_hints(options: EmbeddedOptions, nameserver: str, address: str) -> None:
    """Print the next steps for the user, after the line for programs."""
    kept = f"in {options.data_dir}" if options.data_dir else "in memory until it stops (--data-dir keeps them)"
    topic = next(iter(options.topics), "orders")
    print(f"broker: {options.settings.brokerName} at {address}; messages are kept {kept}")
    print(f"try: rmqd send {topic} 'hello' --nameserver {nameserver}", flush=True)


def _host_and_port(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdecimal()) or int(port) > MAX_PORT:
        raise typer.BadParameter(f"{text!r} is not HOST:PORT, such as 127.0.0.1:9876", param_hint="--listen")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _topic(text: str) -> tuple[str, int]:
    from rmqd.errors import InvalidNameError
    from rmqd.wire.topics import check_topic

    name, colon, queues = text.partition(":")
    if colon and not (queues.isascii() and queues.isdecimal() and 0 < int(queues) <= MAX_QUEUES):
        raise typer.BadParameter(
            f"{text!r} is not name:queues, such as orders:4, with up to {MAX_QUEUES} queues", param_hint="--topic"
        )
    try:
        return check_topic(name), int(queues or DEFAULT_QUEUES)
    except InvalidNameError as error:
        raise typer.BadParameter(str(error), param_hint="--topic") from error


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise typer.BadParameter(f"{text!r} is not name=value", param_hint="--setting")
    return name, value
