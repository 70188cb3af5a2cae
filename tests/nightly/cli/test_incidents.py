"""What an operator reads during incidents: a command in, its text out."""

from __future__ import annotations

from pathlib import Path

import yaml

from rmqd.errors import ExitCode
from tests.cli.cluster import Cluster
from tests.cli.in_process import rmqd


def test_check_warns_of_a_read_only_broker_and_of_a_silent_name_server(tmp_path: Path) -> None:
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
