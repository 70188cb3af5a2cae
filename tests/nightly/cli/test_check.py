"""`rmqd check` and `rmqd handlers` on the command line.

The core of these tests is in tests/cli/test_check.py.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rmqd.errors import RmqdError
from tests.cli import command
from tests.cli.conftest import _as_on_a_machine_without_rmqd
from tests.cli.in_process import rmqd
from tests.cli.test_check import GOOD

__all__ = ["_as_on_a_machine_without_rmqd"]


def test_a_failing_constructor_is_a_configuration_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    constructor = "def __init__(self, options): raise ValueError('no sender')"
    code = f"class Mailer:\n    {constructor}\n    def handle(self, batch): ...\n"
    Path("failing_mailer.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("rmqd.yaml").write_text(GOOD.replace("plugin: log", "plugin: 'failing_mailer:Mailer'"))
    result = rmqd("check", "-c", "rmqd.yaml")
    assert result.code == 78
    assert result.err.startswith(
        "rmqd.yaml:5:5: groups.mailer.handler.options: the handler's constructor failed: ValueError: no sender ("
    )


@pytest.mark.process
def test_characters_that_the_terminal_cannot_show_are_escaped(tmp_path: Path) -> None:
    (tmp_path / "rmqd.yaml").write_text(GOOD.replace("paid || refunded", "退款"))
    ended = command.rmqd("check", "-c", "rmqd.yaml", "--show", cwd=tmp_path, variables={"PYTHONIOENCODING": "latin-1"})
    assert (ended.code, "\\u9000\\u6b3e" in ended.out) == (0, True)


def test_handlers_as_json() -> None:
    found = {one["name"]: one for one in json.loads(rmqd("handlers", "-o", "json").out)}
    assert found["jsonl"]["distribution"] == "rmqd-handlers"
    assert found["jsonl"]["error"] is None
    assert {one["name"] for one in found["jsonl"]["options"] if one["required"]} == {"path"}


def test_pipelines_are_listed_with_handlers() -> None:
    """Spark is not imported, so it may be missing."""
    result = rmqd("handlers")
    assert "per_minute (pipeline)  rmqd-handlers" in result.out
    assert '  lateness (string, default "10m"): a duration: how much older' in result.out
    found = {one["name"]: one for one in json.loads(rmqd("handlers", "-o", "json").out)}
    assert (found["archive"]["kind"], found["jsonl"]["kind"]) == ("pipeline", "handler")
    assert found["archive"]["error"] is None


def test_a_broken_handler_is_listed_with_its_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "shop-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shop\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text("[rmqd.handlers]\nmailer = absent_shop:Mailer\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    result = rmqd("handlers")
    assert result.code == 0
    assert "mailer  shop 1.2  absent_shop:Mailer\n  broken: absent_shop:Mailer of shop cannot be imported: " in (
        result.out
    )


def test_check_verifies_java_and_the_options_of_a_group_on_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors are reported at the group's line, before anything is started."""
    monkeypatch.setattr("rmqd.config.rules.spark_rules.SPARK_PACKAGES", ())
    Path("rmqd.yaml").write_text(GOOD.replace("    handler:", "    engine: spark\n    handler:"))
    monkeypatch.setattr("rmqd.spark.check_versions", lambda: None)
    monkeypatch.setattr("rmqd.spark.prepare.find_java", lambda environ: None)
    result = rmqd("check", "--config", "rmqd.yaml")
    assert (result.code, result.err) == (0, "")
    assert result.out.splitlines()[1].endswith("to handler log on Spark (local[*,4])")

    wrong = GOOD.replace("    handler:", "    engine: spark\n    spark: {options: {minBytes: 4}}\n    handler:")
    Path("rmqd.yaml").write_text(wrong)
    result = rmqd("check", "--config", "rmqd.yaml")
    assert result.code == 78
    assert "spark.options: minBytes: there is no such option; expected one of " in result.err
    Path("rmqd.yaml").write_text(wrong.replace("minBytes", "maxBytesPerTrigger"))

    def no_java(environ: object) -> None:
        raise RmqdError("Spark needs Java 17 or later, but there is none")

    monkeypatch.setattr("rmqd.spark.prepare.find_java", no_java)
    result = rmqd("check", "--config", "rmqd.yaml")
    assert result.code == 78
    assert result.err == ("rmqd.yaml:5:13: groups.mailer.engine: Spark needs Java 17 or later, but there is none\n")


def test_filters_that_match_no_message_get_a_warning() -> None:
    """The warning has the filter's place in the file, and the form that was probably meant."""
    for written, meant in (
        ("paid, refunded", 'matches no message, because || joins tags; expected "paid || refunded"'),
        (
            "{sql: a = \u201cb\u201d}",
            "is a mistake: quotes must be straight, TAGS is one tag, and LIKE, &&, ||, == and != do not exist; "
            "expected {sql: \"a = 'b'\"}",
        ),
        (
            "{sql: tag = 'b'}",
            "is a mistake: quotes must be straight, TAGS is one tag, and LIKE, &&, ||, == and != do not exist; "
            "expected {sql: \"TAGS = 'b'\"}",
        ),
        ("paid || refunded", ""),
    ):
        filters = written if written.startswith("{") else f'"{written}"'
        group = f"  mailer:\n    subscriptions:\n      orders: {filters}\n    handler: {{plugin: log}}\n"
        Path("rmqd.yaml").write_text(f"nameserver: 127.0.0.1:9876\ngroups:\n{group}")
        result = rmqd("check", "--config", "rmqd.yaml")
        assert result.code == 0
        place = (
            "5:21: groups.mailer.subscriptions.orders.sql"
            if "sql" in written
            else "5:15: groups.mailer.subscriptions.orders"
        )
        assert result.err.startswith(f"warning: rmqd.yaml:{place}: " if meant else "")
        assert meant in result.err
        assert bool(result.err) == bool(meant)
