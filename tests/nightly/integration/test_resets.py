"""mqadmin resetOffsetByTime on groups that are idle, busy, held back, restarted and ending."""

from __future__ import annotations

import urllib.request
from pathlib import Path

import pytest

from tests.conformance import behaviour
from tests.integration.consuming import now_ms, one_in_each_queue
from tests.integration.load import Load
from tests.integration.rmqd_process import RmqdProcess, ledger_group
from tests.rocketmq import RealCluster, offsets
from tests.rocketmq.producer import Producer
from tests.rocketmq.settings import CLUSTER_NAME
from tests.smoke.test_resets import (
    MARGIN_SECONDS,
    PULLING_SECONDS,
    Way,
    finished,
    moved,
    reset,
    send,
    times_handled,
)
from tests.waiting import wait_until

HELD_SECONDS = 12.0  # until a reset takes effect on a queue without pulls: it is requested every 10 s
IDLE_SECONDS = 25.0  # ... on a queue with a held pull: a reset on the broker does not end the pull
WATCHED_SECONDS = 10.0  # ... that the broker sent to a previous connection: two rounds of commits find it


@behaviour(
    "operators",
    "`resetOffsetByTime` moves a running idle group back to a time, and not further",
    java=("when the pull that the broker holds returns; pushed: after 10 s, during which the whole group is paused"),
    rmqd="when the pull that the broker holds returns, within 25 s; pushed: at once",
    checked="mqadmin, through the broker and pushed, with a ledger",
    differs="always pushed; the broker may begin one message before the time",
    long=True,
)
def test_an_idle_group_moves_back(rocketmq: RealCluster, topic: str, group: str, tmp_path: Path, way: Way) -> None:
    """Each queue moves to its first message of that time; RocketMQ 4 may go one message further back."""
    path = tmp_path / "ledger"
    send(rocketmq, topic, "before", 40)
    moment = now_ms()
    send(rocketmq, topic, "after", 40)
    with RmqdProcess(
        tmp_path / "rmqd",
        rocketmq.nameserver,
        {group: ledger_group(topic, path, "a", consume_from_where="first_offset")},
    ) as rmqd:
        wait_until(lambda: offsets.lag(rocketmq, group, topic) == 0, "all is handled and committed")
        pid = rmqd.pid
        reset(rocketmq, group, topic, moment)
        wait_until(
            lambda: times_handled(path, "after") == {2},
            "what came after the moment is handled again",
            (PULLING_SECONDS if way == "pushed" else IDLE_SECONDS) + MARGIN_SECONDS,
        )
        wait_until(lambda: offsets.lag(rocketmq, group, topic) == 0, "all is committed")
        status, _ = rmqd.terminate()
        assert (status, rmqd.pid) == (0, pid)
        rmqd.start()
        rmqd.wait_ready()
        send(rocketmq, topic, "last", 8)
        wait_until(lambda: times_handled(path, "last") == {1}, "the restarted group continues")
    assert times_handled(path, "after") == {2}
    before = [key for key in finished(path) if key.startswith("before")]
    assert len(before) <= 40 + one_in_each_queue(rocketmq)


def test_a_restarted_group_moves_back(rocketmq: RealCluster, topic: str, group: str, tmp_path: Path) -> None:
    """The broker still holds pulls of the previous connection, and sends the reset there."""
    if rocketmq.spec.version.startswith("4"):
        pytest.skip("RocketMQ 4 pushes resets to the members")
    path = tmp_path / "ledger"
    send(rocketmq, topic, "m", 24)
    groups = {group: ledger_group(topic, path, "a", consume_from_where="first_offset")}
    with RmqdProcess(tmp_path / "rmqd", rocketmq.nameserver, groups) as rmqd:
        wait_until(lambda: offsets.lag(rocketmq, group, topic) == 0, "all is handled and committed")
        rmqd.terminate()
        rmqd.start()
        rmqd.wait_ready()
        reset(rocketmq, group, topic, 0)
        wait_until(
            lambda: times_handled(path, "m") == {2},
            "all is handled again",
            IDLE_SECONDS + WATCHED_SECONDS + MARGIN_SECONDS,
        )
        wait_until(lambda: offsets.lag(rocketmq, group, topic) == 0, "all is committed again")
    assert times_handled(path, "m") == {2}


@behaviour(
    "operators",
    "`resetOffsetByTime` moves a busy group forward, past its cached messages",
    java="with the next pull of each queue; pushed: after 10 s",
    rmqd="with the next pull of each queue; pushed: at once",
    checked="mqadmin, through the broker and pushed, with a ledger, within 2 s",
    differs="always pushed",
)
def test_a_busy_group_moves_forward(rocketmq: RealCluster, topic: str, group: str, tmp_path: Path, way: Way) -> None:
    """The cached backlog is skipped, and new messages are handled at once."""
    path = tmp_path / "ledger"
    with Producer(rocketmq.broker.address, topic) as producer:
        for queue in range(8):
            producer.send_batch([f"old{queue}.{number}" for number in range(200)], queue=queue)
    config = ledger_group(
        topic, path, "a", handler_options={"seconds": 0.1}, concurrency=1, consume_from_where="first_offset"
    )
    with (
        RmqdProcess(tmp_path / "rmqd", rocketmq.nameserver, {group: config}) as rmqd,
        Load(rocketmq, topic, 100_000, per_second=5),
    ):
        wait_until(lambda: len(finished(path)) > 10, "the group is busy")
        moment = now_ms()
        reset(rocketmq, group, topic, moment)
        wait_until(lambda: len(moved(rmqd, way)) == 8, "all queues went on", PULLING_SECONDS + MARGIN_SECONDS)
        under_way = 1
        skipped_from = len(finished(path)) + under_way
        wait_until(lambda: len(finished(path)) > skipped_from + 5, "new messages are handled")
        status, _ = rmqd.terminate()
        assert status == 0
        rmqd.start()
        handled = len(finished(path))
        wait_until(lambda: len(finished(path)) > handled + 5, "the restarted group continues there")
    assert {key[0] for key in finished(path)[skipped_from:]} == {"m"}
    assert skipped_from < 400


