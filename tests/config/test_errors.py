"""Bad configurations, each with its complete error message. Nightly tests check more of each kind."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings

from tests.config.any_configuration import CONFIGURATIONS, check_problems_have_places
from tests.config.configuration import GROUP, problems

BATCH = "consume_message_batch_max_size"

IN_GROUP = {
    "too small": (
        f"{BATCH}: 0",
        f"6:37: groups.mailer.{BATCH}: 0 is out of range; expected a whole number from 1 to 1024",
    ),
    "text for a number": (
        'pull_batch_size: "32"',
        "6:22: groups.mailer.pull_batch_size: '32' is not a whole number; expected a whole number from 1 to 1024",
    ),
    "zero where -1 means none": (
        "pull_threshold_for_topic: 0",
        "6:31: groups.mailer.pull_threshold_for_topic: 0 is out of range; "
        "expected a whole number from 1 to 6553500, or -1 for no limit",
    ),
    "duration without a unit": (
        "consume_timeout: 15",
        "6:22: groups.mailer.consume_timeout: 15 has no unit; "
        "expected a duration such as 50ms, 5s, 15m or 1h, at least 1ms",
    ),
    "size with a decimal unit": (
        "pull_threshold_size_for_topic: 100MB",
        "6:36: groups.mailer.pull_threshold_size_for_topic: '100MB' has an unknown unit 'MB', "
        "known units are B, KiB, MiB, GiB; "
        "expected a size such as 256KiB, 100MiB or 1GiB, from 1MiB to 100GiB, or -1 for no limit",
    ),
    "unknown word": (
        "consume_from_where: CONSUME_FROM_LAST_OFFSET",
        "6:25: groups.mailer.consume_from_where: 'CONSUME_FROM_LAST_OFFSET' is Java's name for last_offset; "
        "expected last_offset | first_offset | timestamp",
    ),
    "YAML 1.1's truth": (
        "auto_commit: yes",
        "6:18: groups.mailer.auto_commit: 'yes' is neither true nor false; expected true or false",
    ),
    "misspelt key": (
        "consume_time_out: 15m",
        "6:5: groups.mailer.consume_time_out: unknown key; did you mean consume_timeout?",
    ),
    "key of another section": (
        "concurrency: 20",
        "6:5: groups.mailer.concurrency: unknown key here; move it to groups.NAME.handler",
    ),
    "topic next to the handler": (
        "topic: orders",
        "6:5: groups.mailer.topic: unknown key; expected topics and tags in subscriptions, such as "
        'subscriptions: {orders: "*"}',
    ),
    "duplicate key": (
        "handler: {plugin: jsonl}",
        "6:5: groups.mailer.handler: duplicate key, set before at test.yaml:5:5; remove one of them",
    ),
    "unset variable": (
        "pull_batch_size: ${BATCH}",
        "6:22: groups.mailer.pull_batch_size: the environment variable BATCH is not set; set it, or add a default "
        "with ${BATCH:-default}",
    ),
    "strategy without its queues": (
        "allocate_strategy: by_config",
        "3:3: groups.mailer.allocate_queues: missing; expected a list of queues, for by_config",
    ),
    "POP for everybody": (
        "consume_mode: pop\n    message_model: broadcasting",
        "6:19: groups.mailer.consume_mode: pop: in broadcasting groups each member gets every message, but a popped "
        "message is delivered to only one; expected concurrently | orderly",
    ),
}


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_bad_group_key_is_reported_with_place_and_expected_value(subtests: pytest.Subtests) -> None:
    for name, (line, expected) in IN_GROUP.items():
        with subtests.test(name):
            assert problems(f"{GROUP}    {line}\n") == [f"test.yaml:{expected}"]


IN_JAVA = {
    "consumeThreadMax: 64": "this is the Java client's name; write handler.concurrency: 64",
    "consume-thread-max: 20": "this is the Java client's name; write handler.concurrency: 20",
    "consumeThreadMin: 0": "this is the Java client's name; write handler.concurrency",
    "messageListener: shop.Listener": "this is the Java client's name; write handler.plugin",
    "messageModel: CLUSTERING": "unknown key; write message_model: clustering",
    "consumeTimeout: 15": "unknown key; write consume_timeout: 15m",
    "suspendCurrentQueueTimeMillis: 500": "this is the Java client's name; write suspend_current_queue_time: 500ms",
    "pullThresholdSizeForQueue: 100": "unknown key; write pull_threshold_size_for_queue: 100MiB",
    "pullThresholdSizeForTopic: -1": "unknown key; write pull_threshold_size_for_topic: -1",
    "allocateMessageQueueStrategy: MessageQueue.AVG_BY_CIRCLE": (
        "this is the Java client's name; write allocate_strategy: averagely_by_circle"
    ),
    "namesrvAddr: a:1": "this is the Java client's name; write nameserver at the top level",
    "rocketmq.consumer.group: mailer": "this is the Java client's name; write groups.NAME",
    "accessKey: 123456": "unknown key; write client.access_key at the top level",
    "heartbeatBrokerInterval: 30000": "unknown key; write client.heartbeat_broker_interval: 30000ms at the top level",
    "traceDispatcher: on": "this is the Java client's name; write enable_trace",
    "rpcHook: shop.Hook": "this is the Java client's name; write client.access_key at the top level",
    "consumeMessageHook: shop.Hook": "this is the Java client's name; write hooks",
    "consumeMaxSpan: 2000": "this is the Java client's name; write consume_concurrently_max_span: 2000",
    "ackIndex: 3": "no key for this Java setting: the handler sets batch.ack_index",
    "subVersion: 3": "no key for this Java setting: always the time",
    "offset_store: RemoteBrokerOffsetStore": "'RemoteBrokerOffsetStore' is Java's name for broker; expected broker | {",
    "offset_store: {plugin: LocalFileOffsetStore}": (
        "'LocalFileOffsetStore' is Java's name for broker, with message_model: broadcasting; expected broker | "
    ),
    "clientIP: 10.0.0.1": "no key for this Java setting: the address of the interface that leads to the",
    "message_model: BROADCASTING": (
        "'BROADCASTING' is Java's name for broadcasting; expected clustering | broadcasting"
    ),
    "consume_from_where: CONSUME_FROM_MAX_OFFSET": (
        "'CONSUME_FROM_MAX_OFFSET' is Java's name for last_offset; expected last_offset | first_offset | timestamp"
    ),
    "consume_mode: MessageListenerOrderly": (
        "'MessageListenerOrderly' is Java's name for orderly; expected concurrently | orderly | pop"
    ),
    "allocate_strategy: MACHINE_ROOM": "'MACHINE_ROOM' is Java's name for by_machine_room; expected averagely | ",
    "consume_timestamp: 20131223171201": (
        "20131223171201 is the Java client's form; write 2013-12-23T17:12:01 with a zone; expected ISO 8601 with a zone"
    ),
}


def test_java_names_are_reported_with_the_key_or_value_to_write(subtests: pytest.Subtests) -> None:
    for line, expected in IN_JAVA.items():
        with subtests.test(line):
            place, value = problems(f"{GROUP}    {line}\n"), line.partition(": ")[0]
            [(where, message)] = [found.split(f" groups.mailer.{value}: ") for found in place]
            assert where.startswith("test.yaml:6:")
            assert message.startswith(expected)


TAGS = (
    'a tag expression such as "paid || refunded", "*" for all messages, {sql: "amount > 100"}, or '
    "{lite_topics: [session-1, session-2]}"
)
LITE = "a list of lite topics, each named once, such as [session-1, session-2]"
BARS = "tags are separated by ||"

SUBSCRIPTIONS = {
    "a single bar": (
        "orders: paid | refunded",
        f"5:15: orders: 'paid | refunded' is not a tag, {BARS}; expected {TAGS}",
    ),
    "NUL in a tag": ('orders: "a\\0"', f"5:15: orders: 'a\\x00' has a NUL character; expected {TAGS}"),
    "nothing": ("orders:", f"5:14: orders: no value is not a tag expression; expected {TAGS}"),
    "an expression type of Java": (
        "orders: {type: SQL92, expression: a > 1}",
        f"5:7: orders: SQL92 is Java's name for {{sql: condition}}; expected {TAGS}",
    ),
    "lite topics that are not popped": (
        "orders: {lite_topics: [a]}",
        "5:7: orders: not possible with consume_mode: concurrently, because brokers deliver lite topics only with POP; "
        "expected consume_mode: pop",
    ),
    "bad name": (
        'new orders: "*"',
        "5:7: new orders: the topic name 'new orders' contains a character that RocketMQ refuses; "
        "expected letters a-z and A-Z, digits, and % | - _",
    ),
    "its own retries": (
        '"%RETRY%mailer": "*"',
        "5:7: %RETRY%mailer: a group always subscribes to its own retry topic; expected other topics",
    ),
}


def test_a_bad_subscription_is_reported_with_place_and_expected_value(subtests: pytest.Subtests) -> None:
    for name, (line, expected) in SUBSCRIPTIONS.items():
        with subtests.test(name):
            check_subscription(line, expected)


def check_subscription(line: str, expected: str) -> None:
    """Check that a group with that subscription has exactly this problem."""
    place, topic, message = expected.split(": ", 2)
    text = f"nameserver: a:1\ngroups:\n  mailer:\n    subscriptions:\n      {line}\n    handler: {{plugin: log}}\n"
    assert problems(text) == [f"test.yaml:{place}: groups.mailer.subscriptions.{topic}: {message}"]


ADDRESS = 'host:port, "host:port;host:port", or a list of host:port'
ROOTS = {
    "name server without a port": (
        "nameserver: localhost",
        f"1:13: nameserver: 'localhost' is not host:port; expected {ADDRESS}",
    ),
    "no name server": (
        "log: {level: info}",
        '1:1: nameserver: missing; expected host:port, "host:port;host:port", a list, nameserver_url, or '
        "$NAMESRV_ADDR in the environment",
    ),
    "two ways to a name server": (
        "nameserver: a:1\nnameserver_url: http://a/rocketmq/nsaddr",
        "2:1: nameserver_url: set together with nameserver; remove one of them",
    ),
    "unknown key at the top": (
        "nameserver: a:1\nprometheus: {}",
        "2:1: prometheus: unknown key; expected nameserver, nameserver_url, client, clusters, http, metrics, tracing, "
        "log, state_dir, groups, defaults",
    ),
    "number for a secret": (
        "nameserver: a:1\nclient: {access_key: a, secret_key: 123456}",
        "2:37: client.secret_key: the value is not text; expected text, in quotes",
    ),
    "one key of two": (
        "nameserver: a:1\nclient: {access_key: a}",
        "2:1: client.secret_key: required by access_key; expected both or neither",
    ),
    "certificate without its key": (
        "nameserver: a:1\nclient:\n  tls: {cert_file: a.pem}",
        "3:3: client.tls.key_file: required by cert_file; expected both or neither",
    ),
    "a name in the place of a list": (
        "nameserver: a:1\ngroups:\n  g:\n    engine: spark\n    subscriptions: {t: '*'}\n    pipeline: {plugin: p}\n"
        "    sink: {format: postgresql, url: 'postgresql://db/shop', table: t, keys: id}",
        "7:77: groups.g.sink.keys: 'id' is not a list; expected a list, such as [id]",
    ),
    "group without a subscription": (
        "nameserver: a:1\ngroups:\n  mailer:\n    handler: {plugin: log}",
        "3:3: groups.mailer.subscriptions: missing; "
        'expected a mapping of topics to tag expressions, such as orders: "*"',
    ),
    "group without a handler": (
        'nameserver: a:1\ngroups:\n  mailer:\n    subscriptions: {orders: "*"}',
        "3:3: groups.mailer.handler: missing; expected a mapping with the keys plugin, options, concurrency",
    ),
    "names in the place of mappings": (
        "nameserver: a:1\ngroups:\n  mailer:\n    subscriptions: orders\n    handler: mailer:handle",
        "4:20: groups.mailer.subscriptions: 'orders' is not a mapping; expected a mapping of names to values, such as "
        '{orders: "*"}',
        "5:14: groups.mailer.handler: 'mailer:handle' is not a mapping; expected a mapping with the keys plugin, "
        "options, concurrency, max_concurrency, processes, process_memory, middleware, canary, such as "
        "{plugin: NAME}",
    ),
    "option next to the plugin": (
        "nameserver: a:1\ngroups:\n  mailer:\n    subscriptions: {a: '*'}\n    handler: {plugin: jsonl, path: x}",
        "5:30: groups.mailer.handler.path: unknown key here; move it to groups.NAME.handler.options",
    ),
    "home folder": (
        "nameserver: a:1\nstate_dir: ~/rmqd",
        "2:12: state_dir: '~/rmqd' is not valid; expected a folder, with ${HOME} instead of ~",
    ),
    "group name that RocketMQ refuses": (
        "nameserver: a:1\ngroups:\n  order mailer:\n    subscriptions: {a: '*'}\n    handler: {plugin: log}",
        "3:3: groups.order mailer: the group name 'order mailer' contains a character that RocketMQ refuses; "
        "expected letters a-z and A-Z, digits, and % | - _",
    ),
}


def test_a_bad_configuration_is_reported_with_place_and_expected_value(subtests: pytest.Subtests) -> None:
    for name, (text, *expected) in ROOTS.items():
        with subtests.test(name):
            assert problems(text) == [f"test.yaml:{one}" for one in expected]


NO_YAML = {
    "unclosed list": (
        "nameserver: [a:1\nlog: {}",
        "2:4: this is not valid YAML: while parsing a flow sequence, did not find expected ',' or ']'; the mistake may "
        "be as early as line 1, where this part begins",
    ),
    "braces inside of braces": (
        "client: {access_key: ${KEY}}",
        "1:23: this is not valid YAML: while parsing a flow mapping, did not find expected ',' or '}'; write ${...} "
        "in quotes inside {} and []",
    ),
    "star without quotes": (
        "a: {orders: *}",
        "1:14: this is not valid YAML: while scanning an alias, did not find expected alphabetic or numeric character; "
        'write the value in quotes, such as "*"',
    ),
    "sign without quotes": (
        "a: @mailer",
        "1:4: this is not valid YAML: while scanning for the next token, found character that cannot start any token; "
        'write the value in quotes, such as "*"',
    ),
    "tab": (
        "log:\n\tlevel: info",
        "2:1: this is not valid YAML: while scanning for the next token, found character that cannot start any token; "
        "indent with spaces instead of the tab",
    ),
    "unclosed quote": (
        'a: "*\nb: c\n',
        "3:1: this is not valid YAML: while scanning a quoted scalar, found unexpected end of stream; the mistake may "
        "be as early as line 1, where this part begins",
    ),
    "no colon": (
        "a: b\ngroups\n  mailer: {}",
        "3:9: this is not valid YAML: while scanning a simple key, could not find expected ':'; the mistake may be as "
        "early as line 2, where this part begins",
    ),
    "two colons": (
        "a: b: c",
        "1:5: this is not valid YAML: mapping values are not allowed in this context; write a value with a colon in "
        "quotes, end the line above with a colon, or correct the indentation",
    ),
    "one space too many": (
        "a: 1\n b: 2",
        "2:3: this is not valid YAML: mapping values are not allowed in this context; write a value with a colon in "
        "quotes, end the line above with a colon, or correct the indentation",
    ),
    "braces of a template": ("a: {{ b }}", "1:5: a key is not text; expected text, and quotes around {{...}}"),
    "list at the top": ("- nameserver: a:1", "1:1: the file contains a list; expected a mapping of keys"),
    "foreign tag": (
        "nameserver: !!python/name:os.system x",
        "1:13: nameserver: the YAML tag !!python/name:os.system is not supported; expected no tag",
    ),
}


def test_a_file_that_is_not_a_configuration_is_reported_with_place(subtests: pytest.Subtests) -> None:
    for name, (text, expected) in NO_YAML.items():
        with subtests.test(name):
            assert f"test.yaml:{expected}" in problems(text)


def test_aliases_of_aliases_do_not_fill_the_memory() -> None:
    bomb = "a: &a [x, x, x, x, x, x, x, x, x, x]\n"
    for name, before in zip("bcdefghij", "abcdefghi", strict=True):
        bomb += f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n"
    assert problems(bomb) == ["test.yaml:5:36: the document has more than 100000 values, with resolved aliases"]


def test_all_problems_are_reported_at_once_in_line_order() -> None:
    text = """\
