"""Broadcasting on a real RocketMQ: each member, Java's too, gets all messages despite kills, bad disks and torn files.

`RMQD_TEST_BROADCAST_MESSAGES=20000` sends 20,000 messages instead of 3,000.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from pathlib import Path

from rmqd.consumer.offsets.local_file_store import OffsetsFile
from tests.conformance import behaviour
from tests.consumer.offsets.disks import small_disk
from tests.integration.load import Load
from tests.rocketmq import RealCluster, ledger, offsets
from tests.smoke.test_broadcasting import JAVA_SECONDS, PERSIST_SECONDS, Member, java_member, keys, send
from tests.waiting import wait_until

MESSAGES = int(os.environ.get("RMQD_TEST_BROADCAST_MESSAGES", "3000"))
WRITE_SECONDS = 5.0  # the longest write on a busy machine, with the loop iteration before it
NAMES = ("a", "b", "c")


def java_file(directory: Path, client_id: str, group: str) -> OffsetsFile:
    return OffsetsFile(directory / ".rocketmq_offsets" / client_id / group)


@behaviour(
    "broadcasting",
    "Each member gets every message; a killed member continues from its file",
    java="offsets in offsets.json, written in place every 5 s",
    rmqd=("the same file, replaced as a whole and synced before the rename; a queue's start offset is stored at once"),
    checked="three rmqd members, one of them killed with -9, and a Java member in one group; their ledgers",
)
def test_each_member_gets_every_message_despite_kills_and_stops(
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
    for name in ("a", "c"):  # members that stop gracefully repeat nothing
        assert set(members[name].handled().values()) == {1}, name
    again = {key for key, times in members["b"].handled().items() if times > 1}
    begun = {entry.key: entry for entry in before if entry.event == ledger.START}
    above = {key for key, entry in begun.items() if entry.offset >= stored.get(entry.queue, 0)}
    print(
        f"{len(sent)} messages to each of 4 members; killed with -9: the file was {age_seconds:.2f} s old, "
        f"{len(again)} of {len(begun)} messages were handled again"
    )
    assert again <= above
    assert age_seconds < PERSIST_SECONDS + WRITE_SECONDS


@behaviour(
    "broadcasting",
    "offsets.json moves between the Java client and rmqd",
    java="reads its own file",
    rmqd="reads Java's file, and writes a file that Java reads",
    checked="a group that moves from Java to rmqd and back, with the file copied each time",
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
    "An orderly member has all queues without a lock, and retries failed messages in place",
    java="no lock requests; retried after suspendCurrentQueueTimeMillis",
    rmqd="the same",
    checked="an orderly Java member and an orderly rmqd member in parallel; their ledgers",
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
    "A full disk, a read-only disk and a torn file stop no messages",
    java=(
        "logged; offsets that were not written are lost when the process ends; a torn file is replaced by its backup"
    ),
    rmqd=(
        "logged once and then each minute, and written once the disk is writable again; a torn file is "
        "replaced by its backup"
    ),
    checked="rmqd with its state_dir on a disk that is filled up, made read-only and repaired",
)
def test_bad_disks_and_torn_files_lose_nothing(rocketmq: RealCluster, topic: str, group: str, tmp_path: Path) -> None:
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
            wait_until(lambda: member.handled().keys() == sent, "messages are handled on a full disk")
            wait_until(lambda: reasons() == ["No space left on device"], "the full disk is logged")
            assert member.stored() == kept
            assert rmqd.metric("rmqd_offset_committed", group=group) == 80
            disk.empty()
            wait_until(lambda: member.stored() == ends(), "the missing offsets are stored")
            wait_until(lambda: len(rmqd.events("offset.stored_again")) == 1, "the recovery is logged")

            rmqd.kill()
            whole = member.file.path.read_bytes()
            member.file.path.write_bytes(whole[: len(whole) // 2])
            rmqd.start()
            rmqd.wait_ready()
            sent |= send(rocketmq, topic, range(160, 240))
            wait_until(lambda: member.handled().keys() == sent, "messages are handled with the backup")
            (used,) = rmqd.events("offset.backup_used")
            assert "offsets.json is damaged" in used["instead_of"]

            disk.read_only(True)
            sent |= send(rocketmq, topic, range(240, 320))
            wait_until(lambda: member.handled().keys() == sent, "messages are handled on a read-only disk")
            wait_until(lambda: reasons()[1:] == ["Read-only file system"], "the read-only disk is logged")
            disk.read_only(False)
            wait_until(lambda: member.stored() == ends(), "the missing offsets are stored")

            rmqd.kill()
            for path in (member.file.path, member.file.backup):
                path.write_bytes(b"{")
            rmqd.start()
            wait_until(lambda: rmqd.events("group.failed"), "the group fails without a valid file")
            failure = rmqd.events("group.failed")[-1]["error"]
            assert "offsets.json is damaged" in failure
            assert "offsets.json.bak is damaged" in failure
            member.file.path.write_bytes(whole)
            wait_until(lambda: rmqd.events("group.restarted"), "the group restarts with a valid copy")
            sent |= send(rocketmq, topic, range(320, 400))
            wait_until(lambda: member.handled().keys() == sent, "no message is lost")
