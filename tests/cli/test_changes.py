"""Commands that send messages and change groups; on the embedded broker, in this process."""

from __future__ import annotations

import contextlib
import json
import re
import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from rmqd.errors import RmqdError
from rmqd.operate.replay.replay_plan import ReplayFolder, ReplayPlan
from rmqd.wire.message_queue import Identity
from rmqd.wire.topics import retry_topic
from tests.cli.cluster import QUEUES, Cluster
from tests.cli.command import Ended
from tests.cli.in_process import rmqd


@pytest.fixture(autouse=True)
def _commands_look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a command waits for is there within milliseconds, as the broker is in this process."""
    monkeypatch.setattr("rmqd.operate.resets.reset_requests.POLL_SECONDS", 0.01)
    monkeypatch.setattr("rmqd.operate.replay.replay_run.POLL_SECONDS", 0.01)
    monkeypatch.setattr("rmqd.operate.replay.replay_run.PERSIST_SECONDS", 0.05)


def test_a_message_is_stored_as_asked(cluster: Cluster) -> None:
    cluster.create_topic("orders", QUEUES)
    arguments = ("--keys", "order-17 c-4", "--tags", "paid", "-p", "region=eu", "-p", "sum=a=b")
    (document,) = cluster.json("send", "orders", "für dich", *arguments)
    (message,) = cluster.messages("orders")
    assert (message.body.decode(), message.keys, message.tags) == ("für dich", "order-17 c-4", "paid")
    assert (message.properties["region"], message.properties["sum"]) == ("eu", "a=b")
    assert (message.msg_id, message.queue_offset) == (document["msg_id"], document["offset"])
    assert (document["topic"], document["status"]) == ("orders", "SUCCESS")

    cluster.create_topic("bytes", 1)
    assert cluster.ask("send", "bytes", "-", stdin=b"\x00\xff\n").code == 0
    assert [message.body for message in cluster.messages("bytes")] == [b"\x00\xff\n"]


def test_several_messages_go_to_the_queues_that_are_chosen(cluster: Cluster) -> None:
    cluster.create_topic("several", 8)
    sent = cluster.json("send", "several", "x", "--count", "100")
    assert len({document["msg_id"] for document in sent}) == 100
    assert {document["queue"] for document in sent} == set(range(8))
    assert len({(document["queue"], document["offset"]) for document in sent}) == 100

    cluster.create_topic("keyed", 8)
    sent = cluster.json("send", "keyed", "x", "--count", "20", "--sharding-key", "TagA")
    # Java: "TagA".hashCode() is 2598919, and 2598919 % 8 is 7
    assert [(document["queue"], document["offset"]) for document in sent] == [(7, offset) for offset in range(20)]
    assert cluster.messages("keyed")[0].properties["__SHARDINGKEY"] == "TagA"

    shown = cluster.ask("send", "keyed", "x", "--count", "2", "--queue", "3")
    lines = shown.out.splitlines()
    assert (len(lines), shown.err) == (2, "")
    assert [re.findall(r"  keyed  broker-a  queue 3  offset (\d)", line) for line in lines] == [["0"], ["1"]]
    refused = cluster.ask("send", "keyed", "x", "--queue", "8")
    assert refused.code == 1
    assert "keyed has no writable queue 8; expected one of broker-a:0 to broker-a:7" in refused.err


def test_a_delayed_message_waits_at_the_broker(cluster: Cluster) -> None:
    cluster.create_topic("delayed", 1)
    at_ms = round(time.time() + 3600) * 1000
    cluster.json("send", "delayed", "level", "--delay-level", "18")
    cluster.json("send", "delayed", "timer", "--deliver-at", f"@{at_ms}")
    assert cluster.messages("delayed") == []
    (by_level,) = cluster.messages("SCHEDULE_TOPIC_XXXX")
    assert (by_level.body, by_level.properties["REAL_TOPIC"]) == (b"level", "delayed")
    (by_timer,) = cluster.messages("rmq_sys_wheel_timer")
    assert (by_timer.body, by_timer.properties["REAL_TOPIC"]) == (b"timer", "delayed")
    assert by_timer.properties["TIMER_DELIVER_MS"] == str(at_ms)
    refused = cluster.ask("send", "delayed", "later", "--delay", "10d")
    assert refused.code == 1
    assert "the delay time should not be bigger than the max delay 259200000ms" in refused.err
    assert "0 of 1 messages were sent" in refused.err


def test_a_group_is_reset_and_restored(cluster: Cluster, tmp_path: Path) -> None:
    """By first, an offset and a skip. Another topic of the group, and another group, stay."""
    for topic in ("moved", "unmoved"):
        cluster.fill(topic, 10)
        for group in ("mover", "stayer"):
            cluster.commit(group, topic, 4, 4, 4, 4)
    options = ("--set", f"state_dir={tmp_path}")

    def reset(*arguments: str) -> Ended:
        return cluster.ask("offsets", "reset", "mover", "moved", *arguments, *options)

    def backup_in(ended: Ended) -> str:
        assert ended.code == 0, ended.err
        (path,) = re.findall(r"^backup: (.+)$", ended.out, re.MULTILINE)
        return str(path)

    def offsets() -> list[int]:
        return list(cluster.offsets("mover", "moved").values())

    dry, refused = reset("--to", "last", "--dry-run"), reset("--to", "last")
    assert (dry.code, refused.code, dry.out) == (0, 1, refused.out)
    assert "--yes" in refused.err
    planned = reset("--to", "last", "--dry-run", "-o", "json").json()
    assert planned["queues"][0] == {
        "broker": "broker-a", "queue": 0, "from": 4, "to": 10, "gained": 0, "skipped": 6, "member": None,
        "state": "planned", "committed": 4, "error": None,
    }  # fmt: skip
    assert offsets() == [4] * QUEUES
    assert list(tmp_path.iterdir()) == []

    first = reset("--to", "first", "--yes")
    backup = backup_in(first)
    assert offsets() == [0] * QUEUES
    assert first.out.startswith("mover, moved: 4 queues to reset, 16 messages handled again, 0 skipped\n")
    assert re.search(r"^broker-a +3 +4 +0 +4 again +-$", first.out, re.MULTILINE), first.out
    assert first.out.endswith("4 queues stored\n")
    assert reset("--to", "7", "--yes").code == 0
    assert offsets() == [7] * QUEUES
    assert reset("--skip", "2", "--yes").code == 0
    assert offsets() == [9] * QUEUES
    assert "1 skipped, because it has 0 to 10" in reset("--skip", "20", "--yes").out
    assert offsets() == [10] * QUEUES
    again = reset("--to", "last", "--yes")
    assert (again.code, again.out) == (0, "nothing to do: every queue is at its target\n")
    assert reset("--to", "3", "--broker", "broker-a", "--queue", "1", "--yes").code == 0
    assert offsets() == [10, 3, 10, 10]

    back = cluster.ask("offsets", "restore", backup, "--yes", *options)
    assert json.loads(Path(backup_in(back)).read_text())["offsets"][0] == {
        "broker": "broker-a", "queue": 0, "offset": 10,
    }  # fmt: skip
    assert offsets() == [4] * QUEUES
    for group, topic in (("mover", "unmoved"), ("stayer", "moved"), ("stayer", "unmoved")):
        assert list(cluster.offsets(group, topic).values()) == [4] * QUEUES

    def reset_all(*arguments: str) -> Ended:
        return cluster.ask("offsets", "reset", "mover", "--to", "6", "--yes", *arguments, *options)

    assert "mover has the topics moved, unmoved; name one of them, or use --all-topics" in reset_all().err
    both = reset_all("--all-topics", "-o", "json").json()
    assert [(one["topic"], json.loads(Path(one["backup"]).read_text())["topic"]) for one in both] == [
        ("moved", "moved"), ("unmoved", "unmoved"),
    ]  # fmt: skip
    assert {*cluster.offsets("mover", "moved").values(), *cluster.offsets("mover", "unmoved").values()} == {6}


def test_a_reset_that_cannot_be_made_changes_nothing(cluster: Cluster, tmp_path: Path) -> None:
    cluster.fill("kept", 1)
    cluster.commit("keeper", "kept", 0, 0, 0, 0)
    cluster.create_topic("%DLQ%keeper", 1)
    (tmp_path / "backups").write_text("a file instead of the folder")
    for group, topic, told in (
        ("keeper", "kept", "nothing was changed"),
        ("unknown", "kept", "no broker of topic kept knows group unknown"),
        ("keeper", "absent", "no route for topic absent"),
        ("keeper", "%LMQ%kept", "light message queue"),
        ("keeper", "%DLQ%keeper", "`rmqd dlq purge` settles them"),
    ):
        state = ("--set", f"state_dir={tmp_path}")
        ended = cluster.ask("offsets", "reset", group, topic, "--to", "last", "--yes", *state)
        assert (ended.code, told in ended.err) == (1, True), ended.err
    Path("rmqd.yaml").write_text(
        f"nameserver: {cluster.nameserver}\ngroups: {{keeper: {{message_model: broadcasting, "
        'subscriptions: {kept: "*"}, handler: {plugin: log}}}\n'
    )
    broadcasting = rmqd("offsets", "reset", "keeper", "kept", "--to", "last", "--yes", "-c", "rmqd.yaml")
    assert (broadcasting.code, "is broadcasting" in broadcasting.err) == (1, True)
    assert cluster.offsets("keeper", "kept") == dict.fromkeys(range(QUEUES), 0)


def test_a_mode_is_set_once_it_is_asked_for(cluster: Cluster) -> None:
    cluster.create_topic("popped", QUEUES)
    command = ("groups", "mode", "popper", "popped")

    def modes() -> dict[str, str]:
        found = cluster.json("groups", "show", "popper")["brokers"]["broker-a"]["modes"]
        assert isinstance(found, dict)
        return found

    plan = "popper, popped:\nbroker-a: pull -> pop\n"
    unknown = "no broker knows group popper yet: this prepares it; see `rmqd groups list`"
    prepares = cluster.ask(*command, "pop", "--dry-run")
    assert (prepares.code, prepares.out) == (0, f"popper, popped:\n{unknown}\nbroker-a: pull -> pop\n")
    cluster.commit("popper", "popped", 0)
    dry, refused = cluster.ask(*command, "pop", "--dry-run"), cluster.ask(*command, "pop")
    assert (dry.code, dry.out, refused.code, refused.out) == (0, plan, 1, plan)
    assert "--yes" in refused.err
    planned = {"broker": "broker-a", "was": "pull", "mode": "pop", "share_queues": 0, "error": None}
    assert cluster.json(*command, "pop", "--dry-run") == [planned]
    assert modes() == {}

    done = cluster.ask(*command, "pop", "--yes")
    assert (done.code, done.out) == (0, f"{plan}set on broker-a\n")
    assert modes() == {"popped": "pop"}
    assert cluster.json(*command, "pop", "--yes") == [planned | {"was": "pop"}]
    shared = cluster.ask(*command, "pop", "--share-queues", "2", "--yes")
    assert shared.out.endswith("broker-a: pop -> pop, each queue shared by 2\nset on broker-a\n")
    assert cluster.ask(*command, "pull", "--yes").code == 0
    assert modes() == {"popped": "pull"}


@pytest.fixture
def own_cluster() -> Iterator[Cluster]:
    """For a test that runs a handler, after which the broker's clock may be ahead."""
    with Cluster() as running:
        yield running


