"""The parts that commands against a cluster share: options, connection, queries, confirmation and exit codes."""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from rmqd.cli.terminal.commands import fail
from rmqd.cli.terminal.options import ConfigPath, Output, Overrides
from rmqd.cli.terminal.output import Answer, say, say_json, to_document
from rmqd.errors import BrokerUnknownError, ConfigError, ExitCode, RemotingError, RmqdError, RouteNotFoundError
from rmqd.runtime.lazy_imports import import_lazily
from rmqd.wire.topics import without_namespace, wrap_namespace

with import_lazily():
    from rmqd.client import brokers as broker_queries
    from rmqd.client import client_options, instance
    from rmqd.client.routing import name_server_client
    from rmqd.config import load
    from rmqd.config.model import group_model, root_model
    from rmqd.config.reading import config_source
    from rmqd.consumer import consumer_options
    from rmqd.plugins import model_options
    from rmqd.runtime.logs import log_setup


@dataclass(frozen=True, slots=True)
class ClusterTarget:
    """The cluster of a command. If there is no configuration, `without_config` has the client options."""

    config: root_model.RootConfig | None
    cluster: str | None = None
    group: str = ""
    """The group that the command is about, or "". Without `--cluster`, the configured cluster of the group is used."""
    nameservers: tuple[str, ...] = ()
    """The name servers of `--nameserver`, which replace those in the configuration; empty without the option."""
    without_config: client_options.ClientOptions | None = None
    state_root: str = ""
    """Without a configuration, the folder for local state from `--set state_dir=PATH`; empty for the default."""

    @property
    def namespaces(self) -> tuple[str, ...]:
        """The namespaces of all known clusters. The output shows names without them."""
        if self.config is not None:
            return self.config.namespaces
        return () if self.without_config is None else (self.without_config.namespace,)

    @property
    def groups(self) -> Mapping[str, group_model.GroupConfig]:
        """The configured groups; none without a configuration."""
        return {} if self.config is None else self.config.groups

    @property
    def options(self) -> client_options.ClientOptions:
        """The client options for the cluster. Ends the command with 2 if `--cluster` is missing or unknown."""
        return self.options_of(self.group)

    def options_of(self, group: str) -> client_options.ClientOptions:
        if self.config is None:
            assert self.without_config is not None
            return self.without_config
        options = self.config.known_clusters[self._cluster_of(self.config, group)].client_options(self.config.state_dir)
        return replace(options, nameservers=self.nameservers) if self.nameservers else options

    @property
    def state_dir(self) -> Path:
        """The folder for the local state of the cluster, such as backups and marks of settled dead letters."""
        if self.config is not None:
            return Path(self.config.state_dir_of_cluster(self._cluster_of(self.config, self.group)))
        return Path(self.state_root or root_model.RootConfig.model_fields["state_dir"].default)

    def with_namespace(self, name: str) -> str:
        """Return the name of a topic or group with the cluster's namespace, as brokers know it."""
        return wrap_namespace(name, self.options.namespace)

    def for_output(self, value: Answer) -> Answer:
        """Return a copy of a value for output, without the namespace in names of topics and groups."""
        return without_namespace(value, self.options.namespace)

    def ask(self, question: Callable[[instance.ClientInstance], Awaitable[Answer]]) -> Answer:
        """Return the result of `question`, called with a client for the cluster. An error ends the command."""
        return ask_cluster(self.options, question)

    def ask_brokers(self, question: Callable[[broker_queries.Brokers], Awaitable[Answer]]) -> Answer:
        """Return the result of `question`, called with the brokers of the cluster. An error ends the command."""

        async def ask(client: instance.ClientInstance) -> Answer:
            return await question(await broker_queries.Brokers.from_name_server(client))

        return self.ask(ask)

    def _cluster_of(self, config: root_model.RootConfig, group: str) -> str:
        known = config.known_clusters
        is_by_group = self.cluster is None and group in config.groups
        name = config.cluster_name(group) if is_by_group else self.cluster or config.default_cluster
        if name not in known:
            wrong = "missing" if name is None else f"unknown cluster {name}"
            raise typer.BadParameter(f"{wrong}; expected one of {', '.join(known)}", param_hint="--cluster")
        return name


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """The options that commands against a cluster share."""

    nameserver: Annotated[
        str | None,
        typer.Option(
            "--nameserver",
            "-n",
            metavar="HOST:PORT",
            help=(
                'Name servers, as "host:port;host:port"; default: the configuration\'s, then $NAMESRV_ADDR. '
                "Without -c, --set and --cluster, the configuration's keys and state_dir are not used"
            ),
        ),
    ] = None
    config: ConfigPath = None
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster",
            metavar="NAME",
            help="A cluster of the configuration; default: the cluster for groups without one",
        ),
    ] = None
    overrides: Overrides = None
    output: Output = "table"

    @property
    def as_json(self) -> bool:
        return self.output == "json"

    def say(self, document: object, lines: Iterable[str]) -> None:
        """Print the document with `-o json`, otherwise the lines."""
        if self.as_json:
            say_json(document)
        else:
            say(lines)

    def target(self, group: str = "") -> ClusterTarget:
        """Return the cluster of `--nameserver`; without this option, of the configuration, or else of $NAMESRV_ADDR.

        `group` is the group that the command is about: without `--cluster`, its configured cluster is used. Ends the
        command with 78 or 2 if an option is wrong.

        If only `--nameserver` is given, or $NAMESRV_ADDR is used, no configuration is needed. Access keys are then read
        from the environment. If no configuration exists, `--set` can set the connection's settings.
        """
        nameserver, named_by = self.nameserver, "--nameserver"
        if nameserver is None and not _has_config(self.config):
            named_by = f"${client_options.NAMESRV_ADDR}"
            nameserver = os.environ.get(client_options.NAMESRV_ADDR) or None
        addresses = name_server_client.parse_addresses(nameserver or "")
        if nameserver is not None:
            _check_addresses(nameserver, addresses, named_by)
            if self.config is None and not self.overrides and self.cluster is None:
                return ClusterTarget(None, without_config=_by_environment(addresses))
        try:
            if nameserver is not None and self.config is None and not _finds_config():
                bare = load.ConfigProblems(
                    config_source.files_from_overrides([f"nameserver={nameserver}", *(self.overrides or ())])
                ).checked_config()
                return ClusterTarget(
                    None, without_config=bare.client_options(bare.state_dir), state_root=bare.state_dir
                )
            settings = load.load_config(self.config, self.overrides or ())
        except ConfigError as error:
            also = ""
            if not _has_config(self.config):
                also = f"; without a configuration, give --nameserver or set ${client_options.NAMESRV_ADDR}"
            fail(ExitCode.CONFIG, problems=(f"{problem}{also}" for problem in error.problems))
        return ClusterTarget(settings, self.cluster, group, addresses)

    def show(
        self,
        target: ClusterTarget,
        question: Callable[[broker_queries.Brokers], Awaitable[tuple[Answer, Mapping[str, RmqdError]]]],
        text: Callable[[Any], None],
        document: Callable[[Answer], object] = to_document,
    ) -> None:
        """Query the brokers with `question`, convert the result with `document`, and print it as JSON or with `text`.

        Ends the command with 69 or 1 if a query failed.
        """
        found, errors = target.ask_brokers(question)
        shown = document(target.for_output(found))
        if self.as_json:
            say_json(shown)
        else:
            text(shown)
        end_for_errors(errors, [target.options.namespace])


