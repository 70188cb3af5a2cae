"""`rmqd check`: checks a configuration and its handlers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated, Any, Final

import typer

from rmqd.cli.terminal.commands import fail
from rmqd.cli.terminal.options import ConfigPath, Output, Overrides
from rmqd.cli.terminal.output import say, say_json
from rmqd.errors import ConfigError, ExitCode, RmqdError
from rmqd.runtime.lazy_imports import import_lazily
from rmqd.runtime.plain_text import duration

with import_lazily():
    from rmqd.cli import check_connect
    from rmqd.config import load
    from rmqd.config import problems as config_problems
    from rmqd.config.model import group_model, root_model, spark_model
    from rmqd.config.reading import config_source, yaml_tree
    from rmqd.plugins import handler_catalogue, model_options, strategies
    from rmqd.runtime import value_kinds
    from rmqd.wire.bodies import heartbeat_data


def check(
    config: ConfigPath = None,
    overrides: Overrides = None,
    connect: Annotated[bool, typer.Option("--connect", help="Also check the cluster")] = False,
    show: Annotated[
        bool, typer.Option("--show", help="Print each group with defaults applied, and where an inherited key is")
    ] = False,
    output: Output = "table",
    file: Annotated[str | None, typer.Argument(hidden=True)] = None,
) -> None:
    """Check a configuration and its handlers; with --connect also the cluster.

    Every problem is one line on standard error, FILE:LINE:COLUMN: KEY: the problem and the expected value; then the
    command exits with 78. Handlers are imported and created with their options, but not started; installed hooks are
    created as well. If a group runs on Spark, PySpark and Java must be installed.

    With --show it prints the keys that each group sets or inherits from `defaults`, the latter with their lines.

    With --connect the command also checks that name servers and brokers answer, topics exist and can be read, the group
    may consume, the user has a member's rights, brokers accept the SQL filters, and other members of the group have the
    same subscriptions. It only reads, and does not join the group. It exits with 1 if something differs, and with 69 if
    a server does not answer.

    Example: rmqd check --config /etc/rmqd/rmqd.yaml --connect
    """
    if file is not None:
        raise typer.BadParameter(f"the configuration is an option; use rmqd check --config {file}")
    try:
        checked = _checked(config, overrides or [])
    except ConfigError as error:
        if output == "json":
            say_json({"ok": False, "groups": [], "problems": [_problem(problem) for problem in error.problems]})
        fail(ExitCode.CONFIG, problems=map(str, error.problems), has_printed=True)
    warnings = (
        config_source.exposed_secrets(config),
        _limited_calls(checked),
        _idle_keys(checked),
        _filters_without_match(checked),
    )
    say((f"warning: {one}" for found in warnings for one in found), err=True)
    checks, code = list[check_connect.CheckResult](), ExitCode.OK
    if connect:
        checks = check_connect.check_cluster(checked)
        code = check_connect.exit_code(checks)
    if output == "json":
        document: dict[str, Any] = {"ok": code == ExitCode.OK, "groups": list(checked.groups), "problems": []}
        document |= {"checks": [asdict(one) for one in checks]} if connect else {}
        say_json(document | ({"settings": _settings(checked)} if show else {}))
    else:
        say([*(_setting_lines(checked) if show else _ok_lines(checked)), *(one.line() for one in checks)])
    raise typer.Exit(code)


def _checked(path: ConfigPath, overrides: list[str]) -> root_model.RootConfig:
    """Load the configuration, and create its handlers once to check them. Raises ConfigError."""
    config = model_options.load_runnable(path, overrides)
    problems: list[object] = []
    try:
        if any(group.hooks != "none" for group in config.groups.values()):
            strategies.load_hooks()
    except ConfigError as error:
        problems += error.problems
    for name, group in config.groups.items():
        if group.handler is None:
            continue  # the group has a pipeline, which `load_runnable` has checked
        try:
            handler = handler_catalogue.load_handler(name, group)
            if group.handler.canary is not None and not group.handler.processes:
                handler_catalogue.load_canary(name, group, handler)
        except ConfigError as error:
            problems += error.problems
    problems += _spark_problems(config)
    if problems:
        raise ConfigError(problems)
    return config


def _limited_calls(config: root_model.RootConfig) -> Iterator[object]:
    """Yield a problem for each group that makes more concurrent calls than its handler's own options allow."""
    for name, group in config.groups.items():
        if group.handler is None or (limit := handler_catalogue.call_limit(group)) is None:
            continue
        is_auto = group.handler.concurrency == "auto"
        wanted = f"auto (up to {group.handler.max_concurrent_calls})" if is_auto else group.handler.concurrency
        yield group.problem(
            name,
            ("handler", "concurrency"),
            f"{wanted} is above {limit.option} of the handler {group.handler.plugin}, which is {limit.calls}: more "
            f"calls wait in the handler; expected at most {limit.calls}, or a larger {limit.option}",
        )


