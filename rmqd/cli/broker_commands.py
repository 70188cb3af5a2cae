"""`rmqd broker` and `rmqd demo`, which run rmqd's embedded RocketMQ in this process."""

from __future__ import annotations

import contextlib
import sys
from importlib.util import find_spec
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated

import typer

from rmqd.cli.terminal.options import group_names, name_and_value, one_of, topic_name
from rmqd.errors import ExitCode, RmqdError, install_command
from rmqd.runtime.lazy_imports import import_lazily

with import_lazily():
    from rmqd.broker import broker_settings
    from rmqd.broker import embedded_rocketmq as embedded
    from rmqd.demo import demo_orders, demo_run
    from rmqd.runtime import event_loop
    from rmqd.runtime.logs import log_setup

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
    """Run a RocketMQ (a name server and a broker) in this process, without Java, for development and tests.

    The first line of the output is the name server's address, for clients. Messages and offsets are kept in memory.
    With --data-dir they are kept in a folder, and survive restarts and crashes. SIGTERM or SIGINT stops it with exit
    code 0.

    Only this machine can reach it by default. --listen 0.0.0.0:9876 listens on every address. The broker then announces
    the machine's own address to clients, or --setting brokerIP1=ADDRESS. --broker-port sets a fixed port to publish.

    Example: rmqd broker --topic orders:4 --data-dir ./rocketmq
    """
    host, port = _host_and_port(listen)
    wanted = dict(_topic(text) for text in topics or ())
    try:
        changed = broker_settings.BrokerSettings().changed(
            dict(name_and_value(setting, "--setting") for setting in settings or ())
        )
    except broker_settings.UnknownSettingError as error:
        raise typer.BadParameter(str(error), param_hint="--setting") from error
    event_loop.disable_gc_for_start()
    log_setup.configure_logging("warning", "auto")
    event_loop.exit_process(
        event_loop.run_in_loop(_run(embedded.EmbeddedOptions(host, port, broker_port, data_dir, changed, wanted)))
    )


async def _run(options: embedded.EmbeddedOptions) -> int:
    import asyncio

    stop = asyncio.Event()
    try:
        # SIGHUP also stops the broker: there is no configuration to reload, so it means that the terminal was closed
        with event_loop.handle_signals(lambda _: stop.set(), stop.set):
            async with embedded.embedded_rocketmq(options) as rocketmq:
                print(f"nameserver: {rocketmq.nameserver}", flush=True)
                _print_hints(options, rocketmq.nameserver, rocketmq.broker.address)
                _warn_if_exposed(options.host)
                event_loop.enable_gc_after_start()
                await stop.wait()
    except (OSError, RmqdError) as error:
        print(f"rmqd broker: {getattr(error, 'strerror', None) or error}", file=sys.stderr)
        return ExitCode.FAILURE
    return ExitCode.OK


def _warn_if_exposed(host: str) -> None:
    with contextlib.suppress(ValueError):  # `host` is a name, not an address
        if ip_address(host).is_loopback:
            return
    if host != "localhost":
        warning = "anyone who can reach this address may read, send, delete and change settings; it is for development"
        print(f"rmqd broker: warning: {warning}", file=sys.stderr)


def _print_hints(options: embedded.EmbeddedOptions, nameserver: str, address: str) -> None:
    """Print hints for users. Programs parse only the first line of the output, which has the name server's address."""
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
    name, colon, queues = text.partition(":")
    if colon and not (queues.isascii() and queues.isdecimal() and 0 < int(queues) <= MAX_QUEUES):
        raise typer.BadParameter(
            f"{text!r} is not name:queues, such as orders:4, with up to {MAX_QUEUES} queues", param_hint="--topic"
        )
    return topic_name(name, "--topic"), int(queues or DEFAULT_QUEUES)


ENGINES = ("local", "spark")


def demo(
    seconds: Annotated[
        float | None, typer.Option("--seconds", min=0.1, help="End after this time in seconds; default: on Ctrl-C")
    ] = None,
    messages: Annotated[int | None, typer.Option("--messages", min=1, help="End after this number of orders")] = None,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="Configuration file or folder; default: the sample")
    ] = None,
    group: Annotated[
        str | None, typer.Option("--group", help="Group of --config; default: the first", autocompletion=group_names)
    ] = None,
    engine: Annotated[
        str,
        typer.Option(
            "--engine",
            metavar="local|spark",
            help="local, or spark to run the group on Spark",
            autocompletion=one_of(*ENGINES),
        ),
    ] = "local",
) -> None:
    """Run a RocketMQ, a producer of orders and a consumer group in this process, and watch them.

    The broker is rmqd's embedded one, in memory, on loopback. The group is the sample configuration's, or the first
    group of --config with its own handler; the orders then go to the topics that it subscribes to. Its retries are
    delivered after seconds instead of minutes. With --engine spark it runs on Spark, in separate processes on this
    machine. On a terminal the view is live, elsewhere it prints a line per second.

    Ctrl-C stops the producer, lets the group handle the stored messages, and prints a summary. A second one ends it at
    once.

    Example: rmqd demo --seconds 30
    """
    if engine not in ENGINES:
        raise typer.BadParameter(f"unknown engine {engine!r}; expected {' or '.join(ENGINES)}", param_hint="--engine")
    if engine == "spark" and find_spec("pyspark") is None:
        cure = f"run {install_command('spark')}, or use local"
        typer.echo(f"rmqd demo: --engine spark: PySpark is not installed; {cure}", err=True)
        raise typer.Exit(ExitCode.CONFIG)

    event_loop.disable_gc_for_start()
    event_loop.exit_process(demo_run.run_demo(demo_orders.DemoOptions(config, group, seconds, messages, engine=engine)))