@dataclass(frozen=True, slots=True)
class Confirmation:
    """The options of commands that change a cluster. Such commands show a plan first, and ask for confirmation."""

    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation")] = False
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the plan")] = False

    def ask(self, plan: Iterable[str], *, as_json: bool, document: object = None) -> None:
        """Print the lines of a plan and ask for confirmation. Ends the command with --dry-run, or if the answer is no.

        With `-o json`, the plan is printed to standard error, because standard output must contain only JSON. With
        `-o json` and --dry-run, `document` is printed to standard output.
        """
        if as_json and self.dry_run and document is not None:
            say_json(document)
        say(plan, err=as_json)
        if self.dry_run:
            raise typer.Exit(ExitCode.OK)
        if self.yes:
            return
        if not sys.stdin.isatty():
            fail(
                ExitCode.FAILURE, "rmqd: nothing was changed, because there is no terminal for confirmation; use --yes"
            )
        if code := _refusal(as_json):
            fail(code, "rmqd: nothing was changed")


def _refusal(err: bool) -> int:
    """Ask the user for confirmation. Returns 0 for yes, otherwise the command's exit code."""
    try:
        return ExitCode.OK if typer.confirm("Do it?", err=err) else ExitCode.FAILURE
    except (typer.Abort, KeyboardInterrupt) as end:  # the user pressed Ctrl-C or Ctrl-D
        typer.echo(err=True)
        by_ctrl_c = isinstance(end, KeyboardInterrupt) or isinstance(end.__context__, KeyboardInterrupt)
        return ExitCode.INTERRUPTED if by_ctrl_c else ExitCode.FAILURE


