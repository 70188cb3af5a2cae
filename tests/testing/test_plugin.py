"""The plugin in a user's pytest: found by its entry point, without other plugins, and without leftovers."""

from __future__ import annotations

import threading

import pytest

from rmqd.testing import RocketMQ
from tests.testing.test_cases import GOOD, GROUP, HANDLERS
from tests.testing.user_folder import UserFolder
from tests.waiting import wait_until

WITHOUT_ASYNCIO = """
from rmqd.testing import make_message as by_import

def test_the_fixtures_are_there(rocketmq, run_handler, make_message, make_batch):
    rocketmq.create_topic("orders", queues=2)
    rocketmq.send("orders", b"one", keys="order-1", tags="paid", properties={"region": "eu"})
    seen = []
    result = run_handler(lambda batch: seen.extend(batch), topic="orders", group="mailer")
    assert [message.properties["region"] for message in seen] == ["eu"]
    assert len(result.acked) == 1
    assert make_batch(make_message(b"x"))[0].body == by_import(b"x").body
"""


@pytest.mark.process
def test_the_plugin_works_without_pytest_asyncio_and_runs_cases(folder: UserFolder) -> None:
    folder.write("test_user.py", WITHOUT_ASYNCIO)
    folder.write("handlers_of_cases.py", HANDLERS)
    folder.write("good.cases.yaml", GOOD)
    folder.write("test_bad.cases.yaml", GROUP + "  a case:\n    messages: [{body: x}]\n    expect: {}\n")
    code, out = folder.pytest("-p", "no:asyncio", "-rf")
    assert code == 1
    assert "1 failed, 3 passed" in out
    assert "1: expected never handed to the handler" in out
    assert "test_bad.cases.yaml:5:3" in out


def test_no_thread_remains_after_rocketmq_is_closed(folder: UserFolder) -> None:
    before = set(threading.enumerate())
    with RocketMQ() as rocketmq:
        rocketmq.send("orders", "one")
        rocketmq.run_handler(lambda batch: None, topic="orders", group="mailer")
    wait_until(lambda: before.issuperset(threading.enumerate()), "the handler's thread ends")
