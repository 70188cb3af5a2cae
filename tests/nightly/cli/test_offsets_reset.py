"""`rmqd offsets reset` and `restore`: the plan, the backup, and the offsets that change or stay."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from rmqd.wire.topics import retry_topic
from tests.cli.command import Ended
from tests.cli.in_process import rmqd
from tests.integration.consuming import now_ms, one_in_each_queue
from tests.nightly.cli.test_lag import commit
from tests.rocketmq import RealCluster, offsets
from tests.rocketmq.fixtures import fresh_name
from tests.rocketmq.producer import Producer

QUEUES = 8


def send(cluster: RealCluster, topic: str, count: int) -> None:
    """Send messages to the queues in turn."""
    with Producer(cluster.broker.address, topic) as producer:
        for number in range(count):
            producer.send(key=f"m{number}", queue=number % QUEUES)


def committed(cluster: RealCluster, group: str, topic: str) -> list[int | None]:
    """The group's offsets by queue id."""
    found = {queue.queue_id: offset for queue, offset in offsets.committed(cluster, group, topic).items()}
    return [found.get(number) for number in range(QUEUES)]


def of_mqadmin(cluster: RealCluster, group: str, topic: str) -> dict[int, tuple[int, int]]:
    """The queue's end and the group's offset in mqadmin, by queue id."""
    rows = [line.split() for line in cluster.admin("consumerProgress", "-g", group).splitlines()]
    return {int(row[2]): (int(row[3]), int(row[4])) for row in rows if row and row[0].startswith(topic[:30])}


class Resets:
    """The commands on one cluster, with a folder of the test's as state_dir."""

    def __init__(self, cluster: RealCluster, folder: Path) -> None:
        self._options: list[str | Path] = ["-n", cluster.nameserver, "--set", f"state_dir={folder}"]

    def reset(self, *arguments: str) -> Ended:
        return rmqd("offsets", "reset", *arguments, *self._options)

    def restore(self, path: str, *arguments: str) -> Ended:
        return rmqd("offsets", "restore", path, *arguments, *self._options)


def backup_in(ended: Ended) -> str:
    """The printed path of the backup."""
    (path,) = re.findall(r"^backup: (.+)$", ended.out, re.MULTILINE)
    assert isinstance(path, str)
    return path


@pytest.fixture
def resets(rocketmq: RealCluster, tmp_path: Path) -> Resets:
    return Resets(rocketmq, tmp_path)


@pytest.mark.process
def test_a_group_without_members_is_reset_and_restored(
    rocketmq: RealCluster, topic: str, group: str, resets: Resets, request: pytest.FixtureRequest
) -> None:
    """Other topics of the group, and other groups, stay unchanged. mqadmin shows the same offsets."""
    other_topic, other_group = rocketmq.create_topic(fresh_name(request.node.name, "other")), f"{group}_other"
    for one in (topic, other_topic):
        send(rocketmq, one, 80)
        for who in (group, other_group):
            commit(rocketmq, who, one, dict.fromkeys(range(QUEUES), 4))
    first = resets.reset(group, topic, "--to", "first", "--yes")
    assert first.code == 0, first.err
    assert committed(rocketmq, group, topic) == [0] * QUEUES
    assert first.out.startswith(f"{group}, {topic}: 8 queues to reset, 32 messages handled again, 0 skipped\n")
    assert re.search(r"^broker-a +3 +4 +0 +4 again +-$", first.out, re.MULTILINE), first.out
    assert first.out.endswith("8 queues stored\n")

    assert resets.reset(group, topic, "--to", "7", "--yes").code == 0
    assert committed(rocketmq, group, topic) == [7] * QUEUES
    assert resets.reset(group, topic, "--skip", "2", "--yes").code == 0
    assert committed(rocketmq, group, topic) == [9] * QUEUES
    cut = resets.reset(group, topic, "--skip", "20", "--yes")
    assert committed(rocketmq, group, topic) == [10] * QUEUES
    assert "1 skipped, because it has 0 to 10" in cut.out
    rocketmq.create_topic(retry_topic(group), 1)  # mqadmin finds groups by their retry topics
    assert of_mqadmin(rocketmq, group, topic) == dict.fromkeys(range(QUEUES), (10, 10))
    again = resets.reset(group, topic, "--to", "last", "--yes")
    assert (again.code, again.out) == (0, "nothing to do: every queue is at its target\n")

    back = resets.restore(backup_in(first), "--yes")
    assert back.code == 0, back.err
    assert committed(rocketmq, group, topic) == [4] * QUEUES
    assert of_mqadmin(rocketmq, group, topic) == dict.fromkeys(range(QUEUES), (10, 4))
    assert json.loads(Path(backup_in(back)).read_text())["offsets"][0] == {
        "broker": "broker-a",
        "queue": 0,
        "offset": 10,
    }
    for who, one in ((group, other_topic), (other_group, topic), (other_group, other_topic)):
        assert committed(rocketmq, who, one) == [4] * QUEUES


