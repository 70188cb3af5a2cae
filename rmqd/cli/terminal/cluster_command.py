"""The common parts of commands against a cluster: finding it, a client without a group, exit codes.

The common part of commands that show a cluster's groups, topics and messages.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn, TypeVar

import typer

from rmqd.cli.terminal.commands import Failed
from rmqd.cli.terminal.output import say
from rmqd.client.client_options import NAMESRV_ADDR
from rmqd.errors import ExitCode

if TYPE_CHECKING:
    from rmqd.client.brokers import Brokers
    from rmqd.client.client_options import ClientOptions
    from rmqd.client.instance import ClientInstance
    from rmqd.config.model.root_model import RootConfig
    from rmqd.errors import RmqdError


Answer = TypeVar("Answer")

NameServer = Annotated[
    str | None,
    typer.Option(
        "--nameserver",
        "-n",
        metavar="HOST:PORT",
        help='Name servers, as "host:port;host:port"; default: the configuration\'s, then $NAMESRV_ADDR',
    ),
]
ConfigPath = Annotated[
    Path | None,
    typer.Option("--config", "-c", help="File or folder; default: $RMQD_CONFIG, config/rmqd.yaml, /etc/rmqd"),
]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a value, as a.b=c; repeatable")
]
Cluster = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="NAME",
        help="A cluster of the configuration; default: the cluster for groups without one",
    ),
]


@dataclass(frozen=True, slots=True)
class ClusterTarget:
    """The target of a command: the configuration, if any, and the requested cluster."""

    config: RootConfig | None
    cluster: str | None = None
    group: str = ""
    """The group of the command, which may name its cluster."""
    nameservers: tuple[str, ...] = ()
    """Name servers that replace the cluster's own."""
    without_config: ClientOptions | None = None
    state_root: str = ""
    """Without a configuration: the folder of local state given by `--set`."""

    @property
    def namespaces(self) -> tuple[str, ...]:
        """The namespaces to remove from names in the output."""
        if self.config is not None:
            return self.config.namespaces
        return () if self.without_config is None else (self.without_config.namespace,)

    @property
    def options(self) -> ClientOptions:
        """The client's options for the cluster. Ends the command with 2 if --cluster is needed."""
        return self.options_of(self.group)

    def options_of(self, group: str) -> ClientOptions:
        """Return the client's options for the cluster of a group."""
        from dataclasses import replace

        if self.config is None:
            assert self.without_config is not None
            return self.without_config
        options = self.config.known_clusters[self._cluster_of(self.config, group)].client_options(self.config.state_dir)
        return replace(options, nameservers=self.nameservers) if self.nameservers else options

    @property
    def state_dir(self) -> Path:
        """The folder of local state for the cluster: backups, and notes of commands."""
        from rmqd.config.model.root_model import RootConfig

        if self.config is not None:
            return Path(self.config.state_of_cluster(self._cluster_of(self.config, self.group)))
        return Path(self.state_root or RootConfig.model_fields["state_dir"].default)

    def _cluster_of(self, config: RootConfig, group: str) -> str:
        known = config.known_clusters
        is_by_group = self.cluster is None and group in config.groups
        name = config.cluster_name(group) if is_by_group else self.cluster or config.default_cluster
        if name not in known:
            wrong = "missing" if name is None else f"unknown cluster {name}"
            raise typer.BadParameter(f"{wrong}; expected one of {', '.join(known)}", param_hint="--cluster")
        return name


def find_target(
    nameserver: str | None,
    config: Path | None,
    overrides: list[str] | None,
    cluster: str | None = None,
    *,
    group: str = "",
) -> ClusterTarget:
    """Return the cluster at `--nameserver`, else the configuration's, else $NAMESRV_ADDR's.

    `group` is the command's group: without `--cluster`, its cluster is used. Ends the command with 78 if that is wrong.

    With only `--nameserver`, and with $NAMESRV_ADDR, no configuration is read, so the command works on a machine
    without one. The keys are then read from the environment, and `--set` may give more connection settings.
    """
    from rmqd.client.routing.name_server_client import parse_addresses

    named_by = "--nameserver"
    if nameserver is None and not _has_config(config):
        nameserver, named_by = os.environ.get(NAMESRV_ADDR) or None, f"${NAMESRV_ADDR}"
    addresses = parse_addresses(nameserver or "")
    if nameserver is not None:
        _check_addresses(nameserver, addresses, named_by)
        if config is None and not overrides and cluster is None:
            return ClusterTarget(None, without_config=_by_environment(addresses))
    from rmqd.config.load import Loading, load_config  # imports pydantic, which a bare --nameserver does not need
    from rmqd.config.reading.config_source import bare_source, find_config
    from rmqd.errors import ConfigError

    try:
        if nameserver is not None and config is None and not _exists(find_config):
            bare = Loading(bare_source([f"nameserver={nameserver}", *(overrides or ())])).trusted()
            return ClusterTarget(None, without_config=bare.client_options(bare.state_dir), state_root=bare.state_dir)
        settings = load_config(config, overrides or ())
    except ConfigError as error:
        also = "" if _has_config(config) else f"; a cluster alone is named with --nameserver or ${NAMESRV_ADDR}"
        fail(ExitCode.CONFIG, problems=(f"{problem}{also}" for problem in error.problems))
    return ClusterTarget(settings, cluster, group, addresses)


