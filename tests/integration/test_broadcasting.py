"""Broadcasting on a real RocketMQ: everything to every member, Java's too, through kills, bad disks and torn files.

`RMQD_TEST_BROADCAST_MESSAGES=20000` sends so many instead of 3000.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rmqd.consumer.offsets.offsets_file import OffsetsFile
from tests.conformance import behaviour
from tests.consumer.offsets.disks import small_disk
from tests.integration.load import Load
from tests.integration.rmqd_process import RmqdProcess, ledger_group
from tests.rocketmq import ClusterError, RealCluster, ledger, offsets
from tests.rocketmq.peers import JavaPeer, PeerOptions, start_consumer
from tests.rocketmq.producer import Producer
from tests.waiting import wait_until

MESSAGES = int(os.environ.get("RMQD_TEST_BROADCAST_MESSAGES", "3000"))
PERSIST_SECONDS = 1.0
WRITE_SECONDS = 5.0  # what a write may take on a busy machine, and the turn of the loop before it
JAVA_SECONDS = 60.0  # for a JVM on a busy machine
NAMES = ("a", "b", "c")


class Member:
    """An rmqd daemon with a state_dir of its own."""

    def __init__(self, cluster: RealCluster, topic: str, group: str, directory: Path, **settings: Any) -> None:
        self.ledger = directory / "ledger"
        self.file = OffsetsFile(directory / "state" / "offsets" / group)
        options = {"message_model": "broadcasting", "persist_consumer_offset_interval": f"{PERSIST_SECONDS:g}s"}
        options["consume_from_where"] = "first_offset"  # what was sent before is part of what is compared
        directory.mkdir(parents=True, exist_ok=True)
        config = ledger_group(topic, self.ledger, directory.name, **(options | settings))
        self.rmqd = RmqdProcess(directory, cluster.nameserver, {group: config})

    def handled(self) -> Counter[str]:
        return Counter(entry.key for entry in ledger.read(self.ledger) if entry.event == ledger.FINISH)

    def stored(self) -> dict[int, int]:
        return {queue.queue_id: offset for queue, offset in self.file.load().items()}


def java_member(cluster: RealCluster, topic: str, group: str, directory: Path, **options: object) -> JavaPeer:
    """The official client, with a home of its own, where it keeps its offsets."""
    directory.mkdir(parents=True, exist_ok=True)
    peer = PeerOptions(cluster.nameserver, topic, directory / "ledger", version=cluster.spec.version)
    return start_consumer(peer, group, model="BROADCASTING", **options)


def java_file(directory: Path, client_id: str, group: str) -> OffsetsFile:
    return OffsetsFile(directory / ".rocketmq_offsets" / client_id / group)


def keys(path: Path) -> list[str]:
    return [entry.key for entry in ledger.read(path) if entry.event == ledger.FINISH]


def send(cluster: RealCluster, topic: str, numbers: Iterable[int]) -> set[str]:
    """A message for each number, in turn to the queues; their keys."""
    with Producer(cluster.broker.address, topic) as producer:
        for number in numbers:
            producer.send(key=f"m{number}")
    return {f"m{number}" for number in numbers}


@behaviour(
    "broadcasting",
    "Each member gets every message; one that was killed goes on from its file",
    java="offsets in offsets.json, written in place every 5 s",
    rmqd="the same file, replaced as a whole and on the disk before its name; a queue's start is stored at once",
    checked="three rmqd members, one of them killed with -9, and a Java member in one group; their ledgers",
)
def test_each_member_gets_everything_through_kills_and_stops(
    rocketmq: RealCluster, topic: str, group: str, tmp_path: Path
) -> None:
    members = {name: Member(rocketmq, topic, group, tmp_path / name) for name in NAMES}
    java = java_member(rocketmq, topic, group, tmp_path / "java")
    try:
        for member in members.values():
            member.rmqd.start()
        for member in members.values():
            member.rmqd.wait_ready()
        with Load(rocketmq, topic, MESSAGES, per_second=max(750.0, MESSAGES / 20)) as load:
            wait_until(lambda: len(load.sent) > MESSAGES // 3, "a third is sent", 60)
            killed = members["b"]
            killed.rmqd.kill()
            killed_at = time.time()
            age_seconds = killed_at - killed.file.path.stat().st_mtime
            stored, before = killed.stored(), ledger.read(killed.ledger)
            killed.rmqd.start()
            wait_until(lambda: len(load.sent) > MESSAGES * 2 // 3, "two thirds are sent", 60)
            assert members["c"].rmqd.terminate()[0] == 0
            members["c"].rmqd.start()
            load.wait(120)
            sent = load.sent
        for member in members.values():
            wait_until(lambda m=member: m.handled().keys() >= sent.keys(), "a member has everything", 60)  # type: ignore[misc]
        wait_until(lambda: set(keys(tmp_path / "java" / "ledger")) >= sent.keys(), "so has the Java member", 60)
        assert members["a"].rmqd.terminate()[0] == 0
        java.stop()
    finally:
        java.kill()
        for member in members.values():
            member.rmqd.kill()

    ends = {queue.queue_id: offset for queue, offset in offsets.stored(rocketmq, topic).items()}
    assert members["a"].stored() == ends
    assert {q.queue_id: o for q, o in java_file(tmp_path / "java", java.client_id, group).load().items()} == ends
    for name in ("a", "c"):  # who stops in order repeats nothing
        assert set(members[name].handled().values()) == {1}, name
    again = {key for key, times in members["b"].handled().items() if times > 1}
    begun = {entry.key: entry for entry in before if entry.event == ledger.START}
    above = {key for key, entry in begun.items() if entry.offset >= stored.get(entry.queue, 0)}
    print(  # noqa: T201 - the figures, for who runs it with `-s`
        f"{len(sent)} messages to each of 4 members; killed with -9: the file was {age_seconds:.2f} s old, "
        f"{len(again)} of {len(begun)} messages were handled again"
    )
    assert again <= above
    assert age_seconds < PERSIST_SECONDS + WRITE_SECONDS


@behaviour(
    "broadcasting",
    "offsets.json moves between the Java client and rmqd",
    java="reads what it wrote",
    rmqd="reads Java's file, and writes one that Java reads",
    checked="a group that moves from Java to rmqd and back, the file copied each time",
)
def test_a_file_moves_from_java_to_rmqd_and_back(rocketmq: RealCluster, topic: str, group: str, tmp_path: Path) -> None:
    first = send(rocketmq, topic, range(100))
    java = java_member(rocketmq, topic, group, tmp_path / "java")
    wait_until(lambda: set(keys(tmp_path / "java" / "ledger")) == first, "Java has the first part", JAVA_SECONDS)
    assert java.stop() in (0, 128 + signal.SIGTERM)
    its_file = java_file(tmp_path / "java", java.client_id, group)

    second = send(rocketmq, topic, range(100, 200))
    member = Member(rocketmq, topic, group, tmp_path / "rmqd")
    member.file.path.parent.mkdir(parents=True)
    member.file.path.write_bytes(its_file.path.read_bytes())
    with member.rmqd as rmqd:
        wait_until(lambda: member.handled().keys() >= second, "rmqd has the second part")
        assert rmqd.terminate()[0] == 0
        assert {event["why"] for event in rmqd.events("queue.started")} == {"committed"}
    assert member.handled() == Counter(second)

    third = send(rocketmq, topic, range(200, 300))
    its_file.path.write_bytes(member.file.path.read_bytes())
    with java_member(rocketmq, topic, group, tmp_path / "java"):
        wait_until(lambda: set(keys(tmp_path / "java" / "ledger")) >= third, "Java has the third part", JAVA_SECONDS)
    assert Counter(keys(tmp_path / "java" / "ledger")) == Counter(first | third)


@behaviour(
    "broadcasting",
    "What a handler fails at is dropped",
    java="a log line; no retry topic, no dead letters",
    rmqd="the same, and counted as dead_lettered",
    checked="a Java member and rmqd, whose handlers fail at the same messages; their ledgers, and the retry topic",
)
def test_failures_are_dropped(rocketmq: RealCluster, topic: str, group: str, tmp_path: Path) -> None:
    member = Member(rocketmq, topic, group, tmp_path / "rmqd", handler_options={"fail_every": 3})
    with java_member(rocketmq, topic, group, tmp_path / "java", fail_every=3), member.rmqd as rmqd:
        rmqd.wait_ready()
        sent = send(rocketmq, topic, range(120))
        outcomes = [Counter[tuple[str, str]](), Counter[tuple[str, str]]()]

        def all_came() -> bool:
            for number, path in enumerate((member.ledger, tmp_path / "java" / "ledger")):
                ends = (entry for entry in ledger.read(path) if entry.event != ledger.START)
                outcomes[number] = Counter((entry.event, entry.key) for entry in ends)
            return all(outcome.total() >= len(sent) for outcome in outcomes)

        wait_until(all_came, "each has tried everything", JAVA_SECONDS)
        ends = {queue.queue_id: offset for queue, offset in offsets.stored(rocketmq, topic).items()}
        wait_until(lambda: member.stored() == ends, "what was dropped is consumed")
        failed = rmqd.metric("rmqd_messages_handled_total", group=group, result="dead_lettered")
        assert len(rmqd.events("message.dropped")) >= 1
    ours, javas = outcomes
    assert ours == javas
    assert set(ours.values()) == {1}
    assert failed == sum(event == ledger.FAIL for event, _ in ours) > 20
    with contextlib.suppress(ClusterError):  # there is no such topic
        assert sum(offsets.stored(rocketmq, f"%RETRY%{group}").values()) == 0


@behaviour(
    "broadcasting",
    "An orderly member has all queues without a lock, and repeats in place what fails",
    java="no lock requests; repeated after suspendCurrentQueueTimeMillis",
    rmqd="the same",
    checked="an orderly Java member and an orderly rmqd member side by side; their ledgers",
)
def test_orderly_members_do_not_wait_for_each_other(
    rocketmq: RealCluster, topic: str, group: str, tmp_path: Path
) -> None:
    sent = send(rocketmq, topic, range(48))
    options = {"consume_mode": "orderly", "handler_options": {"fail_every": 4}}
    member = Member(rocketmq, topic, group, tmp_path / "rmqd", **options)
    paths = (member.ledger, tmp_path / "java" / "ledger")
    with java_member(rocketmq, topic, group, tmp_path / "java", fail_every=4, orderly="true"), member.rmqd:
        wait_until(lambda: all(set(keys(path)) == sent for path in paths), "each has handled everything", JAVA_SECONDS)
    courses = []
    for path in paths:
        course: dict[int, list[tuple[str, str]]] = {}
        for entry in ledger.read(path):
            course.setdefault(entry.queue, []).append((entry.event, entry.key))
        courses.append(course)
    assert courses[0] == courses[1]
    assert sum(event == ledger.FAIL for course in courses[0].values() for event, _ in course) >= 6


@behaviour(
    "broadcasting",
    "A full disk, a read-only one and a torn file stop no message",
    java="logged, and what was not written is forgotten with the process; a torn file is met by its backup",
    rmqd="logged once and then each minute, and made up for when the disk takes it; a torn file is met by its backup",
    checked="rmqd with its state_dir on a disk that is filled up, made read-only and repaired",
)
def test_bad_disks_and_torn_files_are_survived(rocketmq: RealCluster, topic: str, group: str, tmp_path: Path) -> None:
    with small_disk(tmp_path / "rmqd" / "state") as disk:
        member = Member(rocketmq, topic, group, tmp_path / "rmqd", persist_consumer_offset_interval="100ms")

        def ends() -> dict[int, int]:
            return {queue.queue_id: offset for queue, offset in offsets.stored(rocketmq, topic).items()}

        def reasons() -> list[str]:
            return [event["error"] for event in member.rmqd.events("offset.not_stored")]

        with member.rmqd as rmqd:
            rmqd.wait_ready()
            sent = send(rocketmq, topic, range(80))
            wait_until(lambda: member.stored() == ends(), "the offsets are stored")
            kept = member.stored()

            disk.fill()
            sent |= send(rocketmq, topic, range(80, 160))
            wait_until(lambda: member.handled().keys() == sent, "messages are handled without room on the disk")
            wait_until(lambda: reasons() == ["No space left on device"], "it is said")
            assert member.stored() == kept
            assert rmqd.metric("rmqd_offset_committed", group=group) == 80
            disk.empty()
            wait_until(lambda: member.stored() == ends(), "what was not stored is")
            wait_until(lambda: len(rmqd.events("offset.stored_again")) == 1, "and it is said")

            rmqd.kill()
            whole = member.file.path.read_bytes()
            member.file.path.write_bytes(whole[: len(whole) // 2])
            rmqd.start()
            rmqd.wait_ready()
            sent |= send(rocketmq, topic, range(160, 240))
            wait_until(lambda: member.handled().keys() == sent, "the backup leads on")
            (used,) = rmqd.events("offset.backup_used")
            assert "offsets.json is damaged" in used["instead_of"]

            disk.read_only(True)
            sent |= send(rocketmq, topic, range(240, 320))
            wait_until(lambda: member.handled().keys() == sent, "messages are handled on a read-only disk")
            wait_until(lambda: reasons()[1:] == ["Read-only file system"], "it is said")
            disk.read_only(False)
            wait_until(lambda: member.stored() == ends(), "what was not stored is")

            rmqd.kill()
            for path in (member.file.path, member.file.backup):
                path.write_bytes(b"{")
            rmqd.start()
            wait_until(lambda: rmqd.events("group.failed"), "without either file the group fails")
            failure = rmqd.events("group.failed")[-1]["error"]
            assert "offsets.json is damaged" in failure
            assert "offsets.json.bak is damaged" in failure
            member.file.path.write_bytes(whole)
            wait_until(lambda: rmqd.events("group.restarted"), "a good copy in its place is enough")
            sent |= send(rocketmq, topic, range(320, 400))
            wait_until(lambda: member.handled().keys() == sent, "and nothing was lost")
