"""More bad configurations, each with its complete error message.

One of each kind is in tests/config/test_errors.py.
"""

from __future__ import annotations

import pytest

from tests.config.configuration import GROUP, problems
from tests.config.test_errors import ADDRESS, BARS, LITE, TAGS, check_subscription

IN_GROUP = {
    "too large": (
        "pull_batch_size: 1025",
        "6:22: groups.mailer.pull_batch_size: 1025 is out of range; expected a whole number from 1 to 1024",
    ),
    "fraction for a whole number": (
        "pull_batch_size: 1.5",
        "6:22: groups.mailer.pull_batch_size: 1.5 is not a whole number; expected a whole number from 1 to 1024",
    ),
    "truth value for a number": (
        "pull_rate_limit: true",
        "6:22: groups.mailer.pull_rate_limit: true is not a whole number; expected a whole number 0 or more",
    ),
    "quoted duration without a unit": (
        'consume_timeout: "15"',
        "6:22: groups.mailer.consume_timeout: '15' has no unit; "
        "expected a duration such as 50ms, 5s, 15m or 1h, at least 1ms",
    ),
    "duration with a foreign unit": (
        "consume_timeout: 15min",
        "6:22: groups.mailer.consume_timeout: '15min' has an unknown unit 'min', known units are ms, s, m, h, d; "
        "expected a duration such as 50ms, 5s, 15m or 1h, at least 1ms",
    ),
    "duration out of range": (
        "pull_interval: 70s",
        "6:20: groups.mailer.pull_interval: '70s' is out of range; "
        "expected a duration such as 50ms, 5s, 15m or 1h, from 0s to 65535ms",
    ),
    "size without a unit": (
        "pull_threshold_size_for_queue: 100",
        "6:36: groups.mailer.pull_threshold_size_for_queue: 100 has no unit; "
        "expected a size such as 256KiB, 100MiB or 1GiB, from 1MiB to 1GiB",
    ),
    "time without a zone": (
        "consume_timestamp: 2026-01-01T00:00:00",
        "6:24: groups.mailer.consume_timestamp: '2026-01-01T00:00:00' has no time zone; "
        "expected ISO 8601 with a zone such as 2026-01-01T00:00:00+08:00, or @ and Unix milliseconds",
    ),
    "time as Java writes it": (
        "consume_timestamp: 20260101000000",
        "6:24: groups.mailer.consume_timestamp: 20260101000000 is the Java client's form; write 2026-01-01T00:00:00 "
        "with a zone; expected ISO 8601 with a zone such as 2026-01-01T00:00:00+08:00, or @ and Unix milliseconds",
    ),
    "Java's spelling": (
        "pullBatchSize: 32",
        "6:5: groups.mailer.pullBatchSize: unknown key; write pull_batch_size: 32",
    ),
    "broken reference": (
        'pull_batch_size: "${BATCH"',
        "6:22: groups.mailer.pull_batch_size: a ${ without its }; "
        "expected ${NAME}, ${NAME:-default}, ${file:PATH}, and $${ for a literal ${",
    ),
    "unknown form of reference": (
        'pull_batch_size: "${env:BATCH}"',
        "6:22: groups.mailer.pull_batch_size: ${env:BATCH} is not valid; expected ${NAME}, ${NAME:-default}, "
        "${file:PATH}, and $${ for a literal ${",
    ),
    "Spark's key in a local group": (
        "sink: {format: parquet}",
        "6:5: groups.mailer.sink: has no effect here; it needs engine: spark",
    ),
    "strategy without its rooms": (
        "allocate_strategy: by_machine_room",
        "3:3: groups.mailer.machine_rooms: missing; expected a list of rooms, for by_machine_room",
    ),
    "order that brokers do not keep": (
        "consume_mode: pop\n    order_by: keys",
        (
            "7:5: groups.mailer.order_by: not possible with POP, because brokers deliver the messages of a queue "
            "to several members at once; remove this key"
        ),
    ),
    "order beside commits of the handler's": (
        "consume_mode: orderly\n    order_by: keys\n    auto_commit: false",
        (
            "7:5: groups.mailer.order_by: not possible with auto_commit: false, which needs the order of whole "
            "queues; remove this key"
        ),
    ),
    "order on Spark": (
        "engine: spark\n    order_by: keys",
        (
            "7:5: groups.mailer.order_by: not possible with engine: spark, which reads ranges of offsets, "
            "regardless of keys; remove this key"
        ),
    ),
    "order by nothing": (
        'order_by: "property: id"',
        "6:15: groups.mailer.order_by: 'property: id' is not valid; "
        'expected keys, sharding_key, property:NAME, or ""',
    ),
    "strategy that brokers do not know": (
        "consume_mode: pop\n    allocate_strategy: consistent_hash",
        "7:24: groups.mailer.allocate_strategy: consistent_hash: in POP mode the brokers divide the queues; "
        "expected averagely | averagely_by_circle",
    ),
    "strategy that is no name": (
        "allocate_strategy: 1",
        "6:24: groups.mailer.allocate_strategy: 1 is not a strategy; expected averagely | averagely_by_circle | "
        "consistent_hash | by_config | by_machine_room | machine_room_nearby | the name of an installed one",
    ),
}

