"""`rmqd try`: all forms of handlers on a cluster's messages. Crashes are reported, and the group does not change."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli import command
from tests.cli.command import Ended
from tests.cli.in_process import rmqd
from tests.rocketmq import RealCluster, offsets
from tests.rocketmq.producer import Producer
from tests.waiting import wait_until

pytestmark = [pytest.mark.process, pytest.mark.slow]

HANDLERS = """
import ctypes, json, os, signal, time
from pathlib import Path
from typing import Annotated
from pydantic import BaseModel
import rmqd
from rmqd import Batch, DeadLetter, Retry, Suspend

def do(message):
    what = message.body.decode()
    if what == "exit":
        os._exit(3)
    if what == "crash":
        ctypes.string_at(0)
    if what == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "hang":
        time.sleep(600)
    if what == "boom":
        json.loads("{")  # the raising line
    if what == "dead":
        raise DeadLetter("no such customer")
    if what == "again":
        raise Retry(5)
    if what == "suspend":
        raise Suspend(2)

def sync(batch):
    print("a handler may print")
    for message in batch:
        do(message)

async def coroutine(batch):
    for message in batch:
        do(message)

async def by_hand(batch):
    do(batch[0])
    batch.commit() if batch[0].body == b"commit" else batch.rollback()

def with_child(batch):
    if os.fork() == 0:
        time.sleep(600)
    do(batch[0])

class Counting:
    class Options(BaseModel):
        path: str

    def __init__(self, options: Options):
        self.path = Path(options.path)

    async def start(self):
        self.note("start")

    def handle(self, batch):
        self.note(f"{len(batch)} of {batch[0].topic}: " + " ".join(one.keys or "-" for one in batch))
        for message in batch:
            do(message)

    async def stop(self):
        self.note("stop")

    def note(self, line):
        with self.path.open("a") as file:
            file.write(line + "\\n")

class Order(BaseModel):
    what: str

@rmqd.handler(json=Order)
async def typed(order: Order, batch: Batch, name: Annotated[str, rmqd.Depends(lambda: "shop")]):
    if order.what == "boom":
        raise ValueError(f"{name}: {len(batch)}")

class NotStarting:
    def start(self):
        raise RuntimeError("no database")
    def handle(self, batch):
        pass
"""
RAISING_LINE = next(number for number, line in enumerate(HANDLERS.splitlines(), 1) if "# the raising line" in line)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "shop.py").write_text(HANDLERS)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("shop", None)


@pytest.fixture
def send(rocketmq: RealCluster, topic: str) -> Iterator[Callable[..., None]]:
    """Sends messages with these bodies, which are also their keys, one after the other, by default to queue 0."""
    sent: list[str] = []
    with Producer(rocketmq.broker.address, topic) as producer:

        def some(*bodies: str, tags: str = "", queue: int | None = 0) -> None:
            for body in bodies:
                producer.send(body.encode(), key=body, tags=tags, queue=queue)
                sent.append(body)
            are_readable(rocketmq, topic, len(sent))

        yield some


class Group:
    """A group's configuration, and the command for it."""

    def __init__(self, cluster: RealCluster, folder: Path, name: str, topic: str, handler: str, **keys: Any) -> None:
        self.name = name
        self._folder = folder
        handling = {"plugin": f"shop:{handler}", "options": keys.pop("options", {})}
        settings = {"subscriptions": {topic: "*"}, "handler": handling, **keys}
        config = {"nameserver": cluster.nameserver, "groups": {name: settings}}
        (folder / "rmqd.yaml").write_text(json.dumps(config))

    def tried(self, *arguments: str | Path) -> Ended:
        sys.modules.pop("shop", None)
        return rmqd("try", self.name, *arguments, "-c", self._folder / "rmqd.yaml")

    def outcomes(self, *arguments: str) -> list[dict[str, Any]]:
        ended = self.tried(*arguments, "-o", "json")
        assert ended.out, ended.err
        return [json.loads(line) for line in ended.out.splitlines()]