def ask_cluster(options: ClientOptions, question: Callable[[ClientInstance], Awaitable[Answer]]) -> Answer:
    """Ask a question with a client that is not a member of a group.

    Ends the command with 69 if RocketMQ does not answer, and with 1 if it refuses.
    """
    import asyncio

    from rmqd.errors import BrokerAwayError, RemotingError, RmqdError
    from rmqd.runtime.logs.log_setup import configure_logging
    from rmqd.wire.topics import without_namespace

    # Errors are reported once, by the exit message. Standard output contains only data.
    configure_logging("critical", "console")
    try:
        return asyncio.run(_with_client(options, question))
    except (RemotingError, BrokerAwayError) as error:
        reason = without_namespace(str(error), options.namespace)
        fail(ExitCode.UNAVAILABLE, f"rmqd: RocketMQ cannot be reached: {reason}")
    except RmqdError as error:
        fail(ExitCode.FAILURE, f"rmqd: {without_namespace(str(error), options.namespace)}")


async def known_cluster_id(client: ClientInstance) -> str:
    """The id of the cluster, if it has one. Gives it none."""
    await client.cluster_id.learn(may_write=False)
    return client.cluster_id.id


def wrapped(name: str, namespace: str) -> str:
    """Return the name of a topic or group as brokers know it."""
    from rmqd.wire.topics import wrap_namespace

    return wrap_namespace(name, namespace)


def end_for_errors(errors: Mapping[str, RmqdError], namespaces: Iterable[str], more: Iterable[str] = ()) -> None:
    """End the command with 69 or 1 if there are errors or `more` lines."""
    from rmqd.errors import BrokerAwayError, RemotingError
    from rmqd.wire.topics import without_namespace

    lines = [*(f"rmqd: {where}: {error}" for where, error in errors.items()), *more]
    for namespace in namespaces:
        lines = without_namespace(lines, namespace)
    if lines:
        unreachable = any(isinstance(error, (RemotingError, BrokerAwayError)) for error in errors.values())
        code = ExitCode.UNAVAILABLE if unreachable else ExitCode.FAILURE
        fail(code, lines[0], problems=lines[1:], has_printed=True)


def fail(code: int, error: str = "", *, problems: Iterable[str] = (), has_printed: bool = False) -> NoReturn:
    """End the command with lines on standard error: the error, and the single problems.

    With `-o json` they are also written to standard output as a document, unless it has one already (`has_printed`).
    """
    listed = list(problems)
    say([*filter(None, [error]), *listed], err=True)
    said = error.removeprefix("rmqd: ") or "the configuration is wrong"
    raise Failed(code, None if has_printed else {"error": said, "problems": listed})


async def _with_client(options: ClientOptions, question: Callable[[ClientInstance], Awaitable[Answer]]) -> Answer:
    from rmqd.client.instance import ClientInstance
    from rmqd.errors import RouteNotFoundError

    # The client's `run` is not called, so it sends no heartbeats.
    client = ClientInstance(options)
    try:
        return await question(client)
    except RouteNotFoundError:
        await expect_brokers(client)
        raise
    finally:
        await client.remoting.close()


async def expect_brokers(client: ClientInstance) -> None:
    """Raise NoBrokerError if all brokers are unreachable: a missing route then proves nothing."""
    from rmqd.client.brokers import Brokers

    await Brokers.look_up(client)


def _by_environment(addresses: tuple[str, ...]) -> ClientOptions:
    from rmqd.client.client_options import ClientOptions

    access_key, secret_key, token = (
        os.environ.get(name, "") for name in ("RMQD_ACCESS_KEY", "RMQD_SECRET_KEY", "RMQD_SECURITY_TOKEN")
    )
    if bool(access_key) != bool(secret_key):
        fail(ExitCode.CONFIG, "rmqd: RMQD_ACCESS_KEY and RMQD_SECRET_KEY belong together; expected both or neither")
    return ClientOptions(
        nameservers=addresses, access_key=access_key, secret_key=secret_key, security_token=token if access_key else ""
    )


def _has_config(config: Path | None) -> bool:
    """Whether there is a configuration, or one is named. Loading it takes $NAMESRV_ADDR into account."""
    from rmqd.config.reading.config_source import find_config

    return config is not None or bool(os.environ.get("RMQD_CONFIG")) or _exists(find_config)


def _exists(find: Callable[[Path | None], Path]) -> bool:
    try:
        return bool(find(None))
    except FileNotFoundError:
        return False


def _check_addresses(text: str, addresses: tuple[str, ...], named_by: str) -> None:
    for address in addresses or (text,):
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise typer.BadParameter(
                f'{address!r} is not an address; expected host:port or "host:port;host:port"', param_hint=named_by
            )


T = TypeVar("T")
Question = Callable[["Brokers", str], Awaitable[tuple[T, Mapping[str, "RmqdError"]]]]
"""Queries the brokers, in a namespace. Returns the result, and the errors of other parts."""

WithSystem = Annotated[bool, typer.Option("--all", help="Include RocketMQ's own")]


def run_query(target: ClusterTarget, question: Question[T], show: Callable[[T], None]) -> None:
    """Query the brokers of a cluster, print the result, and end the command if a query failed."""
    from rmqd.client.brokers import Brokers
    from rmqd.wire.topics import without_namespace

    options = target.options

    async def ask(client: object) -> tuple[T, Mapping[str, RmqdError]]:
        from rmqd.client.instance import ClientInstance

        assert isinstance(client, ClientInstance)
        return await question(await Brokers.look_up(client), options.namespace)

    found, errors = ask_cluster(options, ask)
    show(without_namespace(found, options.namespace))
    end_for_errors(errors, [options.namespace])
