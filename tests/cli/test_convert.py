"""`rmqd convert`: settings of Java and Spring become a configuration, and each omission is reported."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from rmqd.config.load import explicit_settings, load_config
from tests.cli.in_process import rmqd

SPRING = """\
server: {port: 8080}
rocketmq:
  name-server: ${mq.name-server:10.0.0.1:9876}
  access-channel: LOCAL
  producer: {group: shop}
  consumer:
    group: mailer
    topic: orders
    selector-type: SQL92
    selector-expression: amount > 100
    message-model: CLUSTERING
    access-key: AK-1
    secret-key: ${MQ_SECRET}
    consume-thread-number: 2000
    consume-timeout: 15
    tls-enable: true
    listeners: {audit: {orders: false}}
"""
JAVA = """\
# the old client
namesrvAddr = mq1:9876;mq2:9876
mq.consumer.consumerGroup=mailer
topic: orders,invoices
tags = paid || \\
       refunded
consumeThreadMin=20
consumeThreadMax=64
consumeMessageBatchMaxSize 32
consumeFromWhere=CONSUME_FROM_FIRST_OFFSET
pullThresholdSizeForQueue=200
suspendCurrentQueueTimeMillis=2000
messageListener=MessageListenerOrderly
offsetStore=com.shop.Store
pullBatchSizeInBytes=1000
instanceName=\\u0061b
jdbc.url=here
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def converted(name: str, text: str) -> tuple[object, list[str]]:
    """Return the configuration as a user would run it, and the remarks, which are the same in both outputs."""
    Path(name).write_text(text)
    result = rmqd("convert", name)
    assert result.code == 0, result.err
    remarks = result.err.splitlines()
    as_json = rmqd("convert", name, "-o", "json")
    assert (as_json.json(), as_json.err) == ({"config": yaml.safe_load(result.out), "remarks": remarks}, result.err)
    assert [line.removeprefix("# ") for line in result.out.splitlines() if line.startswith("#")][1:] == remarks
    Path("rmqd.yaml").write_text(result.out)
    variables = {"MQ_NAMESERVER": "ns:1", "MQ_SECRET": "s", "RMQD_ACCESS_KEY": "a"}
    explicit_settings(load_config(Path("rmqd.yaml"), environ=variables))
    return yaml.safe_load(result.out), remarks


def test_a_file_without_a_suffix_is_yaml() -> None:
    """Such as /dev/stdin, or bash's <(kubectl get ...)."""
    config, _ = converted("63", SPRING)
    assert config == converted("application.YML", SPRING)[0]


def test_settings_of_spring() -> None:
    config, remarks = converted("application.yml", SPRING)
    assert config == {
        "nameserver": "${MQ_NAMESERVER:-10.0.0.1:9876}",
        "client": {"access_key": "${RMQD_ACCESS_KEY}", "secret_key": "${MQ_SECRET}", "tls": {"enabled": True}},
        "groups": {
            "mailer": {
                "subscriptions": {"orders": {"sql": "amount > 100"}},
                "message_model": "clustering",
                "consume_timeout": "15m",
                "handler": {"plugin": "handlers:handle"},
            }
        },
    }
    assert sorted(remarks) == [
        "application.yml:12: rocketmq.consumer.access-key: a secret; set it as the environment variable "
        "RMQD_ACCESS_KEY",
        "application.yml:14: rocketmq.consumer.consume-thread-number: not converted: 2000 is out of range; expected a "
        "whole number from 1 to 1000, or auto",
        "application.yml:17: rocketmq.consumer.listeners.audit.orders: this listener is off; group audit does not "
        "subscribe to orders",
        "application.yml:3: rocketmq.name-server: mq.name-server is the environment variable MQ_NAMESERVER here",
        "application.yml:4: rocketmq.access-channel: rmqd has no key for it: always LOCAL; it only changes the trace",
        "application.yml:5: rocketmq.producer.group: a setting of producers, which have no configuration here",
        "not settings of RocketMQ: server.port",
    ]


def test_properties_of_java() -> None:
    config, remarks = converted("client.properties", JAVA)
    assert config == {
        "nameserver": "mq1:9876;mq2:9876",
        "client": {"instance_name": "ab"},
        "groups": {
            "mailer": {
                "subscriptions": {"orders": "paid || refunded", "invoices": "paid || refunded"},
                "consume_message_batch_max_size": 32,
                "consume_from_where": "first_offset",
                "pull_threshold_size_for_queue": "200MiB",
                "suspend_current_queue_time": "2000ms",
                "consume_mode": "orderly",
                "handler": {"plugin": "handlers:handle", "concurrency": 20},
            }
        },
    }
    assert [remark.partition(": ")[2] for remark in remarks] == [
        "offsetStore: Java code; write it again in Python",
        "pullBatchSizeInBytes: rmqd has no key for it: always 262144; lower pull_batch_size for large messages",
        "jdbc.url: unknown; it is not a setting of the consumer",
        "consumeThreadMax: not used, because consumeThreadMin sets the same key",
    ]


def test_java_names_in_a_file_with_names_of_spring() -> None:
    """The names of Spring win. Other names with dots are those of other libraries."""
    text = "topic=bills\nnamesrvAddr=mq1:9876\nconsumerGroup=mailer\nconsumeThreadMin=64\njdbc.url=here\n"
    config, remarks = converted("client.properties", f"{text}rocketmq.consumer.topic=orders\n")
    handler = {"plugin": "handlers:handle", "concurrency": 64}
    groups = {"mailer": {"subscriptions": {"orders": "*"}, "handler": handler}}
    assert config == {"nameserver": "mq1:9876", "groups": groups}
    assert remarks == [
        "client.properties:1: topic: not used, because rocketmq.consumer.topic is set too; write a second group by "
        "hand",
        "not settings of RocketMQ: jdbc.url",
    ]