nameserver: 127.0.0.1
log: {level: loud}
groups:
  mailer:
    subscriptions: {"a b": "*"}
    consume_timeout: 15
    consume_mode: pup
    handler:
      plugin: lgo
      concurrency: ${CONCURRENCY}
  mailer2:
    subscriptions: {a: "*"}
    handler: {plugin: log, options: {level: loud}}
    pull_batch_size: 0
    unknown_key: 1
"""
    found = problems(text, ["log.format=xml"], to_run=True)
    assert [line.split(": ")[:2] for line in found] == [
        ["test.yaml:1:13", "nameserver"],
        ["test.yaml:2:14", "log.level"],
        ["test.yaml:5:21", "groups.mailer.subscriptions.a b"],
        ["test.yaml:6:22", "groups.mailer.consume_timeout"],
        ["test.yaml:7:19", "groups.mailer.consume_mode"],
        ["test.yaml:9:15", "groups.mailer.handler.plugin"],
        ["test.yaml:10:20", "groups.mailer.handler.concurrency"],
        ["test.yaml:13:45", "groups.mailer2.handler.options.level"],
        ["test.yaml:14:22", "groups.mailer2.pull_batch_size"],
        ["test.yaml:15:5", "groups.mailer2.unknown_key"],
        ["--set log.format", "log.format"],
    ]


@settings(max_examples=20)
@given(CONFIGURATIONS)
def test_any_configuration_loads_or_has_problems_with_places(data: dict[str, object]) -> None:
    """`make nightly` tries more examples."""
    check_problems_have_places(data)


def test_a_secret_in_the_place_of_a_list_is_not_shown() -> None:
    text = (
        "nameserver: a:1\ngroups:\n  g:\n    engine: spark\n    subscriptions: {t: '*'}\n    pipeline: {plugin: p}\n"
        "    sink: {format: postgresql, url: 'postgresql://db/shop', table: t, keys: '${KEYS}'}"
    )
    assert problems(text, environ={"KEYS": "hunter2"}) == [
        "test.yaml:7:77: groups.g.sink.keys: the substituted value is not a list; expected a list, such as [a, b]"
    ]
