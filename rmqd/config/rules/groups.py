"""Rules about groups: names that RocketMQ refuses, keys that require or exclude each other, files that must exist."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from importlib.util import find_spec
from typing import Final

from rmqd.config.model.group import BROKER, GroupConfig
from rmqd.config.model.root import RootConfig
from rmqd.config.problems import Finding
from rmqd.config.rules.clusters import cluster_findings
from rmqd.config.rules.deduplicate import deduplicate_findings, package_findings
from rmqd.config.rules.spark import missing_findings, spark_findings
from rmqd.consumer.allocate import BROKERS_NAMES
from rmqd.errors import InvalidNameError
from rmqd.wire.topics import check_group, check_topic, is_light_queue, retry_topic, wrap_namespace

_TELEMETRY_MODULES: Final = ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http")
_TELEMETRY_VARIABLES: Final = {
    "OTEL_TRACES_EXPORTER": ("otlp", "none"),
    "OTEL_EXPORTER_OTLP_PROTOCOL": ("http/protobuf",),
    "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": ("http/protobuf",),
}


def root_findings(config: RootConfig) -> Iterator[Finding]:
    """Check everything outside the groups."""
    yield from cluster_findings(config)
    yield from _http_findings(config)
    if config.tracing.opentelemetry:
        yield from _telemetry_findings()


def _http_findings(config: RootConfig) -> Iterator[Finding]:
    http = config.http
    if http.token and http.token_file:
        yield Finding(("http", "token_file"), "set together with token; remove one of them", at_key=True)
    if not http.token_file:
        return
    try:
        if http.read_token():
            return
        reason = "is empty"
    except UnicodeDecodeError:
        reason = "is not UTF-8"
    except OSError as error:
        reason = f"cannot be read: {error.strerror or error}"
    yield Finding(("http", "token_file"), f"the file {http.token_file} {reason}; expected a file with the token")


def _telemetry_findings() -> Iterator[Finding]:
    path = ("tracing", "opentelemetry")
    try:
        missing = [module for module in _TELEMETRY_MODULES if find_spec(module) is None]
    except ModuleNotFoundError:  # the enclosing package is missing too
        missing = list(_TELEMETRY_MODULES)
    if missing:
        message = "OpenTelemetry is not installed; set false, or run pip install 'rmqd[otel]'"
        yield Finding(path, message)
    for variable, accepted in _TELEMETRY_VARIABLES.items():
        value = os.environ.get(variable, "")
        if value and value not in accepted:
            yield Finding(path, f"{variable} is {value}; expected {' or '.join(accepted)}, or unset it")


def run_findings(config: RootConfig, only: Collection[str] = ()) -> Iterator[Finding]:
    """Check the requirements for running the groups (all, or the groups in `only`), such as installed extras."""
    if not config.groups:
        yield Finding(("groups",), "missing; expected one or more groups by name", missing=True)
    for name, group in config.groups.items():
        if not only or name in only:
            yield from _room_findings(name, group, config.cluster_of(name).client.instance_name)
            yield from missing_findings(name, group)
            yield from package_findings(name, group)


def group_findings(name: str, group: GroupConfig, namespace: str) -> Iterator[Finding]:
    """Check one group. Paths of findings start at the group."""
    try:
        check_group(name)
        check_group(wrap_namespace(name, namespace))
    except InvalidNameError as error:
        yield Finding((), str(error), at_key=True)
    yield from _subscription_findings(name, group, namespace)
    yield from _local_findings(group) if group.engine == "local" else spark_findings(group)
    yield from _strategy_findings(name, group)
    if group.handler is not None and group.handler.concurrency == "auto" and group.handler.processes:
        why = "each process handles one batch at a time"
        yield Finding(("handler", "concurrency"), f"auto has no effect with processes: {why}; leave it out")
    if group.handler is not None and group.handler.process_memory != -1 and not group.handler.processes:
        message = "has no effect without processes, because the daemon itself is not limited; set handler.processes too"
        yield Finding(("handler", "process_memory"), message, at_key=True)
    if group.consume_mode == "pop":
        yield from _pop_findings(group)
    yield from _lite_findings(group)
    yield from deduplicate_findings(group)
    yield from _offset_store_findings(group)
    if group.order_by:
        yield from _order_findings(group)
    if group.order_by and group.consume_message_batch_max_wait:
        message = "not with order_by, because a batch then has one message of each key"
        yield Finding(("consume_message_batch_max_wait",), f"{message}; expected 0s")


def _order_findings(group: GroupConfig) -> Iterator[Finding]:
    """Yield `order_by` if the group cannot keep messages in order by key."""
    if group.engine == "spark":
        message = "Spark reads ranges of offsets, without keys"
    elif group.consume_mode == "pop":
        message = "brokers deliver popped messages to several members at once"
    elif not group.auto_commit:
        message = "not with auto_commit: false, which needs the order of whole queues"
    else:
        return
    yield Finding(("order_by",), f"{message}; leave it out", at_key=True)


def _offset_store_findings(group: GroupConfig) -> Iterator[Finding]:
    """Yield `offset_store` if the group cannot keep its offsets in its own store."""
    handler = group.handler
    refused = {
        "engine: spark, which has its checkpoint": group.engine == "spark",
        "message_model: broadcasting, whose members store offsets in files": group.message_model == "broadcasting",
        "consume_mode: pop, which has no offsets": group.consume_mode == "pop",
        "auto_commit: false, because each call is a transaction": not group.auto_commit,
        "deduplicate, because committed messages are not redelivered": group.deduplicate is not None,
        "handler.processes, because the transaction is in this process": handler is not None and handler.processes > 0,
    }
    for why, is_set in refused.items():
        if is_set and group.offset_store.plugin != BROKER:
            message = f"a custom store is not possible with {why}; expected broker"
            yield Finding(("offset_store",), message, at_key=True)


def _pop_findings(group: GroupConfig) -> Iterator[Finding]:
    if group.message_model == "broadcasting":
        message = "in broadcasting groups each member gets every message, but a popped message is delivered to only one"
        yield Finding(("consume_mode",), f"pop: {message}; expected concurrently | orderly")
    wait, hidden = group.consume_message_batch_max_wait, group.pop_invisible_time
    if wait > hidden / 2:
        message = f"popped messages are hidden for {hidden:g} s, and would expire after waiting for {wait:g} s"
        yield Finding(("consume_message_batch_max_wait",), f"{message}; expected at most half of pop_invisible_time")
    if group.engine == "local" and group.allocate_strategy not in BROKERS_NAMES:
        message = f"{group.allocate_strategy}: in POP mode the brokers divide the queues"
        yield Finding(("allocate_strategy",), f"{message}; expected {' | '.join(BROKERS_NAMES)}")


def _lite_findings(group: GroupConfig) -> Iterator[Finding]:
    """Check that lite topics are popped, and are the group's only subscription."""
    for topic, subscription in group.subscriptions.items():
        if not subscription.lite_topics:
            continue
        path = ("subscriptions", topic)
        if group.engine == "spark":
            message = "Spark does not support lite_topics, because brokers deliver them only with POP"
            yield Finding(path, f'{message}; expected engine: local, or "*" for all lite topics below', at_key=True)
        elif group.consume_mode != "pop":
            message = f"lite_topics with consume_mode: {group.consume_mode}; brokers deliver lite topics only with POP"
            yield Finding(path, f"{message}; expected consume_mode: pop", at_key=True)
        if len(group.subscriptions) > 1:
            message = "lite_topics with other topics; brokers bind a group with lite topics to one topic"
            yield Finding(path, f"{message}; expected one subscription in the group", at_key=True)
        if group.consume_from_where == "timestamp":
            message = "timestamp with lite_topics, whose offsets brokers cannot find by time"
            yield Finding(("consume_from_where",), f"{message}; expected last_offset | first_offset")