def test_dead_letters_are_shown_chosen_replayed_and_purged(own_cluster: Cluster, tmp_path: Path) -> None:
    cluster = own_cluster
    cluster.create_topic("failing", 1)
    cluster.give_up("failer", "failing", "k0", "k1", "k2", "k3")
    state = ("--set", f"state_dir={tmp_path}")

    def dlq(*arguments: str) -> Ended:
        return cluster.ask("dlq", *arguments, *state)

    def counts() -> tuple[int, int]:
        (line,) = [one for one in dlq("list", "-o", "json").json() if one["group"] == "failer"]
        assert (line["brokers"], line["last_stored_ms"] > 0) == (["broker-a"], True)
        return line["left"], line["messages"]

    assert counts() == (4, 4)
    letters = dlq("show", "failer", "-o", "json").json()
    shown = [(one["keys"], one["origin_topic"], one["reason"]) for one in letters]
    assert shown == [(f"k{number}", "failing", f"bad k{number}") for number in range(4)]
    newest = dlq("show", "failer", "--most", "2", "-o", "json")
    assert [one["keys"] for one in newest.json()] == ["k2", "k3"]
    assert newest.err == "rmqd: only the newest 2 are shown; use --most for more\n"
    assert dlq("show", "failer").out.count("bad k") == 4
    cluster.change_topic("%DLQ%failer", 2)  # as brokers of RocketMQ 4 make it
    for command in (("show",), ("replay", "--yes"), ("purge", "--yes", "--reason", "BAD K3")):
        unread = dlq(command[0], "failer", *command[1:])
        assert (unread.code, "`mqadmin updateTopicPerm -t %DLQ%failer -p 6` to make it" in unread.err) == (1, True)
    cluster.change_topic("%DLQ%failer", 6)

    dry = dlq("replay", "failer", "--dry-run", "--rate", "5", "--key", "k0", "--key", "k1")
    assert (dry.code, dry.out.splitlines()) == (0, [
        "failer: 2 of 4 dead letters left",
        "  1  bad k0",
        "  1  bad k1",
        "of the topics: failing 2",
        "to %RETRY%failer, which only this group reads, as new messages with reconsume times from 0",
        "no members now: they wait for one",
        "at most 5 per second",
    ])  # fmt: skip
    refused = dlq("replay", "failer")
    assert (refused.code, "--yes" in refused.err, counts()) == (1, True, (4, 4))
    purged = dlq("purge", "failer", "--reason", "BAD K3", "--yes", "-o", "json")
    assert (purged.code, purged.json()["purged"], purged.json()["left"]) == (0, 1, 3), purged.err
    assert counts() == (3, 4)

    result = dlq("replay", "failer", "--yes", "-o", "json")
    assert (result.code, result.json()["sent"], result.json()["failed"], result.json()["left"]) == (0, 3, [], 0)
    assert result.json()["topic"] == "%RETRY%failer"
    sent = cluster.messages(retry_topic("failer"))
    assert [(one.keys, one.body, one.properties["RETRY_TOPIC"]) for one in sent] == [
        (f"k{number}", f"of k{number}".encode(), "failing") for number in range(3)
    ]
    assert not any({"RMQD_REASON", "RMQD_EXCEPTION", "RMQD_GROUP"} & one.properties.keys() for one in sent)
    again = dlq("replay", "failer", "--yes")
    assert (again.code, again.out) == (0, "failer has no dead letters left\n")
    assert counts() == (0, 4)
    handled = cluster.run_handler(lambda batch: None, "failing", "failer", consume_from_where="last_offset")
    assert sorted(message.keys or "" for message in handled.acked) == ["k0", "k1", "k2"]


