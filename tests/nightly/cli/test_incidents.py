"""The output of commands that an operator uses during incidents."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from rmqd.cli.diagnose_command import _lines
from rmqd.cli.terminal.output import table
from rmqd.consumer.health.causes import make_problem
from rmqd.errors import ExitCode
from rmqd.operate.queries.diagnosis_queries import Diagnosis
from rmqd.wire.topics import dlq_topic
from tests.cli.cluster import Cluster
from tests.cli.in_process import rmqd


def test_check_warns_of_a_read_only_broker_and_an_unreachable_name_server(tmp_path: Path) -> None:
    """Both leave the group running, until a message fails or the other name server is down too."""
    with Cluster() as cluster:
        cluster.fill("orders", 1)
        cluster.change_broker(brokerPermission=4)
        group = {"subscriptions": {"orders": "*"}, "handler": {"plugin": "log"}}
        path = tmp_path / "rmqd.yaml"
        path.write_text(
            yaml.safe_dump({"nameserver": f"{cluster.nameserver};127.0.0.1:1", "groups": {"mailer": group}})
        )
        ended = rmqd("check", "--connect", "-c", path)
    assert ended.code == ExitCode.OK, ended.err
    warnings = [line for line in ended.out.splitlines() if line.startswith("warning")]
    assert warnings[0].startswith("warning      name server 127.0.0.1:1: does not answer (127.0.0.1:1: ")
    assert "is read-only (brokerPermission=4); find out why it was changed, then run `mqadmin" in warnings[1]


def test_dead_letters_of_one_reason_show_their_exceptions() -> None:
    """Each exception needs a different repair."""
    errors = {"k0": "KeyError: 'city'", "k1": "shop.TooLateError: by 3 s"}
    with Cluster() as cluster:
        cluster.give_up("mailer", "orders")
        for key, error in errors.items():
            trace = f"Traceback (most recent call last):\n  in handle\n{error}\n"
            properties = {
                "RETRY_TOPIC": "orders",
                "RMQD_REASON": "max_reconsume_times reached",
                "RMQD_EXCEPTION": trace,
            }
            cluster.send(dlq_topic("mailer"), "x", keys=key, queue_id=0, properties=properties)
        shown = " ".join(cluster.ask("dlq", "show", "mailer").out.split())
    assert [f"{error} (max_reconsume_times reached) {key}" in shown for key, error in errors.items()] == [True, True]


def test_a_reset_needs_no_topic_if_the_group_has_one(tmp_path: Path) -> None:
    with Cluster() as cluster:
        cluster.fill("orders", 2)
        cluster.commit("mailer", "orders", 2, 2, 2, 2)
        options = ("--to", "first", "--yes", "--set", f"state_dir={tmp_path}")
        ended = cluster.ask("offsets", "reset", "mailer", *options)
        assert ended.code == ExitCode.OK, ended.err
        assert [*cluster.offsets("mailer", "orders").values()] == [0, 0, 0, 0]


def test_a_consequence_is_listed_below_its_cause_without_a_next_step() -> None:
    causes = ("no_route", "topic_missing", "retries_dropped")
    problems = tuple(make_problem(cause, f"evidence of {cause}", group="mailer", topic="orders") for cause in causes)
    lines = _lines(Diagnosis("mailer", problems, {}))
    assert lines[0] == "mailer: 2 things are wrong, the likeliest cause first, with 1 consequence"
    of_the_first = lines[lines.index("1. no_route") : lines.index("2. retries_dropped")]
    assert "   therefore topic_missing: evidence of topic_missing" in of_the_first
    assert "create the topic" not in " ".join(lines)


@pytest.mark.parametrize(("is_terminal", "longest"), [(True, 58), (False, 114)])
def test_a_table_fits_the_terminal(monkeypatch: pytest.MonkeyPatch, is_terminal: bool, longest: int) -> None:
    """A pipe gets one line for each row."""
    stdout = SimpleNamespace(isatty=lambda: is_terminal)
    monkeypatch.setattr("rmqd.cli.terminal.output.sys", SimpleNamespace(stdout=stdout, maxsize=sys.maxsize))
    monkeypatch.setenv("COLUMNS", "60")
    assert max(map(len, table(("id", "body"), [("A" * 32, "x" * 80)]))) == longest
