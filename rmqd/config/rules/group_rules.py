"""Rules about clusters and groups: refused names, keys that require or exclude each other, files that must exist."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from importlib.util import find_spec
from typing import Final

from rmqd.client.client_options import NAMESRV_ADDR, SPARK_PREFIX
from rmqd.config.model.group_model import BROKER, GroupConfig
from rmqd.config.model.root_model import DEFAULT_CLUSTER, ClientConfig, ClusterConfig, RootConfig
from rmqd.config.problems import ConfigFinding, KeyPath, unknown
from rmqd.config.rules.spark_rules import missing_package_findings, spark_findings, url_problem
from rmqd.consumer.allocate import BROKER_STRATEGY_NAMES
from rmqd.errors import InvalidNameError, install_command
from rmqd.runtime.lazy_imports import import_lazily
from rmqd.runtime.plain_text import duration
from rmqd.wire.topics import check_group, check_topic, is_light_queue, retry_topic, wrap_namespace

with import_lazily():
    from rmqd.client.remoting import security

_URLS: Final = {"redis": ("redis://", "rediss://", "unix://"), "postgresql": ("postgresql://", "postgres://")}
_PACKAGES: Final = {"redis": ("redis",), "postgresql": ("psycopg", "psycopg_pool")}
_SCHEME: Final = "://"


def deduplicate_findings(group: GroupConfig) -> Iterator[ConfigFinding]:
    """Check `deduplicate` of one group. The paths of the findings are relative to the group."""
    one = group.deduplicate
    if one is None:
        return
    if group.engine == "spark" and one.store == "sqlite":
        why = "its file is on one machine, but tasks run on several"
        accepted = "store: redis or postgresql, with its url"
        yield ConfigFinding(("deduplicate",), f"Spark does not support sqlite: {why}; expected {accepted}", at_key=True)
    if group.message_model == "broadcasting":
        why = "each member of a broadcasting group must handle every message"
        yield ConfigFinding(("deduplicate",), f"not possible with broadcasting: {why}; remove this key", at_key=True)
    if not group.auto_commit:
        why = "after a rollback, messages must be handled again"
        yield ConfigFinding(("deduplicate",), f"not possible with auto_commit: false: {why}; remove it", at_key=True)
    path, schemes = ("deduplicate", "url"), _URLS.get(one.store, ())
    accepted = " or ".join(f"{scheme}..." for scheme in schemes) or "a path, or empty for a file in state_dir"
    if schemes and not one.url:
        yield ConfigFinding(path, f"required by store: {one.store}; expected {accepted}", missing=True)
    elif schemes and not one.url.startswith(schemes):  # the message omits the URL, which may have a password
        yield ConfigFinding(path, f"not a URL for store: {one.store}; expected {accepted}")
    elif one.store == "postgresql" and (problem := url_problem(one.url)):
        yield ConfigFinding(path, problem)
    elif not schemes and _SCHEME in one.url:
        yield ConfigFinding(path, f"a URL is not possible with store: {one.store}; expected {accepted}")


def package_findings(name: str, group: GroupConfig) -> Iterator[ConfigFinding]:
    """Yield a finding, with its whole path, if the store of `deduplicate` needs a missing Python package."""
    store = "" if group.deduplicate is None else group.deduplicate.store
    absent = [package for package in _PACKAGES.get(store, ()) if find_spec(package) is None]
    if absent:
        message = f"{store} needs {' and '.join(absent)}, which is not installed; run {install_command(store)}"
        yield ConfigFinding(("groups", name, "deduplicate", "store"), message)


_NAME: Final = re.compile(r"[A-Za-z0-9_-]+")  # a cluster's name is also a folder's name, and part of a key in `--set`


def cluster_findings(config: RootConfig) -> Iterator[ConfigFinding]:
    """Check the clusters, and check that each group has a known cluster."""
    if not config.clusters or config.has_name_servers or "client" in config.model_fields_set:
        yield from _findings(config, ())
    for name, cluster in config.clusters.items():
        yield from _findings(cluster, ("clusters", name))
        if not _NAME.fullmatch(name):
            message = f"the name {name!r} is not valid; expected letters a-z and A-Z, digits, - and _"
            yield ConfigFinding(("clusters", name), message, at_key=True)
    if DEFAULT_CLUSTER in config.clusters and config.has_name_servers:
        message = (
            f"the cluster of nameserver at the top level is called {DEFAULT_CLUSTER}; use another name here, or "
            "remove that nameserver"
        )
        yield ConfigFinding(("clusters", DEFAULT_CLUSTER), message, at_key=True)
    yield from _choices(config)


def _choices(config: RootConfig) -> Iterator[ConfigFinding]:
    """Yield a finding for each group with an unknown cluster, or without a cluster if no cluster is the default."""
    known = config.known_clusters
    for name, group in config.groups.items():
        path = ("groups", name, "cluster")
        if group.cluster and group.cluster not in known:
            yield ConfigFinding(path, f"{group.cluster}: {unknown('cluster', group.cluster, known)}")
        elif not group.cluster and config.default_cluster is None:
            accepted = f"{', '.join(known)}; or rename the default cluster to {DEFAULT_CLUSTER}"
            yield ConfigFinding(
                path, f"required, because there are several clusters; expected one of {accepted}", missing=True
            )


def _findings(cluster: ClusterConfig, at: KeyPath) -> Iterator[ConfigFinding]:
    if not cluster.has_name_servers:
        others = "or nameserver_url instead" if at else f"nameserver_url, or ${NAMESRV_ADDR} in the environment"
        message = f'missing; expected host:port, "host:port;host:port", a list, {others}'
        yield ConfigFinding((*at, "nameserver"), message, missing=True, instead=(*at, "nameserver_url"))
    if cluster.nameserver and cluster.nameserver_url:
        yield ConfigFinding((*at, "nameserver_url"), "set together with nameserver; remove one of them", at_key=True)
    yield from _client_findings(cluster.client, (*at, "client"))


def _client_findings(client: ClientConfig, at: KeyPath) -> Iterator[ConfigFinding]:
    tls = client.tls
    if client.instance_name.startswith(SPARK_PREFIX):
        message = (
            f"{client.instance_name}: {SPARK_PREFIX} is reserved for drivers of engine: spark; expected another name"
        )
        yield ConfigFinding((*at, "instance_name"), message)
    for one, other in (("access_key", "secret_key"), ("secret_key", "access_key")):
        if getattr(client, one) and not getattr(client, other):
            yield ConfigFinding((*at, other), f"required by {one}; expected both or neither", missing=True)
    if client.security_token and not client.access_key and not client.secret_key:
        message = "required by security_token; expected access_key and secret_key"
        yield ConfigFinding((*at, "access_key"), message, missing=True)
    for one, other in (("cert_file", "key_file"), ("key_file", "cert_file")):
        if getattr(tls, one) and not getattr(tls, other):
            yield ConfigFinding((*at, "tls", other), f"required by {one}; expected both or neither", missing=True)
    if tls.enabled and bool(tls.cert_file) == bool(tls.key_file):
        for problem in security.file_problems(tls.options()):
            yield ConfigFinding((*at, "tls", problem.key), f"{problem.message}; expected a valid PEM file")


_TELEMETRY_MODULES: Final = ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http")
_TELEMETRY_VARIABLES: Final = {
    "OTEL_TRACES_EXPORTER": ("otlp", "none"),
    "OTEL_EXPORTER_OTLP_PROTOCOL": ("http/protobuf",),
    "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": ("http/protobuf",),
}


def root_findings(config: RootConfig) -> Iterator[ConfigFinding]:
    """Check everything outside the groups."""
    yield from cluster_findings(config)
    yield from _http_findings(config)
    if config.tracing.opentelemetry:
        yield from _telemetry_findings()


def _http_findings(config: RootConfig) -> Iterator[ConfigFinding]:
    http = config.http
    if http.token and http.token_file:
        yield ConfigFinding(("http", "token_file"), "set together with token; remove one of them", at_key=True)
    if not http.token_file:
        return
    try:
        http.read_token()
        return
    except UnicodeDecodeError:
        reason = "is not UTF-8"
    except ValueError as error:
        reason = str(error)
    except OSError as error:
        reason = f"cannot be read: {error.strerror or error}"
    yield ConfigFinding(("http", "token_file"), f"the file {http.token_file} {reason}; expected a file with the token")


def _telemetry_findings() -> Iterator[ConfigFinding]:
    path = ("tracing", "opentelemetry")
    try:
        missing = [module for module in _TELEMETRY_MODULES if find_spec(module) is None]
    except ModuleNotFoundError:  # the enclosing package is missing too
        missing = list(_TELEMETRY_MODULES)
    if missing:
        yield ConfigFinding(path, f"OpenTelemetry is not installed; set false, or run {install_command('otel')}")
    for variable, accepted in _TELEMETRY_VARIABLES.items():
        value = os.environ.get(variable, "")
        if value and value not in accepted:
            yield ConfigFinding(path, f"{variable} is {value}; expected {' or '.join(accepted)}, or unset it")


def run_findings(config: RootConfig, only: Collection[str] = ()) -> Iterator[ConfigFinding]:
    """Check the requirements for running all groups, or the groups in `only`, such as installed Python packages."""
    if not config.groups:
        yield ConfigFinding(("groups",), "missing; expected one or more groups by name", missing=True)
    for name, group in config.groups.items():
        if not only or name in only:
            if group.engine == "local":
                yield from _room_findings(name, group, config.cluster_of(name).client.instance_name)
            yield from missing_package_findings(name, group)
            yield from package_findings(name, group)


def group_findings(name: str, group: GroupConfig, namespace: str) -> Iterator[ConfigFinding]:
    """Check one group. The paths of the findings are relative to the group."""
    try:
        check_group(name)
        check_group(wrap_namespace(name, namespace))
    except InvalidNameError as error:
        yield ConfigFinding((), str(error), at_key=True)
    yield from _subscription_findings(name, group, namespace)
    yield from _local_findings(name, group) if group.engine == "local" else spark_findings(group)
    if group.handler is not None and group.handler.concurrency == "auto" and group.handler.processes:
        why = "each process handles one batch at a time"
        yield ConfigFinding(("handler", "concurrency"), f"auto has no effect with processes: {why}; remove it")
    if group.consume_mode == "pop":
        yield from _pop_findings(group)
    yield from _lite_findings(group)
    yield from deduplicate_findings(group)
    yield from _offset_store_findings(group)
    if group.order_by:
        yield from _order_findings(group)
    if group.order_by and group.consume_message_batch_max_wait_seconds:
        message = "not possible with order_by, because a batch then has at most one message of each key"
        yield ConfigFinding(("consume_message_batch_max_wait",), f"{message}; expected 0s")


def _order_findings(group: GroupConfig) -> Iterator[ConfigFinding]:
    """Yield a finding for `order_by` if the group cannot keep messages in order by key."""
    if group.engine == "spark":
        message = "not possible with engine: spark, which reads ranges of offsets, regardless of keys"
    elif group.consume_mode == "pop":
        message = "not possible with POP, because brokers deliver the messages of a queue to several members at once"
    elif not group.auto_commit:
        message = "not possible with auto_commit: false, which needs the order of whole queues"
    else:
        return
    yield ConfigFinding(("order_by",), f"{message}; remove this key", at_key=True)


def _offset_store_findings(group: GroupConfig) -> Iterator[ConfigFinding]:
    """Yield findings for `offset_store` if the group cannot keep its offsets in a custom store."""
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
            yield ConfigFinding(("offset_store",), message, at_key=True)
    if group.offset_store.options and group.offset_store.plugin == BROKER:
        yield ConfigFinding(("offset_store", "options"), "broker has no options; expected another plugin", at_key=True)


def _pop_findings(group: GroupConfig) -> Iterator[ConfigFinding]:
    if group.message_model == "broadcasting":
        message = "in broadcasting groups each member gets every message, but a popped message is delivered to only one"
        yield ConfigFinding(("consume_mode",), f"pop: {message}; expected concurrently | orderly")
    wait, hidden = group.consume_message_batch_max_wait_seconds, group.pop_invisible_time_seconds
    if wait > hidden / 2:
        message = f"a popped message is redelivered after {duration(hidden)}, but may wait for {duration(wait)} here"
        yield ConfigFinding(
            ("consume_message_batch_max_wait",), f"{message}; expected at most half of pop_invisible_time"
        )
    if group.engine == "local" and group.allocate_strategy not in BROKER_STRATEGY_NAMES:
        message = f"{group.allocate_strategy}: in POP mode the brokers divide the queues"
        yield ConfigFinding(("allocate_strategy",), f"{message}; expected {' | '.join(BROKER_STRATEGY_NAMES)}")


def _lite_findings(group: GroupConfig) -> Iterator[ConfigFinding]:
    """Check that a group with lite topics uses POP, and has no other subscription."""
    for topic, subscription in group.subscriptions.items():
        if not subscription.lite_topics:
            continue
        path = ("subscriptions", topic)
        if group.engine == "spark":
            message = "Spark does not support lite_topics, because brokers deliver them only with POP"
            yield ConfigFinding(
                path, f'{message}; expected engine: local, or "*" for all lite topics below', at_key=True
            )
        elif group.consume_mode != "pop":
            message = (
                f"not possible with consume_mode: {group.consume_mode}, because brokers deliver lite "
                "topics only with POP"
            )
            yield ConfigFinding(path, f"{message}; expected consume_mode: pop", at_key=True)
        if len(group.subscriptions) > 1:
            message = (
                "lite_topics cannot be combined with other topics: brokers bind a group with lite topics to one topic"
            )
            yield ConfigFinding(path, f"{message}; expected one subscription in the group", at_key=True)
        if group.consume_from_where == "timestamp":
            message = "timestamp is not possible with lite_topics, because brokers cannot find their offsets by time"
            yield ConfigFinding(("consume_from_where",), f"{message}; expected last_offset | first_offset")


def _strategy_findings(name: str, group: GroupConfig) -> Iterator[ConfigFinding]:
    if group.allocate_strategy == "by_config":
        if not group.allocate_queues:
            yield ConfigFinding(("allocate_queues",), "missing; expected a list of queues, for by_config", missing=True)
        topics = [*group.subscriptions, retry_topic(name)]
        for index, queue in enumerate(group.allocate_queues):
            if queue.topic not in topics:
                message = f"{queue.topic} is not a topic of this group; expected {', '.join(topics)}"
                yield ConfigFinding(("allocate_queues", index, "topic"), message)
    if group.allocate_strategy == "by_machine_room" and not group.machine_rooms:
        yield ConfigFinding(("machine_rooms",), "missing; expected a list of rooms, for by_machine_room", missing=True)


def _room_findings(name: str, group: GroupConfig, instance_name: str) -> Iterator[ConfigFinding]:
    room, _, rest = instance_name.partition("@")
    if group.allocate_strategy == "machine_room_nearby" and not (room and rest):
        message = (
            f"machine_room_nearby needs client.instance_name with the machine room of this process, but "
            f"{instance_name!r} has none; expected room@name, with a unique name"
        )
        yield ConfigFinding(("groups", name, "allocate_strategy"), message)


def _subscription_findings(name: str, group: GroupConfig, namespace: str) -> Iterator[ConfigFinding]:
    if not group.subscriptions:
        accepted = 'a mapping of topics to tag expressions, such as orders: "*"'
        yield ConfigFinding(("subscriptions",), f"missing; expected {accepted}", missing=True)
    for topic in group.subscriptions:
        path = ("subscriptions", topic)
        try:
            check_topic(topic)
            check_topic(wrap_namespace(topic, namespace))
        except InvalidNameError as error:
            yield ConfigFinding(path, str(error), at_key=True)
        if is_light_queue(topic):
            yield from _light_queue_findings(path, group, namespace)
        if topic == retry_topic(name):
            yield ConfigFinding(
                path, "a group always subscribes to its own retry topic; expected other topics", at_key=True
            )


def _light_queue_findings(path: tuple[str, ...], group: GroupConfig, namespace: str) -> Iterator[ConfigFinding]:
    """Yield findings for a light message queue that is read with a namespace, on Spark, or with POP."""
    if namespace:
        message = f"light message queues do not support namespaces ({wrap_namespace(path[-1], namespace)})"
        yield ConfigFinding(path, f"{message}; use a cluster without client.namespace", at_key=True)
    if group.engine == "spark":
        yield ConfigFinding(path, "Spark does not support light message queues; expected engine: local", at_key=True)
    elif group.consume_mode == "pop":
        message = "light message queues are pulled, not popped"
        yield ConfigFinding(path, f"{message}; expected consume_mode: concurrently | orderly", at_key=True)


def _local_findings(name: str, group: GroupConfig) -> Iterator[ConfigFinding]:
    yield from _strategy_findings(name, group)
    if group.handler is None:
        accepted = "a mapping with the keys plugin, options, concurrency"
        yield ConfigFinding(("handler",), f"missing; expected {accepted}", missing=True)
    for key in ("pipeline", "sink"):  # `spark` is allowed: to move a group, it is enough to change `engine`
        if getattr(group, key) is not None:
            yield ConfigFinding((key,), "has no effect here; it needs engine: spark", at_key=True)
    if group.handler is not None and group.handler.process_memory != -1 and not group.handler.processes:
        message = "has no effect without processes, because the daemon itself is not limited; set handler.processes too"
        yield ConfigFinding(("handler", "process_memory"), message, at_key=True)