def test_files_of_one_cluster_do_not_count_on_another(cluster: Cluster, own_cluster: Cluster, tmp_path: Path) -> None:
    """Of the same names, in one state_dir. Files of 0.1.0, which note no cluster, are still understood."""
    state = ("--set", f"state_dir={tmp_path}")
    for one in (cluster, own_cluster):
        one.fill("both", 2)
        one.commit("both_ways", "both", 1, 1, 1, 1)
        one.create_topic("both_failing", 1)
        one.give_up("both_ways", "both_failing", "k0", "k1")

    def left(one: Cluster) -> int:
        (line,) = [line for line in one.json("dlq", "list", *state) if line["group"] == "both_ways"]
        return int(line["left"])

    assert cluster.ask("dlq", "purge", "both_ways", "--yes", *state).code == 0
    assert (left(cluster), left(own_cluster)) == (0, 2)
    assert own_cluster.ask("dlq", "purge", "both_ways", "--key", "k1", "--yes", *state).code == 0
    (marks,) = [path for path in (tmp_path / "dlq").rglob("marks.json") if b"[[0, 2]]" in path.read_bytes()]
    (tmp_path / "dlq" / "both_ways").mkdir()
    marks.rename(tmp_path / "dlq" / "both_ways" / "marks.json")
    assert (left(cluster), left(own_cluster)) == (0, 1)

    path = Path(cluster.json("offsets", "reset", "both_ways", "--to", "last", "--yes", *state)["backup"])
    document = json.loads(path.read_text())
    for written in (document, {name: value for name, value in document.items() if name != "cluster"}):
        path.write_text(json.dumps(written))
        refused = own_cluster.ask("offsets", "restore", path, "--yes", *state)
        assert (refused.code, list(own_cluster.offsets("both_ways", "both").values())) == (2, [1] * QUEUES)
        assert all(named in refused.err for named in (cluster.nameserver, own_cluster.nameserver, "--force"))
        assert cluster.ask("offsets", "restore", path, "--dry-run", *state).code == 0
    assert own_cluster.ask("offsets", "reset", "both_ways", "both", "--to", "last", "--yes", *state).code == 0
    assert own_cluster.ask("offsets", "restore", path, "--force", "--yes", *state).code == 0
    assert list(own_cluster.offsets("both_ways", "both").values()) == [1] * QUEUES


