"""`rmqd run` (the daemon), `rmqd dev` (the daemon with a RocketMQ and a prompt) and `rmqd _worker` (a worker)."""

from __future__ import annotations

import os
import re
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from rmqd.cli.terminal.options import ConfigPath, Overrides, group_names
from rmqd.cli.terminal.output import say
from rmqd.errors import ConfigError, RmqdError
from rmqd.runtime.lazy_imports import import_lazily

with import_lazily():
    from rmqd.config import load
    from rmqd.config.reading import config_source, yaml_tree
    from rmqd.daemon import daemon
    from rmqd.daemon.http import http_endpoint
    from rmqd.daemon.workers import worker_main
    from rmqd.demo import demo_play
    from rmqd.runtime import event_loop, files
    from rmqd.runtime.logs import log_setup
    from rmqd.testing import rocketmq as testing_rocketmq


def run(
    config: ConfigPath = None,
    overrides: Overrides = None,
    groups: Annotated[
        list[str] | None, typer.Option("--group", help="Run only this group; repeatable", autocompletion=group_names)
    ] = None,
    workers: Annotated[
        int, typer.Option("--workers", min=1, max=64, help="Processes that share the groups' queues")
    ] = 1,
    reload: Annotated[
        bool, typer.Option("--reload", help="For development: restart a group when files of its handler change")
    ] = False,
) -> None:
    """Run the consumer groups of a configuration until a signal.

    SIGTERM or SIGINT drains and exits with 0; a second one ends the drain at once and exits with 128 + its number.
    SIGHUP reloads the configuration; an invalid one changes nothing.

    With --reload, a group continues in a new process, after a drain, when a file of its handler's package changes. If
    the changed code cannot be imported, the group pauses, and the log shows the error, until it is fixed.

    Example: rmqd run --config /etc/rmqd/rmqd.yaml --set log.level=debug --group order-mailer
    """
    event_loop.disable_gc_for_start()
    if reload:
        write_no_bytecode()
    options = daemon.RunOptions(config, tuple(overrides or ()), tuple(groups or ()), workers, reload)
    event_loop.exit_process(daemon.run_daemon(options))


_NAME_SERVER, _QUEUES = "127.0.0.1:9876", 4


def dev(
    file: Annotated[
        Path | None, typer.Argument(help="Configuration file or folder; default: as for rmqd run", show_default=False)
    ] = None,
    overrides: Overrides = None,
) -> None:
    """Run the groups of a configuration for development, with a RocketMQ and a prompt to send messages.

    The RocketMQ is rmqd's embedded one, in memory, with the topics of the configuration. Its name servers and client
    settings are not used. Port 9876 is used if it is free, so that other commands find it; otherwise the output has the
    option that they need. Retries are delivered after seconds. Saving the configuration reloads it, saving a handler's
    file restarts its group.

    A line of input sends a message: TOPIC BODY, or TOPIC --keys K --tags T --property NAME=VALUE BODY. Ctrl-C ends it.

    Example: rmqd dev config/rmqd.yaml
    """
    event_loop.disable_gc_for_start()
    write_no_bytecode()
    log_setup.configure_logging("warning", "auto")
    options = replace(demo_play.demo_broker(()), port=int(_free_address(_NAME_SERVER).rpartition(":")[2]))
    with tempfile.TemporaryDirectory(prefix="rmqd-dev-") as folder, testing_rocketmq.RocketMQ(options) as rocketmq:
        path = config_source.find_config(file)
        local = [*(overrides or ()), *_local_settings(path, rocketmq.nameserver), f"state_dir={folder}"]
        listen = load.load_config(path, local).http.listen
        http = _free_address(listen)
        session = DevSession(path, (*local, f"http.listen={http}"), rocketmq)
        say([f"RocketMQ {rocketmq.nameserver}, in memory; status page http://{http}/; saved files apply at once"])
        addresses = (("send --nameserver", _NAME_SERVER, rocketmq.nameserver), ("status --http", listen, http))
        if others := [f"rmqd {command} {used}" for command, preferred, used in addresses if used != preferred]:
            say([f"other addresses than usual, so in other terminals: {', '.join(others)}"])
        say([f"send a message: {session.example}    Ctrl-C ends"])
        sys.stdout.flush()
        for work in (session.send_lines, session.watch):
            threading.Thread(target=work, daemon=True).start()
        code = daemon.run_daemon(daemon.RunOptions(path, session.overrides, reload=True))
    event_loop.exit_process(code)