def _strategy_findings(name: str, group: GroupConfig) -> Iterator[Finding]:
    if group.allocate_strategy == "by_config":
        if not group.allocate_queues:
            yield Finding(("allocate_queues",), "missing; expected a list of queues, for by_config", missing=True)
        topics = [*group.subscriptions, retry_topic(name)]
        for index, queue in enumerate(group.allocate_queues):
            if queue.topic not in topics:
                message = f"{queue.topic} is not a topic of this group; expected {', '.join(topics)}"
                yield Finding(("allocate_queues", index, "topic"), message)
    if group.allocate_strategy == "by_machine_room" and not group.machine_rooms:
        yield Finding(("machine_rooms",), "missing; expected a list of rooms, for by_machine_room", missing=True)


def _room_findings(name: str, group: GroupConfig, instance_name: str) -> Iterator[Finding]:
    room, _, rest = instance_name.partition("@")
    if group.allocate_strategy == "machine_room_nearby" and not (room and rest):
        message = (
            f"machine_room_nearby needs client.instance_name with the machine room of this process, but "
            f"{instance_name!r} has none; expected room@name, with a unique name"
        )
        yield Finding(("groups", name, "allocate_strategy"), message)


def _subscription_findings(name: str, group: GroupConfig, namespace: str) -> Iterator[Finding]:
    if not group.subscriptions:
        accepted = 'a mapping of topics to tag expressions, such as orders: "*"'
        yield Finding(("subscriptions",), f"missing; expected {accepted}", missing=True)
    for topic in group.subscriptions:
        path = ("subscriptions", topic)
        try:
            check_topic(topic)
            check_topic(wrap_namespace(topic, namespace))
        except InvalidNameError as error:
            yield Finding(path, str(error), at_key=True)
        if is_light_queue(topic):
            yield from _light_queue_findings(path, group, namespace)
        if topic == retry_topic(name):
            yield Finding(path, "a group always subscribes to its own retry topic; expected other topics", at_key=True)


def _light_queue_findings(path: tuple[str, ...], group: GroupConfig, namespace: str) -> Iterator[Finding]:
    """Yield light message queues that rmqd cannot read, because other clients do not find their offsets."""
    if namespace:
        message = f"brokers do not support the light message queue {wrap_namespace(path[-1], namespace)}"
        yield Finding(path, f"{message}; use a cluster without client.namespace", at_key=True)
    if group.engine == "spark":
        yield Finding(path, "Spark does not support light message queues; expected engine: local", at_key=True)
    elif group.consume_mode == "pop":
        message = "light message queues are pulled, not popped"
        yield Finding(path, f"{message}; expected consume_mode: concurrently | orderly", at_key=True)


def _local_findings(group: GroupConfig) -> Iterator[Finding]:
    if group.handler is None:
        accepted = "a mapping with the keys plugin, options, concurrency"
        yield Finding(("handler",), f"missing; expected {accepted}", missing=True)
    for key in ("pipeline", "sink"):  # `spark` is allowed, so that changing `engine` is enough to move a group
        if getattr(group, key) is not None:
            yield Finding((key,), "has no effect here; it needs engine: spark", at_key=True)