def test_a_plan_of_another_cluster_is_refused(tmp_path: Path) -> None:
    """Also one of 0.1.0, which does not say where it belongs."""
    ours, other = (ReplayFolder(tmp_path, "shop", Identity(cluster, "", "shop")) for cluster in ("c1", "c2"))
    plan = ReplayPlan("shop", "1h", None, 0, 1, "2026-11-25T08:14:03Z", (), ours.identity)
    ours.write(plan)
    assert (ours.read(), other.read()) == (plan, None)
    (tmp_path / "replays/c1/~/shop").rename(tmp_path / "replays/shop")
    former = tmp_path / "replays/shop/plan.json"
    for identity, named in ((plan.identity, "c1/~/shop"), ("", "shop on a cluster that rmqd 0.1.0 did not store")):
        former.write_bytes(replace(plan, identity=identity).to_json())
        with pytest.raises(RmqdError, match=rf"is the plan of {named}, and this is c2/~/shop; --force resumes it"):
            other.read()
    taken = other.read(is_forced=True)
    assert taken == replace(plan, identity="c2/~/shop")
    other.write(taken)
    assert (other.read(), former.exists()) == (taken, False)


def test_dead_letters_that_cannot_be_replayed_are_named(cluster: Cluster, tmp_path: Path) -> None:
    """One was sent by hand. The others are sent, and the exit code is 1; for an unknown group nothing is written."""
    cluster.give_up("sender", "failing", "k1")
    cluster.send("%DLQ%sender", "x", keys="by-hand", queue_id=0)
    state = ("--set", f"state_dir={tmp_path / 'state'}")
    for group, told in (
        ("nobody", "rmqd: no broker knows group nobody; run `rmqd dlq list` to see the groups with dead letters\n"),
        ("../../other", "a character that RocketMQ refuses"),
    ):
        for command in ("replay", "purge"):
            refused = cluster.ask("dlq", command, group, "--yes", *state)
            assert (refused.code, refused.out, told in refused.err) == (1, "", True)
    assert list(tmp_path.iterdir()) == []
    ended = cluster.ask("dlq", "replay", "sender", "--yes", "-o", "json", *state)
    result = ended.json()
    assert (ended.code, result["sent"], result["left"]) == (1, 1, 1)
    assert [one["error"] for one in result["failed"]] == ["it does not say which topic it came from (RETRY_TOPIC)"]
    assert "1 message failed" in ended.err
    assert cluster.ask("dlq", "replay", "sender", "--since", "yesterday", *state).code == 2
    assert cluster.ask("dlq", "show", "sender", "--property", "shop", *state).code == 2


