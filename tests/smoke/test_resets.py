"""mqadmin resetOffsetByTime on a running group: by the broker, as since 5, and pushed to members, as before 5."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.conformance import behaviour
from tests.integration.load import Load
from tests.integration.rmqd_process import RmqdProcess, ledger_group
from tests.rocketmq import RealCluster, ledger
from tests.rocketmq.producer import Producer
from tests.waiting import wait_until

pytestmark = pytest.mark.rocketmq

PULLING_SECONDS = 2.0  # from the end of mqadmin's command until a pulling queue is reset
MARGIN_SECONDS = 7.0  # for a busy machine; a reset that is pushed to Java takes 10 s

Way = str


def finished(path: Path) -> list[str]:
    """Return the handled keys, in order."""
    return [entry.key for entry in ledger.read(path) if entry.event == ledger.FINISH]


def times_handled(path: Path, prefix: str) -> set[int]:
    """Return how often the keys with a prefix were handled: one number if it is the same for all keys."""
    keys = finished(path)
    return {keys.count(key) for key in set(keys) if key.startswith(prefix)}


def send(rocketmq: RealCluster, topic: str, prefix: str, messages: int) -> None:
    with Producer(rocketmq.broker.address, topic) as producer:
        for number in range(messages):
            producer.send(key=f"{prefix}{number}")


def until_done(rocketmq: RealCluster, *command: str) -> str:
    """Run mqadmin until it succeeds, and return its output. RocketMQ 4 refuses a group without an offset in a queue."""
    if not rocketmq.spec.version.startswith("4"):
        return rocketmq.admin(*command)
    failed = re.compile("Exception")
    return wait_until(
        lambda: "" if failed.search(output := rocketmq.admin(*command, check=False)) else output or " ",
        f"mqadmin {' '.join(command)} succeeds",
    )


def reset(rocketmq: RealCluster, group: str, topic: str, to: int | str) -> None:
    output = until_done(rocketmq, "resetOffsetByTime", "-g", group, "-t", topic, "-s", str(to))
    assert output.count("broker-a") == 8, output


def moved(rmqd: RmqdProcess, way: Way) -> set[str]:
    """Return the queues that rmqd has reset."""
    events = rmqd.events("offset.moved") if way == "pushed" else rmqd.events("offset.corrected")
    return {event["queue"] for event in events if way == "pushed" or event["remark"] == "OFFSET_RESET"}


@behaviour(
    "operators",
    "`resetOffsetByTime` moves a group back that pulls and has batches in flight",
    java="with the next pull of each queue; pushed: after 10 s",
    rmqd="with the next pull of each queue; pushed: at once; the results of batches in flight are ignored",
    checked="mqadmin, through the broker and pushed, under load, within 2 s",
    differs="always pushed",
)
def test_a_running_group_is_reset(rocketmq: RealCluster, topic: str, group: str, tmp_path: Path, way: Way) -> None:
    """Under load, with batches in flight."""
    path = tmp_path / "ledger"
    send(rocketmq, topic, "early", 400)
    config = ledger_group(topic, path, "a", handler_options={"seconds": 0.01}, consume_from_where="first_offset")
    with (
        RmqdProcess(tmp_path / "rmqd", rocketmq.nameserver, {group: config}) as rmqd,
        Load(rocketmq, topic, 100_000, per_second=200),
    ):
        wait_until(lambda: times_handled(path, "early") == {1} and len(finished(path)) > 800, "the group keeps up")
        reset(rocketmq, group, topic, 0)
        wait_until(lambda: len(moved(rmqd, way)) == 8, "all queues went back", PULLING_SECONDS + MARGIN_SECONDS)
        wait_until(lambda: times_handled(path, "early") == {2}, "the early messages are handled again")
    assert times_handled(path, "early") == {2}