def _idle_keys(config: root_model.RootConfig) -> Iterator[object]:
    """Yield a problem for each configured key that has no effect because of other keys."""
    for name, cluster in config.known_clusters.items():
        if cluster.client.tls.model_fields_set and "enabled" not in cluster.client.tls.model_fields_set:
            at = "client.tls" if cluster is config else f"clusters.{name}.client.tls"
            yield f"{at}: has no effect without enabled: true, so the connections are not encrypted"
    for name, group in config.groups.items():
        retry, circuit = group.retry, group.circuit_breaker
        if circuit.model_fields_set and not circuit.model_fields_set & {"consecutive", "ratio"}:
            message = "has no effect alone; expected consecutive, such as 5, or ratio, such as 0.5"
            yield group.problem(name, ("circuit_breaker",), message, at_key=True)
        if retry.on and not retry.in_place:
            message = "has no effect, because retry.in_place is 0; expected in_place above 0"
            yield group.problem(name, ("retry", "on"), message, at_key=True)
        for one in retry.on:
            if any(_is_same_exception(one, other) for other in group.dead_letter.on):
                message = f"{one} is also in dead_letter.on, which wins; expected only in one of them"
                yield group.problem(name, ("retry", "on"), message)
        if retry.in_place and retry.backoff > retry.max_backoff:
            message = (
                f"longer than max_backoff, so each pause is {duration(retry.max_backoff)}; expected at most max_backoff"
            )
            yield group.problem(name, ("retry", "backoff"), message)
        is_empty = "deduplicate" in group.model_fields_set and group.deduplicate is None
        if is_empty and config.defaults.deduplicate is None:
            message = "empty, so nothing is deduplicated; expected {} for all defaults, or remove this key"
            yield group.problem(name, ("deduplicate",), message, at_key=True)
        if group.consume_message_batch_max_wait_seconds and group.consume_message_batch_max_size == 1:
            message = "a batch of one message is always full; expected consume_message_batch_max_size above 1"
            yield group.problem(name, ("consume_message_batch_max_wait",), message, at_key=True)
        for path, setting in _keys_without_effect(group):
            problem = group.problem(name, path, f"has no effect; set {setting}, or remove this key", at_key=True)
            if problem.path[0] == "groups":  # a key inherited from `defaults` may have an effect in other groups
                yield problem


def _is_same_exception(one: str, other: str) -> bool:
    """Return whether two names of exceptions may mean the same class. Each name may be given with or without module."""
    return one == other or one.endswith(f".{other}") or other.endswith(f".{one}")


_UNORDERED_KEYS: Final = "delay_level_when_next_consume consume_concurrently_max_span"
_CLUSTERING_KEYS: Final = "allocate_strategy queue_handover_timeout delay_level_when_next_consume"