Check = Callable[..., Ended]


@pytest.fixture
def check(cluster: Cluster) -> Check:
    """Runs `rmqd check --connect -o json` on a group, with some of its keys replaced."""
    cluster.create_topic("checked", QUEUES)

    def run(group: str, *arguments: str, **keys: object) -> Ended:
        settings = {"subscriptions": {"checked": "*"}, "handler": {"plugin": "log"}, **keys}
        document = {"nameserver": cluster.nameserver, "groups": {group: settings}}
        Path("rmqd.yaml").write_text(yaml.safe_dump(document))
        return rmqd("check", "--connect", "-c", "rmqd.yaml", "-o", "json", *arguments)

    return run


def problems(ended: Ended) -> list[str]:
    return [f"{one['subject']}: {one['message']}" for one in ended.json()["checks"] if one["level"] != "ok"]


def test_check_finds_a_cluster_that_agrees(cluster: Cluster, check: Check) -> None:
    """It joins no group, and makes none."""
    unknown = check("checker")
    (warning,) = problems(unknown)
    assert (unknown.code, "does not know the group yet" in warning) == (0, True)
    assert not cluster.knows_group("checker")
    cluster.make_group("checker")
    ended = check("checker", subscriptions={"checked": {"sql": "amount > 100 AND region = 'eu'"}})
    document = ended.json()
    assert (ended.code, document["ok"], problems(ended)) == (0, True, [])
    said = [one["message"] for one in document["checks"]]
    assert f"name server {cluster.nameserver}" in [one["subject"] for one in document["checks"]]
    assert "4 queues on 1 broker" in said
    assert any(one.endswith("accepts the SQL filter") for one in said)
    people = rmqd("check", "--connect", "-c", "rmqd.yaml")
    assert f"OK           name server {cluster.nameserver}: answers, and knows 1 broker" in people.out.splitlines()
    one_away = check("checker", "--set", f"nameserver={cluster.nameserver};127.0.0.1:1")
    assert one_away.code == 0
    assert [one.startswith("name server 127.0.0.1:1: does not answer") for one in problems(one_away)] == [True]