@dataclass(frozen=True, slots=True)
class ConfigGroup:
    """One configured group, for commands that run its handler. Its handler is installed and has valid options."""

    name: str
    config: root_model.RootConfig
    """The configuration with only this group and its cluster."""
    settings: group_model.GroupConfig
    options: consumer_options.ConsumerOptions
    target: ClusterTarget

    @classmethod
    def find(cls, cluster: ClusterOptions, name: str, *, canary: bool = False) -> ConfigGroup:
        """Return a group of the configuration. With `canary`, the group's canary replaces its handler.

        Raises ConfigError. Ends the command with 2 if the group is unknown, or has no handler or no canary.
        """
        config = model_options.load_runnable(cluster.config, cluster.overrides or (), groups=[name])
        if name not in config.groups:
            known = ", ".join(config.groups) or "none"
            raise typer.BadParameter(f"unknown group {name}; expected one of {known}", param_hint="GROUP")
        settings = config.groups[name]
        if settings.handler is None:
            raise typer.BadParameter(f"{name} has a pipeline; expected a group with a handler", param_hint="GROUP")
        if canary:
            if settings.handler.canary is None:
                raise typer.BadParameter(f"{name} has no canary; set handler.canary", param_hint="--canary")
            settings = settings.promoted
            config = config.model_copy(update={"groups": {**config.groups, name: settings}})
        options = model_options.consumer_options(config, name)
        return cls(name, config.of_group(name), settings, options, cluster.target(name))


def ask_cluster(
    options: client_options.ClientOptions, question: Callable[[instance.ClientInstance], Awaitable[Answer]]
) -> Answer:
    """Return the result of `question`, called in an event loop with a client that is not a member of any group.

    Ends the command with 69 if RocketMQ cannot be reached, and with 1 for another RmqdError.
    """
    import asyncio

    # Logging is turned off, because the message at the command's end reports errors.
    log_setup.configure_logging("critical", "console")
    try:
        return asyncio.run(_with_client(options, question))
    except (RemotingError, BrokerUnknownError) as error:
        reason = without_namespace(str(error), options.namespace)
        fail(ExitCode.UNAVAILABLE, f"rmqd: RocketMQ cannot be reached: {reason}")
    except RmqdError as error:
        fail(ExitCode.FAILURE, f"rmqd: {without_namespace(str(error), options.namespace)}")


async def _with_client(
    options: client_options.ClientOptions, question: Callable[[instance.ClientInstance], Awaitable[Answer]]
) -> Answer:
    # `client.run` is not called, so the client sends no heartbeats.
    client = instance.ClientInstance(options)
    try:
        return await question(client)
    except RouteNotFoundError:
        # raises if no broker is known: this may explain the missing route
        await broker_queries.Brokers.from_name_server(client)
        raise
    finally:
        await client.remoting.close()


def end_for_errors(errors: Mapping[str, RmqdError], namespaces: Iterable[str], more: Iterable[str] = ()) -> None:
    """If there are errors or lines in `more`, print them and end the command with 69 (a server is unreachable) or 1."""
    lines = [*(f"rmqd: {where}: {error}" for where, error in errors.items()), *more]
    for namespace in namespaces:
        lines = without_namespace(lines, namespace)
    if lines:
        unreachable = any(isinstance(error, (RemotingError, BrokerUnknownError)) for error in errors.values())
        code = ExitCode.UNAVAILABLE if unreachable else ExitCode.FAILURE
        fail(code, lines[0], problems=lines[1:], has_printed=True)


def _by_environment(addresses: tuple[str, ...]) -> client_options.ClientOptions:
    access_key, secret_key, token = (
        os.environ.get(name, "") for name in ("RMQD_ACCESS_KEY", "RMQD_SECRET_KEY", "RMQD_SECURITY_TOKEN")
    )
    if bool(access_key) != bool(secret_key):
        fail(ExitCode.CONFIG, "rmqd: RMQD_ACCESS_KEY and RMQD_SECRET_KEY belong together; expected both or neither")
    return client_options.ClientOptions(
        nameservers=addresses, access_key=access_key, secret_key=secret_key, security_token=token if access_key else ""
    )


def _has_config(config: Path | None) -> bool:
    """Return whether a configuration was named or exists. If so, loading it also applies $NAMESRV_ADDR."""
    return config is not None or bool(os.environ.get("RMQD_CONFIG")) or _finds_config()


def _finds_config() -> bool:
    try:
        return bool(config_source.find_config(None))
    except ConfigError:
        return False


def _check_addresses(text: str, addresses: tuple[str, ...], named_by: str) -> None:
    for address in addresses or (text,):
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise typer.BadParameter(
                f'{address!r} is not an address; expected host:port or "host:port;host:port"', param_hint=named_by
            )