SUBSCRIPTIONS = {
    "all beside a tag": ('orders: "paid || *"', f"5:15: orders: '*' is not a tag, {BARS}; expected {TAGS}"),
    "no tag": ('orders: "||"', f"5:15: orders: '||' contains no tag; expected {TAGS}"),
    "NUL in a condition": (
        'orders: {sql: "a > \\0"}',
        f"5:7: orders: 'a > \\x00' has a NUL character; expected {TAGS}",
    ),
    "empty SQL": ('orders: {sql: " "}', f"5:7: orders: ' ' is not an SQL92 condition; expected {TAGS}"),
    "unknown kind": (
        "orders: {sql92: a > 1}",
        f"5:7: orders: a mapping with 'sql92' is not a subscription; expected {TAGS}",
    ),
    "no list of lite topics": (
        "orders: {lite_topics: a}",
        f"5:7: orders: 'a' is not a list of lite topics; expected {LITE}",
    ),
    "a lite topic twice": (
        "orders: {lite_topics: [a, a]}",
        f"5:7: orders: a lite topic is listed twice; expected {LITE}",
    ),
    "a bad lite topic": (
        "orders: {lite_topics: [a$b]}",
        f"5:7: orders: a lite topic's name may contain letters, digits and % | _ - only: 'a$b'; expected {LITE}",
    ),
    "long name": (
        f'{"x" * 128}: "*"',
        f"5:7: {'x' * 128}: the topic name {'x' * 128!r} has 128 characters; expected at most 127",
    ),
}