def test_check_names_each_disagreement(cluster: Cluster, check: Check) -> None:
    """Each has the exit code 1 and a line."""
    cluster.make_group("checker")
    cluster.make_group("forbidden", consume_enable=False)
    cluster.make_group("no_retries", retry_queue_nums=0)
    cluster.make_group("no_broadcast", retry_queue_nums=0, consume_broadcast_enable=False)
    cluster.create_topic("write_only", QUEUES)
    cluster.change_topic("write_only", 2)
    expected: list[tuple[str, dict[str, Any], str]] = [
        (
            "checker",
            {"subscriptions": {"absent": "*"}},
            "no name server knows topic absent; create the topic, or remove it",
        ),
        ("checker", {"subscriptions": {"write_only": "*"}}, "is not readable on broker-a"),
        ("checker", {"subscriptions": {"checked": {"sql": "amount >"}}}, "refuses the SQL filter 'amount >'"),
        ("forbidden", {}, "forbids the group to consume (consumeEnable is false)"),
        ("no_retries", {}, "has no retry queue for the group (retryQueueNums)"),
        ("no_broadcast", {"message_model": "broadcasting"}, "forbids broadcasting"),
    ]
    for group, keys, told in expected:
        ended = check(group, **keys)
        assert (ended.code, ended.json()["ok"]) == (1, False), told
        assert any(told in problem and "\n" not in problem for problem in problems(ended)), (told, problems(ended))
    assert check("no_retries", message_model="broadcasting").code == 0, "a broadcasting group has no retries"
    cluster.change_broker(autoCreateSubscriptionGroup=False)
    unknown = check("not_made")
    cluster.change_broker(autoCreateSubscriptionGroup=True)
    assert unknown.code == 1
    assert (
        "(autoCreateSubscriptionGroup); create the group: `mqadmin updateSubGroup -c CLUSTER -g not_made`"
        in problems(unknown)[0]
    )
    pops = check("checker", consume_mode="pop")
    (line,) = problems(pops)
    assert (pops.code, "`rmqd groups mode checker checked pop`, or set consume_mode" in line) == (0, True)


HANDLER = """
import os
from pathlib import Path
from rmqd import DeadLetter

def handle(batch, options):
    for message in batch:
        with Path(options["path"]).open("a") as file:
            file.write(f"{message.keys}\\n")
        if message.keys == "bad":
            raise ValueError("not this one")
        if message.keys == "dead":
            raise DeadLetter("no such customer")
        if message.keys == "exit":
            os._exit(3)
"""


def configured(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, folder: Path, module: str, topic: str) -> Path:
    """A configuration of the group `shop` with the handler above. Returns the file of the keys that were handled."""
    (folder / f"{module}.py").write_text(HANDLER)
    monkeypatch.syspath_prepend(folder)
    handled = folder / "handled"
    handler = {"plugin": f"{module}:handle", "options": {"path": str(handled)}}
    group = {"subscriptions": {topic: "*"}, "handler": handler, "consume_mode": "orderly"}
    group |= {"suspend_current_queue_time": "10ms"}
    config = {"nameserver": cluster.nameserver, "state_dir": str(folder / "state"), "groups": {"shop": group}}
    Path("rmqd.yaml").write_text(json.dumps(config))
    return handled


