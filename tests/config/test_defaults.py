"""`defaults:`, which all groups inherit, and keys that start with `x-`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from rmqd.config.load import explicit_settings, load_config
from rmqd.config.model.forms import keys_of
from rmqd.config.model.group_model import GroupConfig
from rmqd.config.model.root_model import RootConfig
from rmqd.daemon.groups.group_reload import config_hash
from tests.cli.in_process import rmqd
from tests.config.configuration import load, problems

CONFIGURATION = """\
x-slow: &slow {consume_timeout: 30m, x-why: reports}
nameserver: 127.0.0.1:9876
defaults:
  pull_batch_size: 64
  retry: {in_place: 2, backoff: 50ms}
  handler: {plugin: jsonl, concurrency: 50, options: {path: all.jsonl, x-owner: me}}
groups:
  x-note: {any: thing}
  mailer:
    subscriptions: {orders: {sql: a > 1, x-note: 1}, x-orders: paid}
    retry: {in_place: 0}
  reports:
    <<: *slow
    subscriptions: {orders: "*"}
    handler: {plugin: log, concurrency: 2}
    pull_batch_size: 8
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def groups(text: str) -> dict[str, Any]:
    found: dict[str, Any] = explicit_settings(load(text, to_run=True))["groups"]
    return {name: {key: one for key, one in group.items() if key != "subscriptions"} for name, group in found.items()}


def pipeline(frame: Any, spark: Any) -> Any:
    return frame


def test_a_group_inherits_unset_keys_but_no_options_of_another_plugin() -> None:
    assert groups(CONFIGURATION) == {
        "mailer": {
            "pull_batch_size": 64,
            "retry": {"in_place": 0, "backoff": "50ms"},
            "handler": {"plugin": "jsonl", "concurrency": 50, "options": {"path": "all.jsonl"}},
        },
        "reports": {
            "consume_timeout": "30m",
            "pull_batch_size": 8,
            "retry": {"in_place": 2, "backoff": "50ms"},
            "handler": {"plugin": "log", "concurrency": 2},
        },
    }
    assert list(load(CONFIGURATION).groups["mailer"].subscriptions) == ["orders", "x-orders"]  # a topic too


def test_pipelines_and_handlers_inherit_only_their_own_keys() -> None:
    pytest.importorskip("pyspark")
    text = """\
nameserver: a:1
defaults:
  engine: spark
  deduplicate: {store: redis, url: "redis://a"}
  retry: {in_place: 1}
  handler: {concurrency: 5}
  spark: {master: "local[2,4]", conf: {spark.ui.enabled: false}}
  sink: {format: parquet, path: /lake, partition_by: [day]}
groups:
  etl:
    subscriptions: {orders: "*"}
    pipeline: {plugin: "tests.config.test_defaults:pipeline"}
    sink: {path: /lake/orders}
    spark: {conf: {spark.sql.shuffle.partitions: 4}}
  out:
    subscriptions: {orders: "*"}
    pipeline: {plugin: "tests.config.test_defaults:pipeline"}
    sink: {format: rocketmq, topic: out}
  mailer: {subscriptions: {orders: "*"}, engine: local, handler: {plugin: log}, deduplicate: }
"""
    found = groups(text)
    assert found["etl"]["sink"] == {"format": "parquet", "path": "/lake/orders", "partition_by": ["day"]}
    conf = {"spark.ui.enabled": False, "spark.sql.shuffle.partitions": 4}
    assert found["etl"]["spark"] == {"master": "local[2,4]", "conf": conf}
    assert found["out"]["sink"] == {"format": "rocketmq", "topic": "out"}
    assert not {"handler", "retry", "deduplicate"} & (found["etl"].keys() | found["out"].keys())
    assert found["mailer"].keys() == {"engine", "handler", "deduplicate", "retry", "spark"}
    assert found["mailer"]["deduplicate"] is None


def test_a_mistake_in_defaults_is_reported_once_at_its_own_key() -> None:
    text = """\
nameserver: a:1
defaults:
  pull_batchsize: 8
  consume_timeout: ${LONG}
  order_by: keys
  handler: {concurrency: many}
groups:
  a: {subscriptions: {orders: "*"}, handler: {plugin: log}}
  b: {subscriptions: {orders: "*"}, handler: {concurrency: 2}}
  c: {subscriptions: {orders: "*"}, handler: {plugin: log}, consume_mode: pop}
"""
    told = [line.partition(";")[0] for line in problems(text, ["defaults.pull_interval=5"])]
    assert told == [
        "test.yaml:3:3: defaults.pull_batchsize: unknown key",
        "test.yaml:4:20: defaults.consume_timeout: the environment variable LONG is not set",
        "test.yaml:5:3: defaults.order_by: not possible with POP, because brokers deliver the messages of a queue to "
        "several members at once",
        "test.yaml:6:26: defaults.handler.concurrency: 'many' is not a whole number",
        "test.yaml:9:37: groups.b.handler.plugin: missing",
        "--set defaults.pull_interval: defaults.pull_interval: 5 has no unit",
    ]
    [order] = [line for line in problems(text) if "order_by" in line]
    assert order.endswith("; remove this key (inherited by groups.c)")


def test_only_keys_that_start_with_x_are_ignored_in_any_file() -> None:
    Path("groups").mkdir()
    Path("rmqd.yaml").write_text("nameserver: a:1\ndefaults: {handler: {plugin: log}}\nlog: {x-level: loud}\n")
    Path("groups/a.yaml").write_text("x-b: &b {orders: '*'}\ngroups: {a: {subscriptions: *b}}\n")
    Path("groups/b.yaml").write_text("x-b: &b {orders: '*'}\nsubscriptions: *b\n")
    for name in ("c", "d"):
        Path(f"groups/{name}.yaml").write_text(f"x-b: &b {{orders: '*'}}\n{name}: {{subscriptions: *b}}\n")
    assert list(load_config(Path("rmqd.yaml"), environ={}).groups) == ["a", "b", "c", "d"]
    [told] = problems("nameserver: a:1\nX-Log: 1\n")
    assert told.startswith("test.yaml:2:1: X-Log: unknown key")


