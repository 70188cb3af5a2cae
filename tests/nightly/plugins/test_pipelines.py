"""Pipelines and sinks of a configuration: how they are found, their arguments, and the errors about them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmqd.config.model.group_model import GroupConfig
from rmqd.config.rules import spark_rules
from rmqd.plugins.entry_points import find_object
from rmqd.plugins.handler_catalogue import load_batch_function, load_pipeline
from rmqd.plugins.model_options import load_runnable
from rmqd.plugins.option_form import PluginFaultError
from tests.config.configuration import problems

CODE = """
from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import BaseModel

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

class Options(BaseModel, extra="forbid"):
    minutes: int

def two(frame, spark): return ("two", frame, spark)
def three(frame: DataFrame, spark: SparkSession, options: Options) -> DataFrame: return ("three", frame, spark, options)
def free(frame, spark, options): return ("free", frame, spark, options)
class Called:
    def __call__(self, frame, spark, options: Options): return ("called", frame, spark, options)
called = Called()
def one(frame): pass
def four(frame, spark, options, more): pass
def named(frame, spark, *, window): pass
async def later(frame, spark): pass
def lazy(frame, spark): yield frame
number = 7
"""
GROUP = """\
nameserver: 127.0.0.1:9876
groups:
  archive:
    engine: spark
    subscriptions: {orders: "*"}
