"""A restart of a killed broker: rmqd continues without a restart."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.load import Load
from tests.integration.rmqd_process import RmqdProcess, ledger_group
from tests.rocketmq import RealCluster, ledger, offsets
from tests.rocketmq.fixtures import fresh_name
from tests.waiting import wait_until

pytestmark = pytest.mark.rocketmq


def handled(path: Path) -> set[str]:
    """Return the keys that were handled successfully."""
    return {entry.key for entry in ledger.read(path) if entry.event == ledger.FINISH}


@contextmanager
def loaded_daemon(
    cluster: RealCluster, tmp_path: Path, nameserver: str, messages: int
) -> Iterator[tuple[RmqdProcess, Load, Path]]:
    """Run a daemon under load. At the end it must be the same process, have no lag, and have handled every message."""
    topic = cluster.create_topic(fresh_name("faults", "topic"))
    group = fresh_name("faults", "group")
    path = tmp_path / "ledger"
    config = ledger_group(topic, path, "a", handler_options={"seconds": 0.01}, consume_from_where="first_offset")
    with (
        Load(cluster, topic, messages, per_second=200) as load,
        RmqdProcess(tmp_path / "rmqd", nameserver, {group: config}) as rmqd,
    ):
        pid = rmqd.pid
        wait_until(lambda: len(handled(path)) > 200, "200 messages are handled", 30)
        yield rmqd, load, path
        load.wait(60)
        wait_until(lambda: handled(path) >= load.sent.keys(), "every message is handled", 60)
        wait_until(lambda: offsets.lag(cluster, group, topic) == 0, "the lag is 0", 30)
        assert rmqd.running
        assert rmqd.pid == pid
        assert rmqd.get("/readyz")[0] == 200
        assert not rmqd.events("group.failed"), "the group continued without a restart"


def test_consumption_continues_after_a_broker_restart(rocketmq_faulty: RealCluster, tmp_path: Path) -> None:
    """The broker is killed, and no message is lost."""
    with loaded_daemon(rocketmq_faulty, tmp_path, rocketmq_faulty.nameserver, 2000):
        rocketmq_faulty.kill("broker")
        rocketmq_faulty.restart("broker")