def test_a_changed_default_changes_the_hash_but_no_group_that_overrides_it() -> None:
    def read(pull_batch_size: int) -> RootConfig:
        return load(CONFIGURATION, [f"defaults.pull_batch_size={pull_batch_size}"])

    assert config_hash(read(64)) != config_hash(read(65))
    assert read(64).groups["reports"] == read(65).groups["reports"]


def test_check_shows_each_group_with_its_defaults() -> None:
    Path("rmqd.yaml").write_text(CONFIGURATION)
    result = rmqd("check", "--config", "rmqd.yaml", "--show")
    assert (result.code, result.err) == (0, "")
    shown = yaml.safe_load(result.out)["groups"]
    assert shown["mailer"]["subscriptions"] == {"orders": {"sql": "a > 1"}, "x-orders": "paid"}
    assert {name: group["pull_batch_size"] for name, group in shown.items()} == {"mailer": 64, "reports": 8}
    assert "    pull_batch_size: 64  # defaults, rmqd.yaml:4:3\n" in result.out
    assert "    pull_batch_size: 8\n" in result.out
    result = rmqd("check", "--config", "rmqd.yaml", "--show", "-o", "json")
    assert yaml.safe_load(result.out)["settings"] == shown


ON_SPARK = """\
nameserver: a:1
defaults: DEFAULTS
groups:
  mailer: {subscriptions: {orders: "*"}, engine: spark, WORK}
"""
# keys that Spark supports, ignores, or refuses by their values, because they would change what the group promises
KNOWN_ON_SPARK = """cluster engine subscriptions spark handler pipeline sink message_model consume_mode order_by
    offset_store auto_commit circuit_breaker consume_message_batch_max_wait consume_from_where consume_timestamp
    shutdown_timeout pull_batch_size on_corrupt_message on_offset_illegal queue_handover_timeout
    persist_consumer_offset_interval pop_invisible_time pop_batch_nums pop_threshold_for_queue"""
IDLE_ON_SPARK = {
    "allocate_strategy": "by_machine_room",
    "allocate_queues": [{"topic": "orders", "broker_name": "b", "queue_id": 0}],
    "machine_rooms": ["a"],
}
IDLE_IN_PIPELINES = {
    **dict.fromkeys(
        "consume_timeout suspend_current_queue_time pull_interval".split(),
        "9s",
    ),
    **dict.fromkeys(
        "consume_message_batch_max_size max_reconsume_times delay_level_when_next_consume trace_msg_batch_num "
        "pull_threshold_for_queue pull_threshold_for_topic consume_concurrently_max_span pull_rate_limit".split(),
        9,
    ),
    **dict.fromkeys("pull_threshold_size_for_queue pull_threshold_size_for_topic max_body_size".split(), "9MiB"),
    "enable_trace": True,
    "trace_topic": "traces",
    "hooks": "none",
    "retry": {"in_place": 1},
    "dead_letter": {"on": ["ValueError"]},
    "deduplicate": {"store": "redis", "url": "redis://a"},
}
PIPELINE = "pipeline: {plugin: p}, sink: {format: rocketmq, topic: out}"


def test_keys_without_effect_on_spark_are_refused_in_a_group_and_accepted_in_defaults() -> None:
    assert keys_of(GroupConfig).keys() == {*KNOWN_ON_SPARK.split(), *IDLE_ON_SPARK, *IDLE_IN_PIPELINES}
    for work, idle in (("handler: {plugin: log}", IDLE_ON_SPARK), (PIPELINE, IDLE_ON_SPARK | IDLE_IN_PIPELINES)):
        for key, value in idle.items():
            text = ON_SPARK.replace("WORK", f"{work}, {key}: {json.dumps(value)}")
            [told] = problems(text.replace("DEFAULTS", "{}"))
            assert f": groups.mailer.{key}: has no effect with " in told
            assert told.endswith("; remove this key")
        named = "persist_consumer_offset_interval: 1s, pull_interval: 0s"  # ignored, and the default
        load(ON_SPARK.replace("WORK", f"{work}, {named}").replace("DEFAULTS", "{}"))
        text = ON_SPARK.replace("WORK", work).replace("DEFAULTS", json.dumps(idle))
        assert load(text).groups["mailer"].allocate_strategy == "by_machine_room"


def test_keys_of_the_handler_without_effect_on_spark_are_refused_in_a_group_and_accepted_in_defaults() -> None:
    for key, value in {"max_concurrency": 9, "process_memory": "64MiB"}.items():
        text = ON_SPARK.replace("WORK", f"handler: {{plugin: log, {key}: {value}}}")
        [told] = problems(text.replace("DEFAULTS", "{}"))
        assert f": groups.mailer.handler.{key}: has no effect with engine: spark: " in told
        text = ON_SPARK.replace("WORK", "handler: {plugin: log}")
        assert load(text.replace("DEFAULTS", f"{{handler: {{{key}: {value}}}}}")).groups["mailer"].engine == "spark"


def test_a_pipeline_may_inherit_the_mode_of_the_handlers() -> None:
    text = ON_SPARK.replace("DEFAULTS", "{consume_mode: orderly, retry: {in_place: 1}, " + PIPELINE + "}")
    assert load(text.replace(", WORK", "")).groups["mailer"].pipeline is not None