def test_a_window_is_handled_again_by_a_shadow_group(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handled = configured(cluster, monkeypatch, tmp_path, "replayed_shop", "window")
    cluster.create_topic("window", 1)
    for key in ("a", "bad", "dead", "b"):
        cluster.send("window", "x", keys=key)
    cluster.commit("shop", "window", 4)
    command = ("replay", "shop", "-c", "rmqd.yaml")
    plan = rmqd(*command, "--from", "1h", "--rate", "7", "--dry-run")
    assert (plan.code, "4 messages at most, 7 a second\n" in plan.out) == (0, True)
    assert "the handler's effects are real; shop does not change" in plan.out
    refused = rmqd(*command, "--from", "1h")
    assert (refused.code, "--yes" in refused.err, handled.exists()) == (1, True, False)
    assert (rmqd(*command).code, rmqd(*command, "--from", "1h", "--to", "2h").code) == (2, 2)
    assert rmqd(*command, "--abandon", "--yes").code == 1

    ended = rmqd(*command, "--from", "1h", "--retries", "1", "--yes", "-o", "json")
    told = ended.json()
    assert ended.code == 1, ended.err  # two were given up
    assert handled.read_text().split() == ["a", "bad", "bad", "dead", "b"]
    assert (told["shadow"], told["messages"], told["passed"], told["is_done"]) == ("shop-rmqd-replay", 4, 4, True)
    assert {one["keys"]: (one["reason"], one["exception"], one["attempts"]) for one in told["failures"]} == {
        "bad": ("all attempts of the replay failed", "ValueError: not this one", 2),
        "dead": ("no such customer", "DeadLetter: no such customer", 1),
    }
    assert cluster.offsets("shop", "window") == {0: 4}
    assert not cluster.knows_group("shop-rmqd-replay")
    assert not any(cluster.has_topic(name) for name in ("%RETRY%shop-rmqd-replay", "%DLQ%shop"))


ONCE = """
from sqlalchemy import create_engine, text

engine = create_engine("sqlite:///shop.db")

def handle(batch):
    for message in batch:
        with engine.begin() as connection, message.once(connection):
            connection.execute(text("CREATE TABLE IF NOT EXISTS orders (id text)"))
            connection.execute(text("INSERT INTO orders VALUES (:id)"), {"id": message.keys})
"""


def test_each_replay_has_the_effects_again(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that happen once: of a shadow group's earlier replay nothing counts."""
    configured(cluster, monkeypatch, tmp_path, "once_shop", "twice")
    (tmp_path / "once_shop.py").write_text(ONCE)
    config = yaml.safe_load(Path("rmqd.yaml").read_text())
    config["groups"]["shop"]["handler"] = {"plugin": "once_shop:handle"}
    Path("rmqd.yaml").write_text(json.dumps(config))
    cluster.create_topic("twice", 1)
    cluster.send("twice", "x", keys="a")
    for count in (1, 2):
        ended = rmqd("replay", "shop", "-c", "rmqd.yaml", "--from", "1h", "--yes")
        assert ended.code == 0, ended.err
        with contextlib.closing(sqlite3.connect("shop.db")) as connection:
            assert connection.execute("SELECT count(*) FROM orders").fetchone() == (count,)


@pytest.mark.process
def test_a_handler_is_tried_over_messages_and_the_group_is_left_alone(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configured(cluster, monkeypatch, tmp_path, "tried_shop", "tried")
    cluster.create_topic("tried", 1)
    for key in ("ok", "bad", "dead", "exit"):
        cluster.send("tried", "x", keys=key)
    command = ("try", "shop", "-c", "rmqd.yaml")
    ended = rmqd(*command, "-o", "json")
    lines = [json.loads(line) for line in ended.out.splitlines()]
    assert ended.code == 1, ended.err
    assert [(one["keys"], one["outcome"], one["reason"], one["process"]) for one in lines] == [
        ("ok", "acked", None, None),
        ("bad", "retried", None, None),
        ("dead", "dead_lettered", "no such customer", None),
        ("exit", "died", None, "ended with exit code 3"),
    ]
    number = HANDLER.splitlines().index('            raise ValueError("not this one")') + 1
    assert lines[1]["place"] == f"{tmp_path}/tried_shop.py:{number} in handle"
    assert (cluster.offsets("shop", "tried"), cluster.knows_group("shop-tried")) == ({}, False)
    assert not any(cluster.has_topic(name) for name in ("%RETRY%shop", "%DLQ%shop"))
    for arguments, code in ((("--topic", "other"), 2), (("--timeout", "5"), 2), (("--id", "none"), 1)):
        assert rmqd(*command, *arguments).code == code
    assert rmqd("try", "other", "-c", "rmqd.yaml").err.endswith("expected one of shop\n")
