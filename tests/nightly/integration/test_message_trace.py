"""Traces of messages that rmqd sends and consumes, as mqadmin shows them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cli.command import rmqd
from tests.integration.rmqd_process import RmqdProcess, ledger_group
from tests.rocketmq import RealCluster
from tests.rocketmq.admin_shell import AdminShell
from tests.rocketmq.fixtures import fresh_name
from tests.waiting import wait_until

pytestmark = pytest.mark.rocketmq

ROW = re.compile(r"^(Pub|Sub) +(\S+) +(\S+) +\d{4}-\d\d-\d\d \d\d:\d\d:\d\d +\d+ms +(success|failed) *$", re.MULTILINE)


def test_mqadmin_shows_what_rmqd_sent_and_consumed(
    rocketmq: RealCluster, topic: str, group: str, tmp_path: Path
) -> None:
    failing, untraced = fresh_name("trace_failing", "group"), fresh_name("untraced", "group")
    groups = {
        group: ledger_group(
            topic, tmp_path / "ledger", "a", consume_from_where="first_offset", enable_trace=True, trace_msg_batch_num=3
        ),
        failing: ledger_group(
            topic,
            tmp_path / "failing",
            "b",
            enable_trace=True,
            consume_from_where="first_offset",
            consume_mode="orderly",
            handler_options={"fail_every": 1},
        ),
        untraced: ledger_group(topic, tmp_path / "untraced", "c"),
    }
    sent = rmqd("send", topic, "x", "--count", "7", "--trace", "--nameserver", rocketmq.nameserver, "-o", "json")
    assert (sent.code, sent.err) == (0, "")
    ids = [document["msg_id"] for document in sent.json()]

    with AdminShell(tmp_path) as shell, RmqdProcess(tmp_path / "rmqd", rocketmq.nameserver, groups) as daemon:

        def shown(msg_id: str) -> set[tuple[str, str, str]]:
            """Type, group and status of each trace record; empty until the trace topic has records of the message."""
            printed = shell.mqadmin(rocketmq.nameserver, "queryMsgTraceById", "-i", msg_id, check=False)
            return {(kind, name, status) for kind, name, _, status in ROW.findall(printed)}

        for msg_id in ids:
            wanted = {
                ("Pub", "CLIENT_INNER_PRODUCER", "success"), ("Sub", group, "success"), ("Sub", failing, "failed"),
                ("Sub", failing, "success"),
            }  # fmt: skip
            wait_until(lambda msg_id=msg_id, wanted=wanted: shown(msg_id) == wanted, f"the trace of {msg_id}", 40)  # type: ignore[misc]
        assert daemon.metric("rmqd_trace_records_total", group=group, outcome="sent") == 14
        assert daemon.terminate()[0] == 0