ROOTS = {
    "one bad name server of two": (
        'nameserver: ["a:1", "b:99999"]',
        f"1:1: nameserver: 'b:99999' is not host:port; expected {ADDRESS}",
    ),
    "address server without a scheme": (
        "nameserver_url: jmenv.tbsite.net:8080",
        "1:17: nameserver_url: 'jmenv.tbsite.net:8080' is not valid; expected an http:// or https:// URL",
    ),
    "group's key at the top": (
        "nameserver: a:1\nsubscriptions: {}",
        "2:1: subscriptions: unknown key here; move it to groups.NAME",
    ),
    "text for a section": (
        "nameserver: a:1\nlog: debug",
        "2:6: log: 'debug' is not a mapping; expected a mapping with the keys level, format",
    ),
    "name of a driver on Spark": (
        "nameserver: a:1\nclient: {instance_name: spark-1}",
        "2:25: client.instance_name: spark-1: spark- is reserved for drivers of engine: spark; expected another name",
    ),
    "certificate that is missing": (
        "nameserver: a:1\nclient:\n  tls: {enabled: true, ca_file: ca.pem}",
        "3:33: client.tls.ca_file: the file ca.pem cannot be read: No such file or directory; expected a valid PEM "
        "file",
    ),
    "heartbeat that comes too late": (
        "nameserver: a:1\nclient: {heartbeat_broker_interval: 2m}",
        "2:37: client.heartbeat_broker_interval: '2m' is out of range; "
        "expected a duration such as 50ms, 5s, 15m or 1h, from 10ms to 110s",
    ),
    "address to listen on": (
        "nameserver: a:1\nhttp: {listen: 9464}",
        "2:16: http.listen: 9464 is not text; "
        "expected host:port such as 127.0.0.1:9464, or port 0 for a free one, in quotes",
    ),
    "password with an @": (
        "nameserver: a:1\ngroups:\n  g:\n    engine: spark\n    subscriptions: {t: '*'}\n    pipeline: {plugin: p}\n"
        "    sink: {format: postgresql, url: 'postgresql://me:p@ss@db/shop?a=@', table: t}",
        "7:37: groups.g.sink.url: more than one @ before the host; expected %40 for an @ in the user or the password",
    ),
    "several words in the place of a list": (
        "nameserver: a:1\ngroups:\n  g:\n    engine: spark\n    subscriptions: {t: '*'}\n    pipeline: {plugin: p}\n"
        "    sink: {format: postgresql, url: 'postgresql://db/shop', table: t, keys: 'id, day'}",
        "7:77: groups.g.sink.keys: 'id, day' is not a list; expected a list, such as [a, b]",
    ),
    "token file that is missing": (
        "nameserver: a:1\nhttp: {token_file: token}",
        "2:20: http.token_file: the file token cannot be read: No such file or directory; expected a file with the "
        "token",
    ),
    "secret file that is missing": (
        "nameserver: a:1\nhttp: {token: '${file:/no/such/token}'}",
        "2:15: http.token: the file /no/such/token cannot be read: No such file or directory; expected a readable file",
    ),
    "handler without a plugin": (
        'nameserver: a:1\ngroups:\n  mailer:\n    subscriptions: {orders: "*"}\n    handler: {concurrency: 3}',
        "5:5: groups.mailer.handler.plugin: missing; "
        "expected a name in the entry-point group rmqd.handlers (`rmqd handlers` lists them), or module:attribute",
    ),
    "group that is no mapping": (
        "nameserver: a:1\ngroups:\n  mailer: log",
        "3:11: groups.mailer: 'log' is not a mapping; "
        "expected a mapping with the keys subscriptions, handler and others (rmqd schema)",
    ),
    "list for the groups": (
        "nameserver: a:1\ngroups: [mailer]",
        "2:1: groups: a list is not a mapping; expected a mapping of names to values",
    ),
    "group name that RocketMQ keeps": (
        "nameserver: a:1\ngroups:\n  DEFAULT_CONSUMER:\n    subscriptions: {a: '*'}\n    handler: {plugin: log}",
        "3:3: groups.DEFAULT_CONSUMER: the group name DEFAULT_CONSUMER is reserved by RocketMQ; choose another",
    ),
    "queue id that is negative": (
        "nameserver: a:1\ngroups:\n  m:\n    subscriptions: {a: '*'}\n    handler: {plugin: log}\n"
        "    allocate_queues:\n    - {topic: a, broker_name: b, queue_id: 0}\n"
        "    - {topic: a, broker_name: b, queue_id: -1}",
        "8:44: groups.m.allocate_queues[1].queue_id: -1 is out of range; expected a whole number 0 or more",
    ),
    "queue of another topic": (
        "nameserver: a:1\ngroups:\n  m:\n    subscriptions: {a: '*'}\n    handler: {plugin: log}\n"
        "    allocate_strategy: by_config\n    allocate_queues:\n"
        "    - {topic: '%RETRY%m', broker_name: b, queue_id: 0}\n    - {topic: other, broker_name: b, queue_id: 0}",
        "9:15: groups.m.allocate_queues[1].topic: other is not a topic of this group; expected a, %RETRY%m",
    ),
}

NO_YAML = {
    "two documents": (
        "nameserver: a:1\n---\nlog: {}",
        "2:1: a second document starts here; expected one per file",
    ),
    "text at the top": ("nameserver", "1:1: the file contains 'nameserver'; expected a mapping of keys"),
    "list as a key": ("? [a]\n: 1", "1:3: a key is not text; expected text, and quotes around {{...}}"),
    "nested too deep": ("a: " + "[" * 100_000, "1:54: values are nested more than 50 deep"),
    "alias of itself": ("a: &a [*a]", "1:8: alias *a does not refer to a complete earlier value"),
    "control character": ("nameserver: a:1 \x07", "1:17: the character U+0007 is not allowed in YAML"),
}


def test_a_bad_group_key_is_reported_with_place_and_expected_value(subtests: pytest.Subtests) -> None:
    for name, (line, expected) in IN_GROUP.items():
        with subtests.test(name):
            assert problems(f"{GROUP}    {line}\n") == [f"test.yaml:{expected}"]


def test_a_bad_subscription_is_reported_with_place_and_expected_value(subtests: pytest.Subtests) -> None:
    for name, (line, expected) in SUBSCRIPTIONS.items():
        with subtests.test(name):
            check_subscription(line, expected)


def test_a_bad_configuration_is_reported_with_place_and_expected_value(subtests: pytest.Subtests) -> None:
    for name, (text, expected) in ROOTS.items():
        with subtests.test(name):
            assert problems(text) == [f"test.yaml:{expected}"]


def test_a_file_that_is_not_a_configuration_is_reported_with_place(subtests: pytest.Subtests) -> None:
    for name, (text, expected) in NO_YAML.items():
        with subtests.test(name):
            assert f"test.yaml:{expected}" in problems(text)
