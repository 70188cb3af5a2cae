"""Defaults and ranges of the settings, and the options of engine and client."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from rmqd.client.client_options import ClientOptions, TlsOptions, TraceOptions
from rmqd.config.model.forms import description_of, keys_of
from rmqd.config.model.group_model import GroupConfig
from rmqd.config.model.root_model import RootConfig
from rmqd.config.reading.config_source import is_secret
from rmqd.consumer.allocate import AllocateStrategy, averagely, consistent_hash
from rmqd.consumer.consumer_options import CircuitOptions, ConsumerOptions, FailureOptions, GroupKeys, Subscription
from rmqd.errors import ConfigError
from rmqd.plugins.model_options import load_runnable, options_of_group
from tests.certificates import CA, CLIENT, ENCRYPTED_KEY, certificate
from tests.config.configuration import GROUP, load

SAMPLE = Path(__file__).parents[2] / "config" / "rmqd.yaml"
MIB = 1 << 20

# Java's checkConfig: the least and the greatest valid value, and the nearest values out of range.
JAVA_RANGES = {
    "handler.concurrency": ("1", "1000", "0", "1001"),
    "consume_message_batch_max_size": ("1", "1024", "0", "1025"),
    "consume_concurrently_max_span": ("1", "65535", "0", "65536"),
    "pull_threshold_for_queue": ("1", "65535", "0", "65536"),
    "pull_threshold_size_for_queue": ("1MiB", "1024MiB", "1048575B", "1025MiB"),
    "pull_threshold_for_topic": ("1", "6553500", "0", "6553501"),
    "pull_threshold_size_for_topic": ("1MiB", "102400MiB", "0B", "102401MiB"),
    "pull_interval": ("0s", "65535ms", "-1s", "65536ms"),
    "pull_batch_size": ("1", "1024", "0", "1025"),
    "suspend_current_queue_time": ("10ms", "30s", "9ms", "30001ms"),
    "pop_invisible_time": ("5s", "300s", "4999ms", "300001ms"),
    "pop_batch_nums": ("1", "32", "0", "33"),
    "pull_threshold_for_topic ": ("-1", "-1", "-2", "-2"),
    "pull_threshold_size_for_topic ": ("-1", "-1", "-2", "-1MiB"),
    "max_reconsume_times": ("-1", "2147483647", "-2", "2147483648"),
    "delay_level_when_next_consume": ("-1", "18", "-2", "-2"),
}


@pytest.fixture
def in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_sample_configuration_is_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = load_runnable(SAMPLE, environ={})
    assert list(config.groups) == ["order-mailer"]
    assert config.nameserver == ("127.0.0.1:9876",)
    assert load_runnable(SAMPLE, environ={"RMQD_NAMESERVER": "mq:9876"}).nameserver == ("mq:9876",)


@pytest.mark.usefixtures("in_empty_folder")
def test_ranges_equal_the_ranges_of_the_java_client(subtests: pytest.Subtests) -> None:
    for key, limits in JAVA_RANGES.items():
        with subtests.test(key=key):
            least, greatest, below, above = limits
            for accepted in (least, greatest):
                load(GROUP, [f"groups.mailer.{key.strip()}={accepted}"])
            for refused in (below, above):
                with pytest.raises(ConfigError, match="expected "):
                    load(GROUP, [f"groups.mailer.{key.strip()}={refused}"])


@pytest.mark.usefixtures("in_empty_folder")
def test_a_minimal_group_gets_the_java_clients_defaults() -> None:
    options = options_of_group(load(GROUP).groups["mailer"], "mailer", "/state")
    assert options == ConsumerOptions(
        group="mailer",
        message_model="clustering",
        local_offsets_directory="/state/offsets",
        consume_mode="concurrently",
        order_by="",
        subscriptions={"orders": Subscription("*", "TAG")},
        consume_from_where="last_offset",
        consume_timestamp_ms=None,
        allocate_strategy=AllocateStrategy("averagely", averagely),
        concurrency=20,
        hooks="all",
        consume_message_batch_max_size=1,
        consume_message_batch_max_wait_seconds=0.0,
        consume_timeout_seconds=900.0,
        max_reconsume_times=-1,
        delay_level_when_next_consume=0,
        auto_commit=True,
        suspend_current_queue_time_seconds=1.0,
        pull_batch_size=32,
        pull_interval_seconds=0.0,
        pull_threshold_for_queue=1000,
        pull_threshold_size_for_queue_bytes=100 * MIB,
        pull_threshold_for_topic=-1,
        pull_threshold_size_for_topic_bytes=-1,
        consume_concurrently_max_span=2000,
        persist_consumer_offset_interval_seconds=5.0,
        shutdown_timeout_seconds=30.0,
        queue_handover_timeout_seconds=5.0,
        pop_invisible_time_seconds=60.0,
        pop_batch_nums=32,
        pop_threshold_for_queue=96,
        pull_rate_limit=0,
        max_body_size_bytes=16 * MIB,
        on_corrupt_message="stop",
        on_offset_illegal="correct",
        deduplication=None,
    )


@pytest.mark.usefixtures("in_empty_folder")
def test_a_configuration_without_client_settings_gets_the_clients_defaults() -> None:
    assert load(GROUP).client_options() == ClientOptions(nameservers=("127.0.0.1:9876",))


@pytest.mark.usefixtures("in_empty_folder")
def test_every_option_of_the_engine_can_be_set() -> None:
    settings = {
        "message_model": "broadcasting",
        "consume_mode": "orderly",
        "consume_from_where": "timestamp",
        "consume_timestamp": "2026-01-01T00:00:00+08:00",
        "allocate_strategy": "consistent_hash",
        "handler.concurrency": "3",
        "hooks": "[tracing, audit]",
        "consume_message_batch_max_size": "4",
        "consume_message_batch_max_wait": "9s",
        "retry": "{in_place: 3, backoff: 100ms, max_backoff: 2s, on: [TimeoutError]}",
        "dead_letter.on": "[shop.Wrong]",
        "consume_timeout": "500ms",
        "max_reconsume_times": "5",
        "delay_level_when_next_consume": "6",
        "auto_commit": "false",
        "suspend_current_queue_time": "2s",
        "pull_batch_size": "7",
        "pull_interval": "8ms",
        "pull_threshold_for_queue": "9",
        "pull_threshold_size_for_queue": "10MiB",
        "pull_threshold_for_topic": "11",
        "pull_threshold_size_for_topic": "12MiB",
        "consume_concurrently_max_span": "13",
        "persist_consumer_offset_interval": "14s",
        "shutdown_timeout": "15m",
        "queue_handover_timeout": "1h",
        "pop_invisible_time": "19s",
        "pop_batch_nums": "20",
        "pop_threshold_for_queue": "21",
        "pull_rate_limit": "17",
        "max_body_size": "5MiB",
        "on_corrupt_message": "skip",
        "on_offset_illegal": "stop",
        "circuit_breaker.consecutive": "7",
        "circuit_breaker.ratio": "0.25",
        "circuit_breaker.window": "45s",
        "circuit_breaker.open_for": "20s",
        "enable_trace": "true",
        "trace_topic": "traces",
        "trace_msg_batch_num": "18",
        "subscriptions.refunds": '{sql: "amount > 100"}',
    }
    config = load(GROUP, [f"groups.mailer.{key}={value}" for key, value in settings.items()])
    changed = options_of_group(config.groups["mailer"], "mailer", "/state")
    assert changed == ConsumerOptions(
        group="mailer",
        message_model="broadcasting",
        local_offsets_directory="/state/offsets",
        consume_mode="orderly",
        order_by="",
        subscriptions={"orders": Subscription("*", "TAG"), "refunds": Subscription("amount > 100", "SQL92")},
        consume_from_where="timestamp",
        consume_timestamp_ms=1_767_196_800_000,
        allocate_strategy=AllocateStrategy("consistent_hash", consistent_hash),
        concurrency=3,
        hooks=("tracing", "audit"),
        consume_message_batch_max_size=4,
        consume_message_batch_max_wait_seconds=9.0,
        consume_timeout_seconds=0.5,
        max_reconsume_times=5,
        delay_level_when_next_consume=6,
        auto_commit=False,
        suspend_current_queue_time_seconds=2.0,
        pull_batch_size=7,
        pull_interval_seconds=0.008,
        pull_threshold_for_queue=9,
        pull_threshold_size_for_queue_bytes=10 * MIB,
        pull_threshold_for_topic=11,
        pull_threshold_size_for_topic_bytes=12 * MIB,
        consume_concurrently_max_span=13,
        persist_consumer_offset_interval_seconds=14.0,
        shutdown_timeout_seconds=900.0,
        queue_handover_timeout_seconds=3600.0,
        pop_invisible_time_seconds=19.0,
        pop_batch_nums=20,
        pop_threshold_for_queue=21,
        pull_rate_limit=17,
        max_body_size_bytes=5 * MIB,
        on_corrupt_message="skip",
        on_offset_illegal="stop",
        failures=FailureOptions(3, 0.1, 2.0, frozenset({"TimeoutError"}), frozenset({"shop.Wrong"})),
        circuit=CircuitOptions(7, 0.25, 45.0, 20.0),
        deduplication=None,  # it excludes other options; see tests/config/test_deduplicate.py
        trace=TraceOptions("traces", 18),
    )
    unchanged = [
        field.name
        for field in dataclasses.fields(GroupKeys)
        if getattr(changed, field.name) == getattr(GroupKeys, field.name)
    ]
    assert unchanged == ["order_by"], "set each key of GroupKeys above, except order_by, which excludes others"


@pytest.mark.usefixtures("in_empty_folder")
def test_every_option_of_the_client_can_be_set() -> None:
    text = """\
