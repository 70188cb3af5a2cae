"""More bad configurations than in tests/config/test_errors.py, and 300 random ones."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings

from tests.config.any_configuration import CONFIGURATIONS, check_problems_have_places
from tests.config.configuration import GROUP, load, problems


@settings(max_examples=300)
@given(CONFIGURATIONS)
def test_any_configuration_loads_or_has_problems_with_places(data: dict[str, object]) -> None:
    check_problems_have_places(data)


def test_java_names_outside_of_a_group_are_reported_with_the_key_to_write() -> None:
    assert problems(f"pullBatchSize: 32\nrocketmq: {{}}\nclient: {{useTLS: true, unitName: a}}\n{GROUP}") == [
        "test.yaml:1:1: pullBatchSize: unknown key; write groups.NAME.pull_batch_size: 32",
        "test.yaml:2:1: rocketmq: no key for this Java setting: write nameserver, client and groups at the top level",
        "test.yaml:3:10: client.useTLS: this is the Java client's name; write tls.enabled: true",
        "test.yaml:3:24: client.unitName: unknown key; write unit_name",
    ]


LIGHT_QUEUES = {
    "namespace": (
        "client: {namespace: shop}\n",
        "",
        "light message queues do not support namespaces (shop%%LMQ%room); use a cluster without client.namespace",
    ),
    "pop": (
        "",
        "    consume_mode: pop\n",
        "light message queues are pulled, not popped; expected consume_mode: concurrently | orderly",
    ),
    "spark": ("", "    engine: spark\n", "Spark does not support light message queues; expected engine: local"),
}


def test_light_queues_are_refused_with_namespace_pop_and_spark(subtests: pytest.Subtests) -> None:
    for name, (root, line, expected) in LIGHT_QUEUES.items():
        with subtests.test(name):
            text = (
                f'{root}nameserver: a:1\ngroups:\n  mailer:\n    subscriptions: {{"%LMQ%room": "*"}}\n{line}'
                "    handler: {plugin: log}\n"
            )
            assert [found for found in problems(text) if f"groups.mailer.subscriptions.%LMQ%room: {expected}" in found]


NEARBY = "machine_room_nearby needs client.instance_name with the machine room of this process, but"


def test_the_offset_store_broker_accepts_no_options() -> None:
    text = "nameserver: a:1\ngroups:\n  mailer:\n    subscriptions: {orders: '*'}\n    handler: {plugin: log}\n"

    assert problems(f"{text}    offset_store: {{plugin: broker, options: {{url: x}}}}\n") == [
        "test.yaml:6:36: groups.mailer.offset_store.options: broker has no options; expected another plugin"
    ]
    assert load(f"{text}    offset_store: {{plugin: broker, options: {{}}}}\n").groups


def test_a_memory_limit_needs_worker_processes() -> None:
    text = """\
nameserver: 127.0.0.1:9876
groups:
  mailer:
    subscriptions: {orders: "*"}
    handler: {plugin: log, process_memory: 64MiB}
"""

    assert problems(text) == [
        "test.yaml:5:28: groups.mailer.handler.process_memory: has no effect without "
        "processes, because the daemon itself is not limited; set handler.processes too"
    ]
    assert load(text.replace("64MiB", "64MiB, processes: 2")).groups


def test_an_instance_name_without_a_machine_room_is_refused_to_run(subtests: pytest.Subtests) -> None:
    for instance in ("DEFAULT", "east", "@mailer", "east@"):
        with subtests.test(instance=instance):
            client = f"client: {{instance_name: {json.dumps(instance)}}}\n"
            assert problems(f"{client}{GROUP}    allocate_strategy: machine_room_nearby\n", to_run=True) == [
                f"test.yaml:7:24: groups.mailer.allocate_strategy: {NEARBY} {instance!r} has none; expected "
                f"room@name, with a unique name"
            ]


def test_an_instance_name_with_a_machine_room_is_accepted() -> None:
    text = f"client: {{instance_name: east@mailer-1}}\n{GROUP}    allocate_strategy: machine_room_nearby\n"
    assert load(text).groups["mailer"].allocate_strategy == "machine_room_nearby"


def test_names_must_be_valid_with_the_namespace_too() -> None:
    text = f"""\
nameserver: a:1
client: {{namespace: {"n" * 30}}}
groups:
  {"g" * 100}:
    subscriptions: {{"{"t" * 100}": "*", "a b": "*"}}
    handler: {{plugin: log}}
  order mailer: {{subscriptions: {{a: "*"}}, handler: {{plugin: log}}}}
"""
    found = problems(text)
    assert [line.split(": ", 2)[2] for line in found] == [
        f"the group name {'n' * 30 + '%' + 'g' * 100!r} has 131 characters; expected at most 120",
        f"the topic name {'n' * 30 + '%' + 't' * 100!r} has 131 characters; expected at most 127",
        "the topic name 'a b' contains a character that RocketMQ refuses; "
        "expected letters a-z and A-Z, digits, and % | - _",
        "the group name 'order mailer' contains a character that RocketMQ refuses; "
        "expected letters a-z and A-Z, digits, and % | - _",
    ]
