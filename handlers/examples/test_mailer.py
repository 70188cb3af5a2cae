"""Tests of a handler: with batches made by hand, and with the real consumer. They need only rmqd and pytest."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from mailer import Mailer

from rmqd.testing import RocketMQ, RunResult, make_batch, make_message

ORDER = {"customer": "ada@example.org"}
OPTIONS = Mailer.Options(sender="shop@example.org")


class Post:
    """A mail service that is unavailable for the first mails."""

    def __init__(self, closed: int = 0) -> None:
        self.closed = closed
        self.sent: list[str] = []

    def send(self, sender: str, receiver: str, text: str) -> None:
        """Store the mail, or fail."""
        if self.closed:
            self.closed -= 1
            raise ConnectionRefusedError("the post is closed")
        self.sent.append(f"{receiver}: {text}")


def test_a_mail_names_the_order() -> None:
    """Call the handler without a broker, with a batch made by hand."""
    post = Post()
    Mailer(OPTIONS, post).handle(make_batch(make_message(ORDER, keys="order-1")))
    assert post.sent == ["ada@example.org: order order-1 is paid"]


def test_what_is_no_order_is_given_up() -> None:
    """The handler's decision is in the batch."""
    batch = make_batch(make_message("oops"), make_message(ORDER))
    Mailer(OPTIONS, Post()).handle(batch)
    assert batch.decisions()[0].reason == "an order without a customer"


@pytest.fixture
def orders(rocketmq: RocketMQ) -> RocketMQ:
    """A broker with the topic."""
    rocketmq.create_topic("orders", queues=2)
    return rocketmq


def test_a_mail_goes_out_once_the_post_is_open(orders: RocketMQ, run_handler: Callable[..., RunResult]) -> None:
    """Run the real consumer. Both retries have RocketMQ's delay, but the test's clock skips it."""
    post = Post(closed=2)
    orders.send("orders", ORDER, keys="order-1", tags="paid")
    result = run_handler(Mailer(OPTIONS, post), topic="orders", group="mailer")
    assert [attempt.outcome for attempt in result.attempts] == ["retried", "retried", "acked"]
    assert result.elapsed_seconds >= 120
    assert len(post.sent) == 1
    assert sum(orders.offsets("mailer", "orders").values()) == 1


def test_a_mail_that_never_goes_out_is_in_the_dead_letters(
    orders: RocketMQ, run_handler: Callable[..., RunResult]
) -> None:
    """Set a key of the group, as in `rmqd.yaml`."""
    orders.send("orders", ORDER, keys="order-1", tags="paid")
    run_handler(Mailer(OPTIONS, Post(closed=99)), topic="orders", group="mailer", max_reconsume_times=3)
    (dead,) = orders.dead_letters("mailer")
    assert dead.keys == "order-1"
    assert dead.properties["RMQD_REASON"] == "max_reconsume_times reached"
    assert "the post is closed" in dead.properties["RMQD_EXCEPTION"]
    assert len(orders.retries("mailer")) == 3
