"""Keys that a group on Spark may not have, each with its complete error message."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from rmqd.config.rules import spark_rules
from rmqd.errors import install_command
from tests.config.configuration import load, problems

GROUP = """\
nameserver: 127.0.0.1:9876
groups:
  mailer:
    engine: spark
    subscriptions: {orders: "*"}
    handler: {plugin: log}
"""
"""A valid configuration. Tests append at line 7."""

NO_WORK = GROUP.replace("    handler: {plugin: log}\n", "")


REFUSED = {
    "broadcasting": (
        "message_model: broadcasting",
        "7:20: groups.mailer.message_model: Spark does not support broadcasting: Spark reads each message once, not "
        "once for each member; expected clustering",
    ),
    "pop": (
        "consume_mode: pop",
        "7:19: groups.mailer.consume_mode: Spark does not support pop, because it reads ranges of offsets; "
        "expected concurrently | orderly",
    ),
    "an orderly group that tries for ever": (
        "consume_mode: orderly",
        "3:3: groups.mailer.max_reconsume_times: Spark does not support unlimited attempts, the default of orderly "
        "groups: a message that always fails would block its micro-batch, and so every queue; expected 0 or more",
    ),
    "an orderly group that says so": (
        "consume_mode: orderly\n    max_reconsume_times: -1",
        "8:26: groups.mailer.max_reconsume_times: Spark does not support unlimited attempts, the default of orderly "
        "groups: a message that always fails would block its micro-batch, and so every queue; expected 0 or more",
    ),
    "commits by hand": (
        "auto_commit: false",
        "7:18: groups.mailer.auto_commit: Spark does not support false: the checkpoint has the offsets of whole "
        "micro-batches, which a handler cannot hold back; expected true",
    ),
    "a strategy": (
        "allocate_strategy: consistent_hash",
        "7:5: groups.mailer.allocate_strategy: has no effect with engine: spark: Spark itself divides the queues "
        "among its tasks; remove this key",
    ),
    "a circuit breaker": (
        "circuit_breaker: {consecutive: 5}",
        "7:5: groups.mailer.circuit_breaker: not possible with engine: spark: the tasks of a micro-batch call the "
        "handler in many processes, which do not know each other's results; remove it",
    ),
    "speculation": (
        "spark: {conf: {spark.speculation: true}}",
        "7:39: groups.mailer.spark.conf.spark.speculation: a second copy of a task would handle its messages twice; "
        "expected false",
    ),
    "the master among the properties": (
        "spark: {conf: {spark.master: local}}",
        "7:20: groups.mailer.spark.conf.spark.master: not allowed here; use spark.master of the group, one level up",
    ),
    "nested properties": (
        "spark: {conf: {spark: {sql: true}}}",
        "7:20: groups.mailer.spark.conf.spark: not a text, number or flag; write the property's whole name as one key",
    ),
    "a handler and a pipeline": (
        "pipeline: {plugin: 'a:b'}\n    sink: {format: rocketmq, topic: out}",
        "7:5: groups.mailer.pipeline: set together with handler; remove one of them",
    ),
    "a sink for a handler": (
        "sink: {format: rocketmq, topic: out}",
        "7:5: groups.mailer.sink: has no effect without pipeline; set pipeline too",
    ),
}


def test_keys_that_spark_does_not_support_are_refused_with_the_reason(subtests: pytest.Subtests) -> None:
    for name, (lines, expected) in REFUSED.items():
        with subtests.test(name):
            assert problems(f"{GROUP}    {lines}\n") == [f"test.yaml:{expected}"]


def test_automatic_concurrency_is_refused() -> None:
    told = "Spark does not support auto: the duration of calls is not measured across its worker processes"
    expected = f"test.yaml:6:41: groups.mailer.handler.concurrency: {told}; expected a whole number from 1 to 1000"
    assert problems(GROUP.replace("plugin: log", "plugin: log, concurrency: auto")) == [expected]


def test_a_change_of_only_the_engine_moves_a_group() -> None:
    """The key `spark` may stay in the configuration."""
    text = GROUP + "    spark: {master: 'local[2,4]'}\n"
    assert load(text).groups["mailer"].engine == "spark"
    assert load(text, ["groups.mailer.engine=local"]).groups["mailer"].engine == "local"


def test_a_group_needs_a_handler_or_a_pipeline() -> None:
    """With a faulty pipeline, no missing handler is reported."""
    accepted = "expected handler: a mapping with the keys plugin, options, concurrency; or pipeline and sink"
    assert problems(NO_WORK) == [f"test.yaml:3:3: groups.mailer.handler: missing; {accepted}"]
    faulty = problems(f"{NO_WORK}    pipeline: {{plugin: 5}}\n    sink: {{format: rocketmq, topic: out}}\n")
    assert not any("groups.mailer.handler:" in problem for problem in faulty)


def test_a_pipeline_needs_a_sink() -> None:
    (found,) = problems(f"{NO_WORK}    pipeline: {{plugin: 'a:b'}}\n")
    assert found.startswith("test.yaml:3:3: groups.mailer.sink: required by pipeline; expected a mapping")


def test_without_pyspark_the_group_is_refused_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error has the install command. A configuration that is not run is valid."""
    monkeypatch.setattr(spark_rules, "find_spec", lambda name: None if name == "pyspark" else find_spec("json"))
    assert problems(GROUP, to_run=True) == [
        "test.yaml:4:13: groups.mailer.engine: spark needs pyspark, which is not installed; use local, or run "
        + install_command("spark")
    ]
    assert load(GROUP).groups["mailer"].engine == "spark"


def test_the_handler_is_checked_as_in_any_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_rules, "find_spec", lambda name: find_spec("json"))
    (found,) = problems(GROUP.replace("plugin: log", "plugin: nobody"), to_run=True)
    assert found.startswith("test.yaml:6:23: groups.mailer.handler.plugin: ")
    assert load(GROUP, to_run=True).groups["mailer"].engine == "spark"


@pytest.mark.parametrize("mode", ["", "    consume_mode: pop\n"])
def test_lite_topics_are_refused(mode: str) -> None:
    """The error does not suggest pop, because pop is refused too."""
    text = GROUP.replace('{orders: "*"}', "{chats: {lite_topics: [a]}}") + mode
    first, *others = problems(text)
    assert first == (
        "test.yaml:5:21: groups.mailer.subscriptions.chats: Spark does not support lite_topics, because "
        'brokers deliver them only with POP; expected engine: local, or "*" for all lite topics below'
    )
    assert len(others) == bool(mode)


def test_worker_processes_of_the_handler_are_refused() -> None:
    (problem,) = problems(GROUP.replace("{plugin: log}", "{plugin: log, processes: 2}"))

    assert problem == (
        "test.yaml:6:39: groups.mailer.handler.processes: not possible with engine: spark: Spark has its own worker "
        "processes, as many as spark.master specifies; expected 0"
    )


def test_an_at_sign_in_a_jdbc_url_is_accepted() -> None:
    """JDBC URLs have passwords among their parameters."""
    url = "jdbc:sqlserver://shop.example:1433;database=shop;user=loader@shop;password=p@ss"
    sink = f"    sink: {{format: jdbc, options: {{url: '{url}', dbtable: prices}}}}\n"
    assert load(f"{NO_WORK}    pipeline: {{plugin: archive}}\n{sink}").groups["mailer"].sink is not None