def _keys_without_effect(group: group_model.GroupConfig) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the path of each configured key without effect, and the setting that the key needs to have an effect."""
    strategy, handler, model = group.allocate_strategy, group.handler, group.message_model
    is_orderly, is_pop = group.consume_mode == "orderly", group.consume_mode == "pop"
    written = {value_kinds.key_of_field(name) for name in group.model_fields_set}
    needs = (
        ("consume_timestamp", "consume_from_where: timestamp", group.consume_from_where == "timestamp"),
        ("allocate_queues", "allocate_strategy: by_config", strategy == "by_config"),
        ("machine_rooms", "allocate_strategy: by_machine_room", strategy == "by_machine_room"),
        ("auto_commit", "consume_mode: orderly", is_orderly),
        ("suspend_current_queue_time", "consume_mode: orderly or order_by", is_orderly or group.order_by),
        (_UNORDERED_KEYS, "consume_mode: concurrently", not is_orderly or group.order_by),
        ("trace_topic trace_msg_batch_num", "enable_trace: true", group.enable_trace),
        ("pop_invisible_time pop_batch_nums pop_threshold_for_queue", "consume_mode: pop", is_pop),
        ("max_reconsume_times", "message_model: clustering", is_orderly or model == "clustering"),
        (_CLUSTERING_KEYS, "message_model: clustering", model == "clustering"),
        ("queue_handover_timeout persist_consumer_offset_interval", "engine: local", group.engine == "local"),
    )
    for keys, setting, is_set in needs:
        yield from (((key,), setting) for key in keys.split() if key in written and not is_set)
    if not group.retry.in_place:
        written = {"backoff", "max_backoff"} & group.retry.model_fields_set
        yield from ((("retry", key), "retry.in_place above 0") for key in sorted(written))
    if handler is not None:
        written = handler.model_fields_set
        if "concurrency" in written and handler.processes:
            yield ("handler", "concurrency"), "handler.processes: 0"
        if "max_concurrency" in written and (handler.concurrency != "auto" or handler.processes):
            yield ("handler", "max_concurrency"), "handler.concurrency: auto"


def _filters_without_match(config: root_model.RootConfig) -> Iterator[object]:
    """Yield a problem for each filter that no message can match. The group would skip and commit all messages."""
    for name, group in config.groups.items():
        for topic, wanted in group.subscriptions.items():
            if (mistake := heartbeat_data.filter_mistake(wanted.expression, wanted.kind)) is not None:
                path = ("subscriptions", topic, "sql") if wanted.kind == "SQL92" else ("subscriptions", topic)
                yield group.problem(name, path, mistake)


def _spark_problems(config: root_model.RootConfig) -> list[object]:
    """Return the problems of groups with `engine: spark`: their options, and PySpark and Java on this machine."""
    on_spark = [(name, group) for name, group in config.groups.items() if group.engine == "spark"]
    if not on_spark:
        return []

    from rmqd.spark import check_versions
    from rmqd.spark.prepare import find_java
    from rmqd.spark.source.source_options import check_spark_options

    wrong: list[object] = []
    for name, group in on_spark:
        try:
            check_spark_options(name, group)
        except ConfigError as error:
            wrong += error.problems
    try:
        check_versions()
        find_java(os.environ)
    except RmqdError as error:
        wrong += [group.problem(name, ("engine",), str(error)) for name, group in on_spark]
    return wrong


def _ok_lines(config: root_model.RootConfig) -> list[str]:
    clusters = config.known_clusters
    lines = []
    for name, cluster in clusters.items():
        named = f"{name}: " if len(clusters) > 1 else ""
        lines.append(f"OK           {named}nameserver {cluster.client_options().nameserver_for_output}")
    for name, group in config.groups.items():
        topics = ", ".join(f"{topic} ({wanted.expression})" for topic, wanted in group.subscriptions.items())
        spark = f" on Spark ({(group.spark or spark_model.SparkConfig()).master})" if group.engine == "spark" else ""
        where = f" of {config.cluster_name(name)}" if len(clusters) > 1 else ""
        lines.append(f"OK           {name}: {topics}{where} to {_work(group)}{spark}")
    own = {name: group.hooks for name, group in config.groups.items() if group.hooks != "all"}
    for name, names in own.items():
        lines.append(f"OK           hooks of {name}: {names if isinstance(names, str) else ', '.join(names)}")
    if len(own) < len(config.groups) and (hooks := ", ".join(hook.name for hook in strategies.load_hooks())):
        lines.append(f"OK           hooks of every {'other ' if own else ''}group: {hooks}")
    return lines


def _settings(config: root_model.RootConfig) -> dict[str, Any]:
    """Return the keys of each group that the configuration or `--set` sets, for the group itself or in `defaults`."""
    groups: dict[str, Any] = load.explicit_settings(config).get("groups", {})
    return {
        name: given
        | {"subscriptions": {topic: one.to_config() for topic, one in config.groups[name].subscriptions.items()}}
        for name, given in groups.items()
    }


def _setting_lines(config: root_model.RootConfig) -> Iterator[str]:
    def comment(path: config_problems.KeyPath) -> str:
        key = config.groups[str(path[1])].problem(str(path[1]), path[2:], "", at_key=True)
        return f"  # defaults, {key.place}" if key.path[0] == "defaults" else ""

    return yaml_tree.yaml_lines({"groups": _settings(config)}, comment)


def _work(group: group_model.GroupConfig) -> str:
    if group.handler is not None:
        one = group.handler.canary
        canary = "" if one is None else f", {one.mode} canary {one.plugin} for {one.share * 100:g}% by {one.by}"
        return f"handler {group.handler.plugin}{canary}"
    pipeline, sink = group.pipeline, group.sink
    return f"pipeline {pipeline.plugin if pipeline else ''} and sink {sink.format if sink else ''}"


def _problem(problem: object) -> dict[str, str]:
    if isinstance(problem, config_problems.ConfigProblem):
        return {"place": problem.place, "key": config_problems.path_text(problem.path), "message": problem.message}
    return {"place": "", "key": "", "message": str(problem)}