@pytest.mark.process
def test_nothing_is_reset_without_confirmation_or_backup(
    rocketmq: RealCluster, topic: str, group: str, resets: Resets, tmp_path: Path
) -> None:
    send(rocketmq, topic, 16)
    commit(rocketmq, group, topic, {0: 1, 1: 2})
    dry, refused = resets.reset(group, topic, "--to", "last", "--dry-run"), resets.reset(group, topic, "--to", "last")
    assert (dry.code, refused.code) == (0, 1)
    assert dry.out == refused.out
    assert "--yes" in refused.err
    assert committed(rocketmq, group, topic)[:2] == [1, 2]
    assert not (tmp_path / "backups").exists()
    planned = resets.reset(group, topic, "--to", "last", "--dry-run", "-o", "json").json()
    assert {one["state"] for one in planned["queues"]} == {"planned", "unchanged"}
    assert planned["queues"][0] == {
        "broker": "broker-a", "queue": 0, "from": 1, "to": 2, "gained": 0, "skipped": 1, "member": None,
        "state": "planned", "committed": 1, "error": None,
    }  # fmt: skip
    (tmp_path / "backups").write_text("a file where the folder should be")
    without_backup = resets.reset(group, topic, "--to", "last", "--yes")
    assert without_backup.code == 1
    assert f"so {topic} is not reset" in without_backup.err
    assert committed(rocketmq, group, topic)[:2] == [1, 2]


@pytest.mark.process
def test_one_queue_is_reset_to_a_time(rocketmq: RealCluster, topic: str, group: str, resets: Resets) -> None:
    """The new offset is that of the first message stored then or later. Other queues stay unchanged."""
    send(rocketmq, topic, 24)
    commit(rocketmq, group, topic, dict.fromkeys(range(QUEUES), 3))
    moment = now_ms()
    with Producer(rocketmq.broker.address, topic) as producer:
        for _ in range(2):
            producer.send(key="late", queue=5)
    commit(rocketmq, group, topic, {5: 5})
    as_text = datetime.fromtimestamp(moment / 1000, UTC).isoformat()
    for written in (f"@{moment}", as_text):
        done = resets.reset(group, topic, "--to", written, "--broker", "broker-a", "--queue", "5", "--yes")
        assert done.code == 0, done.err
        more = one_in_each_queue(rocketmq)
        assert committed(rocketmq, group, topic)[:5] + committed(rocketmq, group, topic)[6:] == [3] * (QUEUES - 1)
        assert committed(rocketmq, group, topic)[5] in {3, 3 - bool(more)}
        assert resets.reset(group, topic, "--to", "last", "--queue", "5", "--yes").code == 0
    absent = resets.reset(group, topic, "--to", "first", "--broker", "broker-z", "--yes")
    assert (absent.code, committed(rocketmq, group, topic)[5]) == (1, 5)
    assert "has no such readable queue" in absent.err


@pytest.mark.process
def test_a_reset_that_is_not_possible_is_explained(
    rocketmq: RealCluster, topic: str, group: str, resets: Resets, tmp_path: Path
) -> None:
    unknown = resets.reset(group, topic, "--to", "first", "--yes")
    assert unknown.code == 1
    assert f"no broker of topic {topic} knows group {group}" in unknown.err
    commit(rocketmq, group, topic, {0: 0})
    no_route = resets.reset(group, f"{topic}_absent", "--to", "first", "--yes")
    assert no_route.code == 1
    assert f"no route for topic {topic}_absent" in no_route.err
    light = resets.reset(group, "%LMQ%orders", "--to", "first", "--yes")
    assert (light.code, "light message queue" in light.err) == (1, True)
    dead = rocketmq.create_topic(f"%DLQ%{group}", 1)
    letters = resets.reset(group, dead, "--to", "last", "--yes")
    assert (letters.code, "`rmqd dlq purge` settles them" in letters.err) == (1, True)
    config = tmp_path / "rmqd.yaml"
    config.write_text(
        f"nameserver: {rocketmq.nameserver}\n"
        f"state_dir: {tmp_path}\n"
        f"groups:\n  {group}:\n    message_model: broadcasting\n    subscriptions: {{{topic}: '*'}}\n"
        "    handler: {plugin: log}\n"
    )
    broadcasting = rmqd("offsets", "reset", group, topic, "--to", "first", "--yes", "-c", config)
    assert (broadcasting.code, "is broadcasting" in broadcasting.err) == (1, True)