nameserver: " a:1; [::1]:9876 ;"
client:
  instance_name: one
  namespace: tenant
  unit_name: unit
  namespace_v2: shop
  unit_mode: true
  vip_channel_enabled: true
  poll_name_server_interval: 10s
  heartbeat_broker_interval: 20s
  access_key: ak
  secret_key: sk
  security_token: st
  tls:
    enabled: true
    ca_file: CA
    cert_file: CERTIFICATE
    key_file: KEY
    key_password: in-a-test
    verify: false
    server_name: mq.example
  max_frame_size: 1MiB
"""
    files = {"CA": CA, "CERTIFICATE": certificate(CLIENT), "KEY": ENCRYPTED_KEY}
    for name, path in files.items():
        text = text.replace(f"_file: {name}\n", f"_file: {path}\n")
    options = load(text).client_options()
    defaults = ClientOptions()
    unchanged = [
        field.name
        for field in dataclasses.fields(options)
        if getattr(options, field.name) == getattr(defaults, field.name)
    ]
    assert unchanged == ["nameserver_url", "state_dir"]
    assert options.nameservers == ("a:1", "[::1]:9876")
    assert (options.poll_name_server_interval_seconds, options.heartbeat_broker_interval_seconds) == (10.0, 20.0)
    assert (options.access_key, options.secret_key, options.security_token) == ("ak", "sk", "st")
    assert options.tls == TlsOptions(
        enabled=True,
        ca_file=str(CA),
        cert_file=str(certificate(CLIENT)),
        key_file=str(ENCRYPTED_KEY),
        verify=False,
        key_password="in-a-test",
        server_name="mq.example",
    )
    assert options.max_frame_size_bytes == MIB
    assert load("nameserver_url: http://a/b").client_options().nameserver_url == "http://a/b"


@pytest.mark.usefixtures("in_empty_folder")
def test_secrets_are_not_in_the_repr_of_a_configuration() -> None:
    text = """\