"""


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(spark_rules, "SPARK_PACKAGES", ())  # these checks need no Spark
    path = list(sys.path)
    (tmp_path / "flow.py").write_text(CODE)
    yield
    sys.path[:] = path
    sys.modules.pop("flow", None)


def config(pipeline: str, sink: str = "{format: rocketmq, topic: out}") -> str:
    return f"{GROUP}    pipeline: {pipeline}\n    sink: {sink}\n"


def group(pipeline: str, sink: str = "{format: rocketmq, topic: out}") -> GroupConfig:
    Path("test.yaml").write_text(config(pipeline, sink))
    return load_runnable(Path("test.yaml")).groups["archive"]


@pytest.mark.parametrize(
    ("pipeline", "expected"),
    [
        ("{plugin: 'flow:two'}", ("two", 1, 2)),
        ("{plugin: 'flow:free', options: {a: [1]}}", ("free", 1, 2, {"a": [1]})),
    ],
)
def test_a_pipeline_is_called_with_frame_session_and_options(pipeline: str, expected: object) -> None:
    assert load_pipeline("archive", group(pipeline))(1, 2) == expected


@pytest.mark.parametrize("name", ["three", "called"])
def test_options_are_validated_by_the_pipelines_own_model(name: str) -> None:
    """The model is found even if other types in the signature are imported only for type checkers."""
    made = load_pipeline("archive", group(f"{{plugin: 'flow:{name}', options: {{minutes: 5}}}}"))(1, 2)
    assert made[:3] == (name, 1, 2)
    assert made[3].minutes == 5


def test_a_sinks_function_gets_the_options_unchanged() -> None:
    settings = group("{plugin: 'flow:two'}", "{format: foreach_batch, plugin: 'flow:free', options: {a: [1]}}")
    assert load_batch_function("archive", settings)("frame", 7) == ("free", "frame", 7, {"a": [1]})


FORM = "expected a function of (frame, spark) or (frame, spark, options)"
REFUSED = {
    "{plugin: absent}": "6:24: groups.archive.pipeline.plugin: no pipeline 'absent' is installed; expected archive, "
    "cdc, per_minute, select, or module:attribute",
    "{plugin: 'flow:twoo'}": "6:24: groups.archive.pipeline.plugin: the module flow has no twoo: unknown name; did you "
    "mean two?",
    "{plugin: 'nowhere:two'}": "6:24: groups.archive.pipeline.plugin: the module nowhere cannot be imported: "
    "ModuleNotFoundError: No module named 'nowhere'; expected a module that is installed, in PYTHONPATH, or in FOLDER",
    "{plugin: 'flow:number'}": f"6:24: groups.archive.pipeline.plugin: the plugin is an int, not a pipeline; {FORM}",
    "{plugin: 'flow:Called'}": f"6:24: groups.archive.pipeline.plugin: the plugin is a class, not a pipeline; {FORM}",
    "{plugin: 'flow:one'}": f"6:24: groups.archive.pipeline.plugin: the plugin takes 1 argument; {FORM}",
    "{plugin: 'flow:four'}": f"6:24: groups.archive.pipeline.plugin: the plugin takes 4 arguments; {FORM}",
    "{plugin: 'flow:named'}": "6:24: groups.archive.pipeline.plugin: the plugin needs keyword arguments that rmqd does "
    f"not pass: window; {FORM}",
    "{plugin: 'flow:later'}": "6:24: groups.archive.pipeline.plugin: the plugin is a function with async, which would "
    f"never run; {FORM}",
    "{plugin: 'flow:lazy'}": "6:24: groups.archive.pipeline.plugin: the plugin is a function with yield, which would "
    f"never run; {FORM}",
    "{plugin: 'flow:two', options: {a: 1}}": "6:36: groups.archive.pipeline.options: the pipeline takes no options; "
    "expected no options",
    "{plugin: 'flow:three', options: {minute: 1, minutes: 2}}": "6:48: groups.archive.pipeline.options.minute: unknown "
    "option; did you mean minutes?",
    "{plugin: 'flow:three', options: {minutes: x}}": "6:57: groups.archive.pipeline.options.minutes: the value should "
    "be a valid integer, unable to parse string as an integer",
}


def test_errors_in_a_pipeline_have_their_line_and_column() -> None:
    found = {pipeline: problems(config(pipeline), to_run=True) for pipeline in REFUSED}
    assert found == {
        pipeline: [f"test.yaml:{said}".replace("FOLDER", str(Path.cwd()))] for pipeline, said in REFUSED.items()
    }


SINKS = {
    "{format: parquet}": "7:5: groups.archive.sink.path: missing; expected a folder or URL",
    "{format: delta}": "7:5: groups.archive.sink.path: missing; expected a folder or URL",
    "{format: rocketmq, path: /data}": "7:30: groups.archive.sink.path: has no effect with format: rocketmq; it needs "
    "format: parquet | delta",
    "{format: rocketmq, topic: a b}": "7:37: groups.archive.sink.topic: the topic name 'a b' contains a "
    "character that RocketMQ refuses; expected letters a-z and A-Z, digits, and % | - _",
    "{format: parquet, path: /data, output_mode: update}": "7:55: groups.archive.sink.output_mode: update is not "
    "possible with "
    "parquet: rows in files cannot be replaced; expected append",
    "{format: delta, path: /data, output_mode: update}": "7:53: groups.archive.sink.output_mode: update is not "
    "possible with "
    "delta: rows in files cannot be replaced; expected append, or update with keys",
    "{format: jdbc, options: {url: 'jdbc:x'}}": "7:26: groups.archive.sink.options.dbtable: missing; expected a table",
    "{format: jdbc, options: {url: 'jdbc:x', dbtable: t}, output_mode: complete}": "7:77: groups.archive.sink."
    "output_mode: complete is not possible with jdbc: rows are only added to a table; expected append | update",
    "{format: postgresql, table: t}": "7:5: groups.archive.sink.url: missing; expected a URL such as "
    "postgresql://db.example/shop",
    "{format: postgresql, url: 'jdbc:postgresql://db/shop', table: t}": "7:37: groups.archive.sink.url: libpq's URLs "
    "do not start with jdbc:; remove this prefix",
    "{format: postgresql, url: 'postgresql://db/shop', table: t, order_by: [a]}": "7:71: groups.archive.sink.order_by: "
    "has no effect without keys; set keys too",
    "{format: postgresql, url: 'postgresql://db/shop', table: t, keys: [a], delete_column: d}": "7:82: groups.archive."
    "sink.delete_column: without keys and order_by, the row to delete is unknown; set both",
    "{format: postgresql, url: 'postgresql://db/shop', table: t, keys: [a], order_by: [d], delete_column: d}": "7:112: "
    "groups.archive.sink.delete_column: d is also in order_by; expected another column",
    "{format: postgresql, url: 'postgresql://db/shop', table: t, output_mode: complete}": "7:84: groups.archive.sink."
    "output_mode: complete is not possible with postgresql: rows that the aggregate no longer contains would stay in "
    "the table; "
    "expected append | update",
    "{format: postgresql, url: 'postgresql://db/shop', table: t, output_mode: update}": "7:84: groups.archive.sink."
    "output_mode: update is not possible without keys: an aggregate's row would be added at every change; set keys",
    "{format: foreach_batch}": "7:5: groups.archive.sink.plugin: missing; expected module:attribute of (frame, "
    "batch_id) or (frame, batch_id, options)",
    "{format: foreach_batch, plugin: 'flow:one'}": "7:43: groups.archive.sink.plugin: the plugin takes 1 argument; "
    "expected a function of (frame, batch_id) or (frame, batch_id, options)",
    "{format: foreach_batch, plugin: two}": "7:43: groups.archive.sink.plugin: 'two' is not valid; expected "
    "module:attribute",
    "{format: rocketmq, topic: out, options: {a: [1]}}": "7:52: groups.archive.sink.options.a: this value is not "
    "possible; expected a text, number, true or false",
}


def test_errors_in_a_sink_have_their_line_and_column() -> None:
    found = {sink: problems(config("{plugin: 'flow:two'}", sink), to_run=True) for sink in SINKS}
    assert found == {sink: [f"test.yaml:{said}"] for sink, said in SINKS.items()}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "consume_mode: orderly",
            "8:19: groups.archive.consume_mode: orderly has no effect with a pipeline: a pipeline has only the order "
            "that it creates itself; expected concurrently",
        ),
        (
            "on_corrupt_message: dead_letter",
            "8:25: groups.archive.on_corrupt_message: pipelines do not support dead_letter: a pipeline sends no "
            "messages back, and so has no dead letters; expected stop | skip",
        ),
    ],
)
def test_keys_without_effect_on_a_pipeline_are_refused(line: str, expected: str) -> None:
    assert problems(config("{plugin: 'flow:two'}") + f"    {line}\n", to_run=True) == [f"test.yaml:{expected}"]


def test_only_a_module_is_expected_if_no_pipeline_is_installed() -> None:
    with pytest.raises(PluginFaultError) as raised:
        find_object("pipeline", "rmqd.of_which_there_are_none", "absent")
    assert [fault.message for fault in raised.value.faults] == [
        "no pipeline 'absent' is installed; expected module:attribute"
    ]
