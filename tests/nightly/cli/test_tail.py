"""`rmqd tail`: messages as they arrive, by filter and start time, without a group."""

from __future__ import annotations

import json
import select
import signal
import subprocess
import sys
import time
from typing import IO

import pytest

from tests.cli.command import rmqd
from tests.rocketmq import RealCluster
from tests.rocketmq.producer import Producer
from tests.waiting import wait_until

pytestmark = pytest.mark.process


def test_it_ends_after_the_given_number_of_matching_messages(rocketmq: RealCluster, topic: str) -> None:
    since = f"@{time.time() * 1000 - 1:.0f}"
    with Producer(rocketmq.broker.address, topic) as producer:
        for number in range(12):
            producer.send(key=f"m{number}", tags="abc"[number % 3])
    for chosen in (("--tags", "a || c"), ("--sql", "TAGS <> 'b'")):
        ended = rmqd(
            "tail",
            topic,
            *chosen,
            "--since",
            since,
            "--most",
            "8",
            "-n",
            rocketmq.nameserver,
            "-o",
            "json",
        )
        assert ended.code == 0, ended.err
        found = [json.loads(line) for line in ended.out.splitlines()]
        assert sorted(one["keys"] for one in found) == sorted(f"m{n}" for n in range(12) if n % 3 != 1), chosen
    lines = rmqd("tail", topic, "--since", "1h", "--most", "12", "-n", rocketmq.nameserver).out.splitlines()
    assert sorted(line.split()[5] for line in lines) == sorted(f"m{number}" for number in range(12))


def test_it_prints_new_messages_until_ctrl_c(rocketmq: RealCluster, topic: str) -> None:
    """It does not join a group."""
    with Producer(rocketmq.broker.address, topic) as producer:
        producer.send(key="before", queue=0)
        command = [sys.executable, "-m", "rmqd", "tail", topic, "-n", rocketmq.nameserver, "-o", "json"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as tail:
            out = tail.stdout
            assert out is not None
            # messages are sent until one is printed: before it knows the queues' ends, `tail` prints nothing
            sent = iter(range(10**6))

            def tells() -> str:
                producer.send(key=f"after{next(sent)}", queue=0)
                return out.readline() if _is_readable(out) else ""

            told = json.loads(wait_until(tells, "a message is printed"))
            assert told["keys"].startswith("after")
            tail.send_signal(signal.SIGINT)
            assert tail.wait(20) == 0
    groups = rmqd("groups", "list", "--all", "-n", rocketmq.nameserver, "-o", "json").json()
    assert [one["members"] for one in groups if one["group"] == "TOOLS_CONSUMER"] in ([], [0])


def _is_readable(stream: IO[str]) -> bool:
    return bool(select.select([stream], [], [], 0.05)[0])


def test_unknown_topics_and_wrong_options_are_reported(rocketmq: RealCluster) -> None:
    wrong = rmqd("tail", "never_made", "-n", rocketmq.nameserver)
    assert (wrong.code, wrong.out) == (1, "")
    assert "never_made" in wrong.err
    for options, said in (
        (("--tags", "a", "--sql", "b"), "expected only one of them"),
        (("--since", "yesterday"), "or an age such as 10m"),
        (("--tags", "||"), "contains no tag"),
    ):
        ended = rmqd("tail", "t", *options, "-n", rocketmq.nameserver)
        assert ended.code == 2, options
        assert said in ended.err.replace("\n", " "), ended.err


def test_an_invalid_sql_filter_is_refused(rocketmq: RealCluster, topic: str) -> None:
    """RocketMQ would answer a pull with an invalid filter with every message."""
    with Producer(rocketmq.broker.address, topic) as producer:
        producer.send(key="k1", queue=0)
    ended = rmqd("tail", topic, "--sql", "amount >", "--since", "1h", "--most", "1", "-n", rocketmq.nameserver)
    assert (ended.code, ended.out) == (1, "")
    assert "refuses the SQL filter 'amount >'" in ended.err