def are_readable(cluster: RealCluster, topic: str, count: int) -> None:
    """Wait until the topic's queues have this many messages. Brokers respond earlier, after writing their log."""
    wait_until(lambda: sum(offsets.stored(cluster, topic).values()) == count, "all messages are in their queues")


def stored(cluster: RealCluster, topic: str) -> dict[str, Any]:
    """A topic according to `rmqd topics show`; empty if it does not exist."""
    ended = rmqd("topics", "show", topic, "-n", cluster.nameserver, "-o", "json")
    found: dict[str, Any] = ended.json() if ended.code == 0 else {}
    return found


def test_each_message_has_an_outcome_and_the_group_does_not_change(
    rocketmq: RealCluster, topic: str, group: str, folder: Path, send: Callable[..., None]
) -> None:
    """Exceptions, crashes and timeouts are reported with the handler's line, and the next message is tried."""
    send("ok", "boom", "dead", "again", "exit", "crash", "killed", "hang", "last")
    ours = Group(rocketmq, folder, group, topic, "coroutine")
    ended = ours.tried("--timeout", "1s", "-o", "json")
    lines = [json.loads(line) for line in ended.out.splitlines()]
    assert ended.code == 1
    told = [(one["keys"], one["outcome"], one["delay_level"], one["reason"]) for one in lines]
    assert told == [
        ("ok", "acked", None, None),
        ("boom", "retried", 3, None),
        ("dead", "dead_lettered", None, "no such customer"),
        ("again", "retried", 5, None),
        ("exit", "died", None, None),
        ("crash", "died", None, None),
        ("killed", "died", None, None),
        ("hang", "expired", None, None),
        ("last", "acked", None, None),
    ]
    by_key = {one["keys"]: one for one in lines}
    assert by_key["boom"]["error"].startswith("JSONDecodeError")
    assert by_key["boom"]["place"] == f"{folder}/shop.py:{RAISING_LINE} in do"
    assert by_key["exit"]["process"] == "ended with exit code 3"
    assert by_key["crash"]["process"] == "was killed by SIGSEGV"
    assert by_key["crash"]["place"].startswith(f"{folder}/shop.py:")
    assert by_key["killed"]["process"].startswith("was killed by SIGKILL")
    assert by_key["hang"]["place"].endswith(" in do")
    assert by_key["ok"]["seconds"] < 1 <= by_key["hang"]["seconds"]
    assert not any(offsets.committed(rocketmq, group, topic).values())  # a RocketMQ 4 returns 0 for none
    assert rmqd("groups", "show", group, "-n", rocketmq.nameserver).code == 1  # no broker knows it
    assert (stored(rocketmq, f"%RETRY%{group}"), stored(rocketmq, f"%DLQ%{group}")) == ({}, {})


def test_the_table_shows_outcomes_places_and_reasons(
    rocketmq: RealCluster, topic: str, group: str, folder: Path, send: Callable[..., None]
) -> None:
    """The handler's own output goes to standard error. A handler that hangs in its thread is reported too."""
    send("ok", "boom", "dead", "hang")
    Group(rocketmq, folder, group, topic, "sync")
    config = ("-c", folder / "rmqd.yaml")
    ended = command.rmqd("try", group, "--timeout", "1s", *config, cwd=folder, python_path=folder)
    lines = ended.out.splitlines()
    assert ended.code == 1
    assert f"  {topic}:broker-a:0:0  -  ok  acked" in lines[0]
    assert lines[2].endswith(f"at {folder}/shop.py:{RAISING_LINE} in do")
    assert lines[3].endswith("dead letter: no such customer")
    assert lines[5].endswith("hang  expired")
    assert lines[6].startswith(f"    the handler did not end in 1 s, at {folder}/shop.py:")
    assert lines[6].endswith(" in do")
    assert lines[-1].endswith("nothing was committed, sent back or dead-lettered")
    assert "a handler may print" not in ended.out
    assert "a handler may print" in ended.err