nameserver: a:1
client: {access_key: AKAK, secret_key: SKSK, security_token: STST, tls: {key_password: PWPW}}
http: {token: TKTK}
"""
    shown = repr(load(text))
    assert not any(secret in shown for secret in ("AKAK", "SKSK", "STST", "PWPW", "TKTK"))


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("client.secret_key", True),
        ("clusters.tokyo.client.tls.key_password", True),
        ("http.token", True),
        ("http.token_file", False),
        ("client.tls.key_file", False),
        ("groups.mailer.sink.options.db_password", True),
        ("defaults.handler.canary.options.database.token", True),
        ("groups.mailer.pipeline.options.token", False),
    ],
)
def test_secrets_are_recognized_by_declaration_or_option_name(key: str, expected: bool) -> None:
    assert is_secret(tuple(key.split("."))) is expected


@pytest.mark.usefixtures("in_empty_folder")
def test_a_group_that_only_moved_in_its_file_is_unchanged() -> None:
    first, second = load(GROUP), load(f"# a comment\n\n{GROUP}")
    assert first == second
    assert load(f"{GROUP}    pull_batch_size: 31\n") != first


def test_every_key_has_a_description() -> None:
    from rmqd.config.model.group_model import HandlerConfig
    from rmqd.config.model.root_model import ClientConfig, HttpConfig, LogConfig, TlsConfig

    for model in (RootConfig, ClientConfig, TlsConfig, HttpConfig, LogConfig, GroupConfig, HandlerConfig):
        assert [key for key, field in keys_of(model).items() if not description_of(field)] == []
