"""Commands that send messages and change groups; on the embedded broker, in this process.

The core of these tests is in tests/cli/test_changes.py.
"""

from __future__ import annotations

import contextlib
import json
import re
import sqlite3
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from rmqd.errors import RmqdError
from rmqd.operate.replay.replay_plan import ReplayFolder, ReplayPlan
from rmqd.wire.message_queue import Identity
from tests.cli.cluster import QUEUES, Cluster
from tests.cli.command import Ended
from tests.cli.conftest import _as_on_a_machine_without_rmqd, cluster
from tests.cli.in_process import rmqd
from tests.cli.test_changes import _commands_look_often, configured, own_cluster
from tests.testing.test_offset_stores import OWN, MemoryOffsets

__all__ = ["_as_on_a_machine_without_rmqd", "_commands_look_often", "cluster", "own_cluster"]


def test_send_uses_all_queues_or_the_chosen_one(cluster: Cluster) -> None:
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


def test_a_failed_reset_changes_nothing(cluster: Cluster, tmp_path: Path) -> None:
    cluster.fill("kept", 1)
    cluster.commit("keeper", "kept", 0, 0, 0, 0)
    cluster.create_topic("%DLQ%keeper", 1)
    (tmp_path / "backups").write_text("a file instead of the folder")
    for group, topic, told in (
        ("keeper", "kept", "so kept is not reset: File exists"),
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


def test_state_files_of_one_cluster_are_not_used_for_another(
    cluster: Cluster, own_cluster: Cluster, tmp_path: Path
) -> None:
    """Groups have the same names, in one state_dir. Files of 0.1.0, which name no cluster, can still be read."""
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
    assert own_cluster.ask("offsets", "reset", "both_ways", "--to", "last", "--yes", *state).code == 0
    assert own_cluster.ask("offsets", "restore", path, "--force", "--yes", *state).code == 0
    assert list(own_cluster.offsets("both_ways", "both").values()) == [1] * QUEUES
    path.write_text(json.dumps(document | {"offsets": [{"broker": "broker-b", "queue": 0, "offset": 3}]}))
    missing = cluster.ask("offsets", "restore", path, "--yes", *state)
    assert (missing.code, missing.out) == (1, "")
    assert "broker-b queue 0: the topic both has no such readable queue now" in missing.err


def test_a_plan_of_another_cluster_is_refused(tmp_path: Path) -> None:
    """A plan of 0.1.0, which does not name its cluster, is refused too."""
    ours, other = (ReplayFolder(tmp_path, "shop", Identity(cluster, "", "shop")) for cluster in ("c1", "c2"))
    plan = ReplayPlan("shop", "1h", None, 0, 1, "2026-11-25T08:14:03Z", (), ours.identity)
    ours.write(plan)
    assert (ours.read(), other.read()) == (plan, None)
    (tmp_path / "replays/c1/~/shop").rename(tmp_path / "replays/shop")
    former = tmp_path / "replays/shop/plan.json"
    for identity, named in ((plan.identity, "c1/~/shop"), ("", "shop on a cluster that rmqd 0.1.0 did not store")):
        former.write_bytes(replace(plan, identity=identity).to_json())
        with pytest.raises(RmqdError, match=rf"is the plan of {named}, but this replay is of c2/~/shop; use --force"):
            other.read()
    taken = other.read(is_forced=True)
    assert taken == replace(plan, identity="c2/~/shop")
    other.write(taken)
    assert (other.read(), former.exists()) == (taken, False)


def test_dead_letters_that_cannot_be_replayed_are_named(cluster: Cluster, tmp_path: Path) -> None:
    """A letter was sent by hand. The other one is replayed. Nothing is written for an unknown group."""
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
    assert [one["error"] for one in result["failed"]] == ["its original topic is unknown: no property RETRY_TOPIC"]
    assert "1 message failed" in ended.err
    assert cluster.ask("dlq", "replay", "sender", "--since", "yesterday", *state).code == 2
    assert cluster.ask("dlq", "show", "sender", "--property", "shop", *state).code == 2


ONCE = """
from sqlalchemy import create_engine, text

engine = create_engine("sqlite:///shop.db")

def handle(batch):
    for message in batch:
        with engine.begin() as connection, message.once(connection):
            connection.execute(text("CREATE TABLE IF NOT EXISTS orders (id text)"))
            connection.execute(text("INSERT INTO orders VALUES (:id)"), {"id": message.keys})
"""


def test_each_replay_repeats_the_effects(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Effects in `message.once` are repeated too, because records of an earlier replay are not used."""
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


def test_a_consume_mode_is_set_only_after_confirmation(cluster: Cluster) -> None:
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
    assert cluster.ask(*command, "PULL", "--yes").code == 0, "mqadmin's notation"
    assert modes() == {"popped": "pull"}


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


def test_check_passes_if_cluster_and_configuration_agree(cluster: Cluster, check: Check) -> None:
    """The check neither joins nor creates a group."""
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


def test_check_names_each_mismatch(cluster: Cluster, check: Check) -> None:
    """Each mismatch has one line and exit code 1, except the consume mode, which is a warning."""
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
            "no name server knows topic absent; if the topic exists, start its broker",
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


def test_a_replay_ignores_offsets_of_an_earlier_replay_in_an_offset_store(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemoryOffsets, "rows", {})
    handled = configured(cluster, monkeypatch, tmp_path, "stored_shop", "stored")
    config = json.loads(Path("rmqd.yaml").read_text())
    config["groups"]["shop"] |= OWN
    Path("rmqd.yaml").write_text(json.dumps(config))
    cluster.create_topic("stored", 1)
    for key in ("a", "b"):
        cluster.send("stored", "x", keys=key)
    for tenant in ("one", "one", "two"):
        tenancy = ("--set", f"client.namespace_v2={tenant}")
        ended = rmqd("replay", "shop", "-c", "rmqd.yaml", "--from", "1h", "--yes", *tenancy)
        assert ended.code == 0, ended.err
    assert handled.read_text().split() == ["a", "b"] * 3
    clusters = [queue.cluster for queue in MemoryOffsets.rows if queue.topic == "stored"]
    assert [cluster.partition("+")[2] for cluster in clusters] == ["one", "one", "two"]


def test_a_backup_of_another_namespace_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    """`namespace_v2` is part of requests, and not of the names of topics and groups."""
    cluster.fill("shared", 1)
    cluster.commit("sharer", "shared", 0, 0, 0, 0)

    def offsets(namespace: str, *arguments: str) -> Ended:
        settings = ("--set", f"state_dir={tmp_path}", "--set", f"client.namespace_v2={namespace}")
        return cluster.ask("offsets", *arguments, "--yes", *settings)

    reset = offsets("a", "reset", "sharer", "shared", "--to", "last")
    (path,) = re.findall(r"^backup: (.+)$", reset.out, re.MULTILINE)
    refused = offsets("b", "restore", path)
    assert refused.code == 2, refused.out
    assert all(name in refused.err for name in ("'a'", "'b'", "--force")), refused.err
    assert offsets("a", "restore", path).code == 0