def test_a_handler_class_is_started_gets_batches_and_is_stopped(
    rocketmq: RealCluster, topic: str, group: str, folder: Path, send: Callable[..., None]
) -> None:
    """A batch is from one queue, and as large as in the daemon. After a crash, a new process starts the handler."""
    send("a", "b", "c", "exit", "e")
    send("f", "g", queue=1)
    notes = folder / "notes"
    options = {"path": str(notes)}
    ours = Group(rocketmq, folder, group, topic, "Counting", options=options, consume_message_batch_max_size=3)
    lines = ours.outcomes()
    assert [(one["keys"], one["batch"], one["outcome"]) for one in lines] == [
        ("a", 1, "acked"),
        ("b", 1, "acked"),
        ("c", 1, "acked"),
        ("exit", 2, "died"),
        ("e", 2, "died"),
        ("f", 3, "acked"),
        ("g", 3, "acked"),
    ]
    calls = [f"3 of {topic}: a b c", f"2 of {topic}: exit e", f"2 of {topic}: f g"]
    assert notes.read_text().splitlines() == ["start", *calls[:2], "start", calls[2], "stop"]


def test_typed_handlers(rocketmq: RealCluster, topic: str, group: str, folder: Path, send: Callable[..., None]) -> None:
    """Each message of a batch has its own outcome. The reported error is the first one's."""
    send('{"what": "ok"}', '{"what": "boom"}', "oops", '{"what": "last"}')
    ours = Group(rocketmq, folder, group, topic, "typed", consume_message_batch_max_size=4)
    lines = ours.outcomes()
    assert [one["outcome"] for one in lines] == ["acked", "retried", "dead_lettered", "acked"]
    assert lines[2]["reason"].startswith("the body is not a valid Order in JSON: ")
    assert lines[1]["error"] == "ValueError: shop: 1"
    assert lines[1]["place"].endswith(" in typed")


def test_orderly_handlers(
    rocketmq: RealCluster, topic: str, group: str, folder: Path, send: Callable[..., None]
) -> None:
    send("commit", "suspend", "else")
    ours = Group(rocketmq, folder, group, topic, "by_hand", consume_mode="orderly", auto_commit=False)
    told = [(one["outcome"], one["rest_seconds"], one["closing"]) for one in ours.outcomes()]
    assert told == [("acked", None, "commit"), ("retried", 2.0, None), ("retried", 1.0, "rollback")]


def test_the_end_of_a_process_with_a_running_child_is_noticed(
    rocketmq: RealCluster, topic: str, group: str, folder: Path, send: Callable[..., None]
) -> None:
    """The child keeps the socket to the parent open."""
    send("exit", "ok")
    outcomes = Group(rocketmq, folder, group, topic, "with_child").outcomes("--timeout", "50s")
    assert [one["outcome"] for one in outcomes] == ["died", "acked"]


def test_a_handler_that_does_not_start(
    rocketmq: RealCluster, topic: str, group: str, folder: Path, send: Callable[..., None]
) -> None:
    send("ok")
    ended = Group(rocketmq, folder, group, topic, "NotStarting").tried()
    assert (ended.code, ended.out, ended.err) == (1, "", "rmqd: RuntimeError: no database\n")


