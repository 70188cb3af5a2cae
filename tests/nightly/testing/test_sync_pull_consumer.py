"""SyncPullConsumer: the scripts of the docs, and an interrupt by Ctrl-C.

The core of these tests is in tests/testing/test_sync_pull_consumer.py.
"""

from __future__ import annotations

import re
import signal
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from rmqd import SyncPullConsumer
from rmqd.testing import RocketMQ


def test_the_scripts_of_the_docs_count_each_order_once_and_read_a_time_range(rocketmq: RocketMQ) -> None:
    page = Path(__file__).parents[3] / "docs" / "pull-consumer.md"
    script: dict[str, Any] = {}
    for code in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE):
        exec(code, script)
    rocketmq.create_topic("orders", queues=2)
    for customer, tags in [("ada", "paid"), ("ada", "refunded"), ("grace", "paid"), ("ada", "lost")]:
        rocketmq.send("orders", customer, tags=tags)

    assert script["report"](rocketmq.nameserver) == {"ada": 2, "grace": 1}
    assert script["report"](rocketmq.nameserver) == {}
    now = datetime.now(UTC)
    since = sorted(script["bodies_since"](rocketmq.nameserver, now - timedelta(hours=1)))
    assert since == [b"ada", b"ada", b"ada", b"grace"]
    assert script["bodies_since"](rocketmq.nameserver, now + timedelta(hours=1)) == []


def test_an_interrupt_ends_a_poll_and_loses_no_message(rocketmq: RocketMQ) -> None:
    rocketmq.create_topic("orders")
    with SyncPullConsumer("report", nameserver=rocketmq.nameserver) as consumer:
        consumer.subscribe("orders")
        main = threading.get_ident()
        threading.Timer(0.1, signal.pthread_kill, (main, signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            consumer.poll(timeout=60)
        rocketmq.send("orders", b"x")
        assert [message.body for message in consumer.poll()] == [b"x"]
