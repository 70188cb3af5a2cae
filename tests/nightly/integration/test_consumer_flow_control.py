"""Flow control under a blocked handler: pulling stops, memory is bounded, and metrics show the threshold."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from tests.conformance import behaviour
from tests.integration.rmqd_process import RmqdProcess, ledger_group
from tests.rocketmq import RealCluster
from tests.rocketmq.fixtures import fresh_name
from tests.rocketmq.producer import Producer
from tests.waiting import wait_until

PULL = 32
BODY_BYTES = 4096
MESSAGES = 12_000  # 47 MiB, which each of the groups would cache
QUEUES = 2


def held_back(rmqd: RmqdProcess, group: str) -> bool:
    """Whether every queue of the topic is flow-controlled."""
    return {queue["state"] for queue in rmqd.queues(group) if not queue["is_retry"]} == {"flow_controlled"}


def peak_rss_kib(pid: int) -> int:
    """The peak resident memory of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


@behaviour(
    "flow control",
    "Count, size and span each stop pulling, at most one pull above the threshold",
    java="tries again every 50 ms; the size counts bodies in whole MiB",
    rmqd="continues when the cache has room; the size counts the frames that are kept, in bytes",
    checked="cached messages, bytes and span of each queue, and the process's memory",
)
@behaviour(
    "flow control",
    ("The log reports that a threshold holds a queue back, with both ends, the count and the size of its cache"),
    java="at the first and every 1,000th attempt to pull, one every 50 ms",
    rmqd="at the first and every 1,000th time; each lasts until the queue is pulled again",
    checked="the log lines of groups with one threshold each",
)
def test_each_threshold_alone_stops_pulling_and_bounds_memory(rocketmq: RealCluster, tmp_path: Path) -> None:
    """At most one pull exceeds the threshold. Each of the three groups can reach only one threshold."""
    topic = rocketmq.create_topic(fresh_name("thresholds", "topic"), QUEUES)
    with Producer(rocketmq.broker.address, topic, QUEUES) as producer:
        for _ in range(MESSAGES // 200):
            producer.send_batch(["k"] * 200, b"b" * BODY_BYTES)
    off = {"pull_threshold_for_queue": 65535, "consume_concurrently_max_span": 65535}
    limits: dict[str, dict[str, Any]] = {
        "count": {**off, "pull_threshold_for_queue": 500},
        "size": {**off, "pull_threshold_size_for_queue": "2MiB"},
        "span": {**off, "consume_concurrently_max_span": 700},
    }
    groups = {fresh_name(reason, "group"): reason for reason in limits}
    config = {
        group: ledger_group(
            topic,
            tmp_path / reason,
            "a",
            handler_options={"seconds": 600},
            shutdown_timeout="1s",
            **limits[reason],
            consume_from_where="first_offset",
        )
        for group, reason in groups.items()
    }

    with RmqdProcess(tmp_path / "rmqd", rocketmq.nameserver, config) as rmqd:
        rmqd.wait_ready()
        for group, reason in groups.items():
            wait_until(partial(held_back, rmqd, group), f"the {reason} threshold holds its group back")
        for group, reason in groups.items():
            labels = {"group": group, "topic": topic, "is_retry": "false"}
            counted = {
                name: rmqd.metric("rmqd_flow_control_total", reason=name, **labels)
                for name in ("count", "size", "span", "paused")
            }
            assert {name for name, count in counted.items() if count} == {reason}
            for queue in range(QUEUES):
                cached = rmqd.metric("rmqd_cached_messages", queue=str(queue), **labels)
                size = rmqd.metric("rmqd_cached_bytes", queue=str(queue), **labels)
                span = rmqd.metric("rmqd_queue_span_messages", queue=str(queue), **labels)
                assert size >= cached * BODY_BYTES
                if reason == "count":
                    assert 500 < cached <= 500 + PULL
                elif reason == "size":
                    assert 2 << 20 < size <= (2 << 20) + PULL * (BODY_BYTES + 400)
                else:
                    assert 700 < span <= 700 + PULL
        told = {groups[event["group"]]: event for event in rmqd.events("queue.flow_controlled")}
        assert {reason: event["reason"] for reason, event in told.items()} == {reason: reason for reason in limits}
        assert {event["threshold"] for event in told.values()} == {500, 2 << 20, 700}
        for event in told.values():
            assert event["max_offset"] - event["min_offset"] + 1 >= event["count"] > 0
        peak_kib = peak_rss_kib(rmqd.pid)
        status, seconds = rmqd.terminate()

    assert status == 0
    assert seconds < 20
    # all groups may cache (532 + 732) * 4.3 KiB + 2.2 MiB for each of two queues, under 16 MiB
    assert peak_kib < 110 * 1024


def test_a_hung_synchronous_handler_does_not_delay_the_exit(
    rocketmq: RealCluster, topic: str, group: str, tmp_path: Path
) -> None:
    """Its batch is sent back at the deadline, its thread is abandoned, and the other messages are handled."""
    path = tmp_path / "ledger"
    config = {
        "subscriptions": {topic: "*"},
        "consume_from_where": "first_offset",
        "handler": {
            "plugin": "tests.nightly.integration.hanging_handler:HangingHandler",
            "options": {"path": str(path), "hangs_at": "hang"},
            "concurrency": 2,
        },
        "consume_timeout": "2s",
        "shutdown_timeout": "300s",
    }
    with Producer(rocketmq.broker.address, topic) as producer:
        producer.send(key="hang", queue=0)
        for number in range(200):
            producer.send(key=f"m{number}")
    with RmqdProcess(tmp_path / "rmqd", rocketmq.nameserver, {group: config}) as rmqd:
        wait_until(lambda: path.exists() and len(path.read_text().split()) == 200, "the others are handled")
        wait_until(
            lambda: rmqd.metric("rmqd_messages_handled_total", group=group, result="expired") == 1, "it is sent back"
        )
        status, seconds = rmqd.terminate()
    assert status == 0
    assert seconds < 30, "the exit does not wait for a hung thread"