def test_options_choose_messages(
    rocketmq: RealCluster, topic: str, group: str, folder: Path, send: Callable[..., None]
) -> None:
    """By number, time, key, id, uncommitted offsets, and the group's own filter."""
    send("m0", "m1", tags="paid")
    time.sleep(0.05)  # store times are in milliseconds, and the next messages must be later
    middle = time.time_ns() // 1_000_000
    send("m2", tags="paid")
    send("m3", tags="open")
    send("m4", "m5", tags="paid", queue=5)
    ours = Group(rocketmq, folder, group, topic, "sync", subscriptions={topic: "paid"})

    def keys(*arguments: str) -> list[str]:
        return [one["keys"] for one in ours.outcomes(*arguments)]

    assert keys() == ["m0", "m1", "m2", "m4", "m5"]
    assert keys("--last", "3") == ["m2", "m4", "m5"]
    assert keys("--from", f"@{middle}") == ["m2", "m4", "m5"]
    assert keys("--to", f"@{middle}") == ["m0", "m1"]
    assert keys("--to", f"@{middle}", "--last", "1") == ["m1"]
    assert keys("--from", "1h", "--most", "2") == ["m0", "m1"]
    wait_until(lambda: ours.tried("--key", "m5").code == 0, "the broker's index has the newest message")
    assert keys("--key", "m1", "--key", "m4") == ["m1", "m4"]
    (one,) = ours.outcomes("--key", "m1")
    assert keys("--id", one["msg_id"]) == ["m1"]
    assert one["msg_id"] not in str(ours.outcomes("--without", one["msg_id"]))
    rocketmq.create_group(group, {})
    first = offsets.Queue("broker-a", 0)
    offsets.commit(rocketmq, group, topic, first, 2)
    assert keys("--waiting") == ["m2", "m4", "m5"]
    assert {queue: at for queue, at in offsets.committed(rocketmq, group, topic).items() if at} == {first: 2}
    filtered = ours.tried("--key", "m3")
    assert filtered.code == 1
    assert "does not match the group's subscriptions" in filtered.err
    unknown = ours.tried("--id", "none")
    assert (unknown.code, "no broker has this message" in unknown.err) == (1, True)


def test_the_broker_evaluates_sql(rocketmq: RealCluster, topic: str, group: str, folder: Path) -> None:
    with Producer(rocketmq.broker.address, topic) as producer:
        for amount in ("5", "500"):
            producer.send(key=amount, properties={"amount": amount}, queue=0)
    are_readable(rocketmq, topic, 2)
    ours = Group(rocketmq, folder, group, topic, "sync", subscriptions={topic: {"sql": "amount > 100"}})
    assert [one["keys"] for one in ours.outcomes()] == ["500"]
    wrong = Group(rocketmq, folder, group, topic, "sync", subscriptions={topic: {"sql": "amount >"}}).tried()
    assert (wrong.code, wrong.out) == (1, "")
    assert "refuses the SQL filter 'amount >'" in wrong.err


def test_dead_letters_are_tried_as_if_they_were_sent_again(
    rocketmq: RealCluster, topic: str, group: str, folder: Path
) -> None:
    """They are at their first attempt, and have their original topic."""
    properties = {"RETRY_TOPIC": topic, "RMQD_REASON": "no such customer"}
    dead = rocketmq.create_topic(f"%DLQ%{group}", 1)
    with Producer(rocketmq.broker.address, dead) as producer:
        producer.send(b"boom", key="k1", properties=properties, queue=0)
    are_readable(rocketmq, dead, 1)
    ours = Group(rocketmq, folder, group, topic, "sync")
    (line,) = ours.outcomes("--dead-letters")
    assert (line["topic"], line["keys"], line["outcome"], line["delay_level"]) == (topic, "k1", "retried", 3)
    assert (line["stored_in"], line["queue"], line["offset"]) == (dead, 0, 0)
    assert f"  {dead}:broker-a:0:0  " in ours.tried("--dead-letters").out, "the table shows the place"
    found = ours.tried("--dead-letters", "--bisect")
    assert f", {dead}, broker-a, queue 0, offset 0, keys k1\n" in found.out
    assert f"\n  rmqd try {group} --dead-letters --id {line['msg_id']}\n" in found.out


def test_wrong_usage(rocketmq: RealCluster, topic: str, group: str, folder: Path) -> None:
    ours = Group(rocketmq, folder, group, topic, "sync")
    assert ours.tried("--topic", "other").code == 2
    assert ours.tried("--timeout", "5").code == 2
    assert ours.tried("--from", "yesterday").code == 2
    assert ours.tried().err.endswith(f"rmqd: {group} has no such messages\n")
    ended = rmqd("try", "other", "-c", folder / "rmqd.yaml")
    assert (ended.code, f"expected one of {group}" in ended.err) == (2, True)
    (folder / "shop.py").write_text("raise OSError('no library')")
    assert ours.tried().code == 78


