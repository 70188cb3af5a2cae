"""SyncPullConsumer: inside a running event loop, closed by another thread, and in a forked process."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from rmqd import SyncPullConsumer
from rmqd.errors import PullConsumerError
from rmqd.testing import RocketMQ


async def test_it_works_inside_a_running_event_loop_as_in_a_notebook(rocketmq: RocketMQ) -> None:
    rocketmq.create_topic("orders")
    with SyncPullConsumer("report", nameserver=rocketmq.nameserver, auto_commit=True) as consumer:
        consumer.subscribe("orders")
        rocketmq.send("orders", b"x")
        assert [message.body for message in consumer.poll()] == [b"x"]
        [queue] = consumer.assignment()
        assert consumer.committed(queue) == 0
    assert rocketmq.offsets("report", "orders") == {0: 1}
    with pytest.raises(PullConsumerError, match="closed"):
        consumer.poll()


def test_closing_in_another_thread_ends_a_poll(rocketmq: RocketMQ) -> None:
    rocketmq.create_topic("orders")
    consumer, said = SyncPullConsumer("report", nameserver=rocketmq.nameserver), []
    consumer.subscribe("orders")
    is_polling = threading.Event()

    def poll_twice() -> None:
        is_polling.set()
        for _ in range(2):
            with pytest.raises(PullConsumerError) as raised:
                consumer.poll(timeout=60)
            said.append(str(raised.value))

    thread = threading.Thread(target=poll_twice)
    thread.start()
    is_polling.wait()
    consumer.close()
    thread.join()
    assert all("create another consumer" in text for text in said)
    assert len(said) == 2


FORKED = """
import os, signal
from rmqd import SyncPullConsumer
consumer = SyncPullConsumer("report", nameserver="127.0.0.1:1")
if child := os.fork():
    consumer.close()
    raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
signal.alarm(30)
consumer.poll()
"""


@pytest.mark.process
def test_a_forked_process_cannot_use_the_consumer() -> None:
    """The thread of the consumer's event loop exists only in the first process, so a call would wait forever."""
    run = subprocess.run([sys.executable, "-W", "ignore", "-c", FORKED], capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert "this process was forked and cannot use the consumer; create another consumer" in run.stderr