@behaviour(
    "operators",
    "A reset reaches queues that are not pulled: full, paused, or stopped at an illegal offset",
    java="full and paused queues send no pulls, so only when they are pulled again; pushed: after 10 s",
    rmqd="within 10 s: such queues send a request now and then; pushed: at once",
    checked="mqadmin, through the broker and pushed, on all queues of a group at once",
    differs="always pushed",
)
@pytest.mark.parametrize("held_by", ["full", "paused", "blocked"])
def test_a_group_that_sends_no_pulls_moves_forward(
    rocketmq: RealCluster, topic: str, group: str, tmp_path: Path, way: Way, held_by: str
) -> None:
    """Flow-controlled by a hung handler, paused by an operator, or stopped at an illegal offset."""
    path = tmp_path / "ledger"
    send(rocketmq, topic, "old", 400)
    options = {"seconds": 300.0} if held_by == "full" else {}
    config = ledger_group(
        topic,
        path,
        "a",
        handler_options=options,
        concurrency=1,
        pull_threshold_for_queue=1,
        shutdown_timeout="1s",
        on_offset_illegal="stop",
        consume_from_where="first_offset",
    )
    if held_by == "blocked":
        make_illegal(rocketmq, group, topic)
    with RmqdProcess(tmp_path / "rmqd", rocketmq.nameserver, {group: config}) as rmqd:
        state = {"full": "flow_controlled", "paused": "paused", "blocked": "stuck"}[held_by]
        rmqd.wait_ready()
        if held_by == "paused":
            wait_until(lambda: offsets.lag(rocketmq, group, topic) == 0, "all is committed")
            switch(rmqd, group, "pause")
            send(rocketmq, topic, "waiting", 40)
        wait_until(
            lambda: [queue["state"] for queue in rmqd.queues(group) if not queue["is_retry"]] == [state] * 8,
            f"all queues are {state}",
        )
        moment = now_ms()
        reset(rocketmq, group, topic, moment)
        wait_until(lambda: len(moved(rmqd, way)) == 8, "all queues went on", HELD_SECONDS + MARGIN_SECONDS)
        more = one_in_each_queue(rocketmq)
        wait_until(lambda: offsets.lag(rocketmq, group, topic) <= more, "the new offsets are committed")
        if held_by == "paused":
            switch(rmqd, group, "resume")
        if held_by == "full":
            rmqd.terminate()
            rmqd.write_config(
                rocketmq.nameserver, {group: ledger_group(topic, path, "a", consume_from_where="first_offset")}
            )
            rmqd.start()
            rmqd.wait_ready()
        send(rocketmq, topic, "new", 40)
        wait_until(lambda: times_handled(path, "new") == {1}, "new messages are handled once")
    keys = finished(path)
    assert len([key for key in keys if key.startswith("waiting")]) <= more
    assert len([key for key in keys if key.startswith("old")]) <= (0 if held_by == "full" else 400) + more


@behaviour(
    "operators",
    "A group that stops right after a reset does not commit over it",
    java="brokers ignore commits until the reset is pulled; pushed: the frozen offset is committed",
    rmqd="the same; an offset that was set back on the broker is never overwritten",
    checked="the next start begins at the reset, through the broker and pushed",
    differs="always pushed",
)
def test_the_last_commit_of_a_group_does_not_undo_a_reset(
    rocketmq: RealCluster, topic: str, group: str, tmp_path: Path, way: Way
) -> None:
    """The group stops right after the reset, and its next start begins at the reset."""
    path = tmp_path / "ledger"
    send(rocketmq, topic, "m", 80)
    config = ledger_group(topic, path, "a", persist_consumer_offset_interval="1s", consume_from_where="first_offset")
    with RmqdProcess(tmp_path / "rmqd", rocketmq.nameserver, {group: config}) as rmqd:
        wait_until(lambda: offsets.lag(rocketmq, group, topic) == 0, "all is committed")
        switch(rmqd, group, "pause")
        send(rocketmq, topic, "n", 80)
        reset(rocketmq, group, topic, 0)
        status, _ = rmqd.terminate()
        assert status == 0
        rmqd.start()
        wait_until(lambda: times_handled(path, "m") == {2}, "all from the beginning is handled again")
        wait_until(lambda: times_handled(path, "n") == {1}, "new messages are handled")


def make_illegal(rocketmq: RealCluster, group: str, topic: str) -> None:
    """Commit offsets past the ends of the queues, before the group ever ran.

    A broker holds the pulls of a process that has ended for up to 20 s, and one of these pulls could take the reset.
    """
    rocketmq.admin("updateSubGroup", "-c", CLUSTER_NAME, "-g", group)
    for queue, end in offsets.stored(rocketmq, topic).items():
        offsets.commit(rocketmq, group, topic, queue, end + 1000)


def switch(rmqd: RmqdProcess, group: str, action: str) -> None:
    """Pause or resume a group by HTTP."""
    url = f"http://{rmqd.http}/api/v1/groups/{group}/{action}"
    with urllib.request.urlopen(urllib.request.Request(url, method="POST"), timeout=5) as response:
        assert response.status == 200
