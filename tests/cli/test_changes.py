"""Commands that send messages and change groups, on the embedded broker in this process."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmqd.cli.offset_changes import Backup
from rmqd.wire.topics import dlq_topic, retry_topic
from tests.cli.cluster import QUEUES, Cluster
from tests.cli.command import Ended
from tests.cli.in_process import rmqd


@pytest.fixture(autouse=True)
def _commands_look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Poll often, because the broker in this process responds within milliseconds."""
    monkeypatch.setattr("rmqd.operate.resets.reset_requests.POLL_SECONDS", 0.01)
    monkeypatch.setattr("rmqd.operate.replay.replay_run.POLL_SECONDS", 0.01)
    monkeypatch.setattr("rmqd.operate.replay.replay_run.PERSIST_SECONDS", 0.05)


def test_a_sent_message_is_stored_with_its_keys_tags_and_properties(cluster: Cluster) -> None:
    cluster.create_topic("orders", QUEUES)
    arguments = ("--keys", "order-17 c-4", "--tags", "R&D", "-p", "region=eu", "-p", "sum=a=b")
    (document,) = cluster.json("send", "orders", "für dich", *arguments)
    (message,) = cluster.messages("orders")
    assert (message.body.decode(), message.keys, message.tags) == ("für dich", "order-17 c-4", "R&D")
    assert (message.properties["region"], message.properties["sum"]) == ("eu", "a=b")
    assert (message.msg_id, message.queue_offset) == (document["msg_id"], document["offset"])
    assert (document["topic"], document["status"]) == ("orders", "SUCCESS")

    cluster.create_topic("bytes", 1)
    assert cluster.ask("send", "bytes", "-", stdin=b"\x00\xff\n").code == 0
    assert [message.body for message in cluster.messages("bytes")] == [b"\x00\xff\n"]


def test_a_group_is_reset_and_restored(cluster: Cluster, tmp_path: Path) -> None:
    """Covers the first and last offset, a given offset and a skip. Other topics and groups do not change."""
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


def test_a_reset_plan_warns_about_messages_that_nobody_handled(cluster: Cluster) -> None:
    """For example after the topic was recreated. The group's offset is above the end of the first queue."""
    cluster.fill("recreated", 10)
    cluster.commit("late", "recreated", 30, 4, 4, 4)
    plans = {
        goal: cluster.ask("offsets", "reset", "late", "recreated", "--to", goal, "--dry-run").out
        for goal in ("last", "first")
    }
    assert "1 queue. If the topic was recreated, no member has handled their messages" in plans["last"]
    first = "`rmqd offsets reset late recreated --to first` handles all of them"
    assert f"this reset handles 0 and skips 10 ({first}). Otherwise they were handled before\n" in plans["last"]
    assert re.search(r"^broker-a +0 +30 +10 +none, it ends at 10 +-$", plans["last"], re.MULTILINE), plans["last"]
    assert re.search(r"^broker-a +0 +30 +0 +10, it ends at 10 +-$", plans["first"], re.MULTILINE), plans["first"]
    assert plans["first"].startswith("late, recreated: 4 queues to reset, 12 messages handled again, 0 skipped\n")
    assert "this reset handles 10 and skips 0. Otherwise they were handled before\n" in plans["first"]
    skip = cluster.ask("offsets", "reset", "late", "recreated", "--skip", "1", "--queue", "0", "--yes")
    assert (skip.code, cluster.offsets("late", "recreated")[0]) == (0, 10), skip.out


@pytest.mark.parametrize("end", [OSError(28, "no space left"), KeyboardInterrupt()])
def test_an_interrupted_reset_names_the_topics_that_were_already_reset(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: BaseException
) -> None:
    group = f"halved-by-{type(end).__name__}"
    for topic in ("first-half", "later-half"):
        cluster.fill(topic, 10)
        cluster.commit(group, topic, 4, 4, 4, 4)
    write = Backup.write

    def write_one(backup: Backup, folder: Path) -> Path:
        if backup.topic == "later-half":
            raise end
        return write(backup, folder)

    reset = ("offsets", "reset", group, "--all-topics", "--to", "6", "--yes", "--set", f"state_dir={tmp_path}")
    with monkeypatch.context() as broken:
        broken.setattr(Backup, "write", write_one)
        halved = cluster.ask(*reset)
    (backup,) = (tmp_path / "backups").iterdir()
    assert halved.code == (1 if isinstance(end, OSError) else 130)
    assert re.search("interrupted; later-half was not reset|later-half is not reset: no space left", halved.err)
    assert halved.err.endswith(f"rmqd: first-half was reset before; `rmqd offsets restore {backup}` undoes it\n")
    assert cluster.ask(*reset).out.endswith("later-half: 4 queues stored\n")


@pytest.fixture
def own_cluster() -> Iterator[Cluster]:
    """A separate cluster for a test that runs a handler: the broker's clock may be ahead afterwards."""
    with Cluster() as running:
        yield running


def test_dead_letters_are_shown_selected_replayed_and_purged(own_cluster: Cluster, tmp_path: Path) -> None:
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
    cluster.change_topic("%DLQ%failer", 2)  # write-only, as brokers of RocketMQ 4 create it
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
        "no members now: messages wait for one",
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


def test_a_reason_that_is_the_text_of_the_exception_is_shown_once(cluster: Cluster) -> None:
    cluster.give_up("typed", "typed_orders")
    reason = "the body is not a valid Order in JSON: total: Field required"
    trace = f"Traceback (most recent call last):\nrmqd.handler_api.decisions.InvalidPayloadError: {reason}\n"
    properties = {"RETRY_TOPIC": "typed_orders", "RMQD_REASON": reason, "RMQD_EXCEPTION": trace}
    cluster.send(dlq_topic("typed"), "{}", keys="order-3", queue_id=0, properties=properties)
    assert f"  {reason}  order-3  {{}}\n" in cluster.ask("dlq", "show", "typed").out


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
    """Configure the group `shop` with the handler above. Returns the file with the handled keys."""
    (folder / f"{module}.py").write_text(HANDLER)
    monkeypatch.syspath_prepend(folder)
    handled = folder / "handled"
    handler = {"plugin": f"{module}:handle", "options": {"path": str(handled)}}
    group = {"subscriptions": {topic: "*"}, "handler": handler, "consume_mode": "orderly"}
    group |= {"suspend_current_queue_time": "10ms"}
    config = {"nameserver": cluster.nameserver, "state_dir": str(folder / "state"), "groups": {"shop": group}}
    Path("rmqd.yaml").write_text(json.dumps(config))
    return handled


def test_replay_of_a_time_range_handles_messages_in_a_shadow_group(
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
    assert ended.code == 1, ended.err  # two messages failed
    assert handled.read_text().split() == ["a", "bad", "bad", "dead", "b"]
    assert (told["shadow"], told["messages"], told["passed"], told["is_done"]) == ("shop-rmqd-replay", 4, 4, True)
    assert {one["keys"]: (one["reason"], one["exception"], one["attempts"]) for one in told["failures"]} == {
        "bad": ("all attempts of the replay failed", "ValueError: not this one", 2),
        "dead": ("no such customer", "DeadLetter: no such customer", 1),
    }
    assert cluster.offsets("shop", "window") == {0: 4}
    assert not cluster.knows_group("shop-rmqd-replay")
    assert not any(cluster.has_topic(name) for name in ("%RETRY%shop-rmqd-replay", "%DLQ%shop"))


@pytest.mark.process
def test_try_runs_a_handler_on_messages_without_changing_the_group(
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