# The broker stores the messages of a batch separately. Batches store 10,000 messages in a second.
BATCH = 200
COUNT = 10_000


@pytest.fixture(scope="module")
def many(rocketmq: RealCluster) -> str:
    """A topic with 10,000 messages in one queue. The message at offset 7777 ends the process."""
    topic = rocketmq.create_topic(f"bisect_{time.time_ns()}", 2)
    with Producer(rocketmq.broker.address, topic) as producer:
        for start in range(0, COUNT, BATCH):
            keys = [f"m{number}" for number in range(start, start + BATCH)]
            if start <= 7777 < start + BATCH:
                for key in keys:
                    producer.send(b"exit" if key == "m7777" else b"x", key=key, queue=0)
            else:
                producer.send_batch(keys, queue=0)
    are_readable(rocketmq, topic, COUNT)
    return topic


@pytest.mark.parametrize(("batch_size", "most_runs"), [(1, 3), (1024, 14)])
def test_bisect_finds_one_message_among_10000(
    rocketmq: RealCluster, many: str, group: str, folder: Path, batch_size: int, most_runs: int
) -> None:
    """With batches of one message, and with the largest batches that a group may have."""
    ours = Group(rocketmq, folder, group, many, "coroutine", consume_message_batch_max_size=batch_size)
    ended = ours.tried("--bisect", "-o", "json")
    assert ended.code == 0, ended.err
    found = ended.json()
    assert (found["answer"], found["kind"], found["messages"]) == ("found", "died", COUNT)
    assert (found["message"]["keys"], found["message"]["offset"]) == ("m7777", 7777)
    assert found["message"]["process"] == "ended with exit code 3"
    assert found["others_fail"] is False
    assert found["runs"] <= most_runs
    assert f"rmqd try {group} --id {found['message']['msg_id']}" in found["next"]


@pytest.mark.parametrize(("poison", "kind"), [("crash", "died"), ("hang", "expired"), ("boom", "raised")])
def test_bisect_finds_crashes_hangs_and_exceptions(
    rocketmq: RealCluster, topic: str, group: str, folder: Path, send: Callable[..., None], poison: str, kind: str
) -> None:
    send("a", "b", poison, "d", "e", "f")
    ours = Group(rocketmq, folder, group, topic, "sync", consume_message_batch_max_size=4)
    found = ours.tried("--bisect", "--timeout", "1s", "-o", "json").json()
    assert (found["answer"], found["kind"], found["message"]["keys"]) == ("found", kind, poison)
    assert found["place"].startswith(f"{folder}/shop.py:")


def test_bisect_reports_that_nothing_fails_or_that_other_messages_fail_too(
    rocketmq: RealCluster, topic: str, group: str, folder: Path, send: Callable[..., None]
) -> None:
    send("a", "exit", "b", "crash")
    ours = Group(rocketmq, folder, group, topic, "sync")
    ended = ours.tried("--bisect")
    assert ended.code == 0
    first = ended.out.splitlines()[1].partition(",")[0]
    assert f"\n{first}, {topic}, broker-a, queue 0, offset 1, keys exit\n" in ended.out
    assert "the others fail without it as well" in ended.out
    assert f"  rmqd try {group} --bisect --without {first}\n" in ended.out
    other = ours.tried("--bisect", "--without", first, "-o", "json").json()
    assert (other["message"]["keys"], other["others_fail"]) == ("crash", False)
    both = ("--without", first, "--without", other["message"]["msg_id"])
    clean = ours.tried("--bisect", *both)
    assert (clean.code, clean.out) == (0, "nothing fails: the handler got 2 messages and raised nothing (1 run)\n")
    assert Counter(one["outcome"] for one in ours.outcomes(*both)) == {"acked": 2}