def _free_address(preferred: str) -> str:
    """Return the preferred address or, if it is in use, an address of this machine with a free port."""
    for address in (preferred, "127.0.0.1:0"):
        try:
            with http_endpoint.listen_on(address) as sock:
                return http_endpoint.address_of(sock)
        except http_endpoint.ListenError:
            continue
    return preferred


def _local_settings(path: Path, nameserver: str) -> Iterator[str]:
    """Yield overrides that connect each configured cluster to `nameserver`, with default client settings."""
    tree = config_source.read_source(path).tree
    clusters = tree.entries["clusters"].node if "clusters" in tree.entries else None
    named = [f"clusters.{name}." for name in clusters.entries] if isinstance(clusters, yaml_tree.YamlMapping) else []
    for cluster in named if named and not {"nameserver", "nameserver_url"} & tree.entries.keys() else ["", *named]:
        yield from (f"{cluster}nameserver={nameserver}", f"{cluster}nameserver_url=", f"{cluster}client={{}}")


class DevSession:
    """The two threads of `rmqd dev`: one reads messages from the prompt, one reloads saved configuration files."""

    def __init__(self, path: Path, overrides: tuple[str, ...], rocketmq: testing_rocketmq.RocketMQ) -> None:
        self.overrides = overrides
        self._path = path
        self._rocketmq = rocketmq
        self._topics: dict[str, str] = {}  # with their tag expressions
        self._create_topics()

    @property
    def example(self) -> str:
        """A line that a user can type at the prompt to send a message."""
        topic, expression = next(iter(self._topics.items()), ("TOPIC", "*"))
        # a tag with spaces cannot be typed at the prompt
        tag = re.match(r"[\s|]*([^\s|*]+)\s*(?:\|\||$)", expression)
        return f'{topic}{f" --tags {tag[1]}" if tag else ""} {{"id": "order-1", "total": 12}}'

    def send_lines(self) -> None:
        """Send each line of standard input as a message. At the end of a terminal's input (Ctrl-D), stop the daemon."""
        for line in sys.stdin:
            if line.strip():
                say([self._send(line.strip())])
                sys.stdout.flush()
        if sys.stdin.isatty():
            os.kill(os.getpid(), signal.SIGINT)

    def _send(self, line: str) -> str:
        match = re.fullmatch(r"(\S+)((?:\s+--(?:keys|tags|property)\s+\S+)*)\s+(.+)", line)
        if match is None or match[1] not in self._topics:
            expected = (
                f"TOPIC [--keys K] [--tags T] [--property NAME=VALUE] BODY, TOPIC one of {', '.join(self._topics)}"
            )
            return f"not sent; expected {expected}"
        options = re.findall(r"--(\w+)\s+(\S+)", match[2])
        properties = dict(value.partition("=")[::2] for name, value in options if name == "property")
        given = {name: value for name, value in options if name != "property"}
        try:
            sent = self._rocketmq.send(match[1], match[3], properties=properties, **given)
        except (RmqdError, ValueError) as error:
            return f"not sent: {error}"
        return f"sent {sent.msg_id}  {match[1]}  queue {sent.queue.queue_id}  offset {sent.queue_offset}"

    def watch(self) -> None:
        """When a file of the configuration is saved, create topics for new subscriptions and reload the daemon."""
        root, groups = config_source.config_files(self._path)
        folders = {root.parent, root.parent / config_source.GROUPS_FOLDER, *(file.parent for file in groups)}
        watched = files.FileWatch(inside=folders, endings=(root.suffix, ".yaml", ".yml"))
        while not threading.Event().wait(files.POLL_SECONDS):
            if watched.changes():
                self._create_topics()
                os.kill(os.getpid(), signal.SIGHUP)

    def _create_topics(self) -> None:
        try:
            config = load.load_config(self._path, self.overrides)
        except ConfigError:
            return  # the daemon's reload reports this error
        self._topics = {
            topic: wanted.expression if wanted.kind == "TAG" else "*"
            for group in config.groups.values()
            for topic, wanted in group.subscriptions.items()
        }
        for topic in self._topics:
            self._rocketmq.create_topic(topic, _QUEUES)


def write_no_bytecode() -> None:
    """Stop this process and its workers from writing compiled modules.

    Python would run the old compiled module if an edit changes neither a file's size nor its time in whole seconds.
    """
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"


def worker(descriptor: Annotated[int, typer.Argument(help="The inherited socket to the parent")]) -> None:
    """Serve the parent process at the other end of an inherited socket.

    Only rmqd run can start it.
    """
    event_loop.disable_gc_for_start()
    event_loop.exit_process(worker_main.run_worker(descriptor))
