"""The demo's parts together, in this process: its figures compared with the actual decisions for the orders."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rmqd.broker.broker_settings import BrokerSettings
from rmqd.broker.embedded_rocketmq import EmbeddedOptions, embedded_rocketmq
from rmqd.config.load import load_config
from rmqd.config.model.root_model import RootConfig
from rmqd.demo.demo_orders import DemoOptions
from rmqd.demo.demo_play import SAMPLE_CONFIG, DemoGroup, read_group
from rmqd.demo.demo_view import DemoFigures
from rmqd.plugins.model_options import load_runnable
from rmqd.runtime.clock import SystemClock
from tests.nightly.demo import noting_handler

ORDERS = 60  # 25 is not JSON, the payments of 12 and 42 fail at first, and the payment of 40 always fails


@pytest.fixture(autouse=True)
def _all_orders_are_due_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmqd.demo.demo_orders.orders_due", lambda elapsed_seconds: ORDERS)


def config_of(plugin: str, **group: object) -> RootConfig:
    """Return the sample configuration with another handler and other settings."""
    settings = {"handler.plugin": plugin, **group}
    overrides = [f"groups.order-mailer.{key}={value}" for key, value in settings.items()]
    return load_runnable(SAMPLE_CONFIG, overrides, environ={})


async def play(config: RootConfig, *, levels: str, patience_seconds: float = 30) -> tuple[DemoGroup, DemoFigures]:
    """Return the group and its last figures, after all orders were sent and the group has drained."""
    options = EmbeddedOptions(topics={"orders": 4}, settings=BrokerSettings().changed({"messageDelayLevel": levels}))
    async with embedded_rocketmq(options) as rocketmq:
        stage = DemoGroup(rocketmq, config, SystemClock(), seed=1, messages=ORDERS)
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(stage.groups.run())
            await stage.producer.run()
            await stage.catch_up(patience_seconds)
            stage.groups.stop()
            await running
            await stage.read_end_and_close()
        return stage, stage.current_figures("ended")


async def test_the_figures_match_the_decisions_for_the_orders() -> None:
    """Each order is acknowledged, a dead letter, or waiting for a retry."""
    noting_handler.acknowledged.clear()
    noting_handler.given_up.clear()

    stage, figures = await play(config_of("tests.nightly.demo.noting_handler:handle"), levels="1h " * 18)

    acknowledged, given_up = set(noting_handler.acknowledged), set(noting_handler.given_up)
    everything = {f"order-{number}" for number in range(1, ORDERS + 1)}
    waiting = everything - acknowledged - given_up
    assert len(noting_handler.acknowledged) == len(acknowledged)
    assert given_up == {"order-25"}
    assert waiting == {"order-12", "order-42", "order-40"}
    account = figures.account
    assert (figures.sent, account.stored, account.unaccounted, account.unhandled) == (ORDERS, ORDERS, 0, 0)
    assert (account.acknowledged, account.dead_letters, account.waiting) == (len(acknowledged), 1, len(waiting))
    assert [(letter.key, letter.reason[:10]) for letter in figures.dead_letters] == [("order-25", "not JSON: ")]
    assert stage.ledger.ages.snapshot().count == ORDERS


async def test_an_orderly_group_has_no_messages_waiting_for_a_retry() -> None:
    """It retries in place. A message is acknowledged or dead-lettered before the next message of its queue."""
    orderly = {"consume_mode": "orderly", "max_reconsume_times": 1, "suspend_current_queue_time": "10ms"}

    _, figures = await play(config_of("rmqd.demo.demo_orders:handle", **orderly), levels="1h " * 18)

    account = figures.account
    assert (account.stored, account.waiting, account.unhandled, account.unaccounted) == (ORDERS, 0, 0, 0)
    assert {"order-25", "order-40"} <= {letter.key for letter in figures.dead_letters}


async def test_unhandled_messages_are_counted_from_the_committed_offsets() -> None:
    config = config_of("tests.nightly.demo.endless_handler:handle", shutdown_timeout="0s")

    _, figures = await play(config, levels="1h " * 18, patience_seconds=0.05)

    account = figures.account
    assert (account.stored, account.unhandled, account.unaccounted) == (ORDERS, ORDERS, 0)


def test_the_sample_is_the_group_of_the_sample_configuration() -> None:
    """Name and subscriptions are the same. The demo has its own handler and its own delays."""
    shown = read_group(DemoOptions())
    sample = load_config(Path(__file__).parents[3] / "config" / "rmqd.yaml", environ={})

    assert list(shown.groups) == list(sample.groups)
    assert shown.groups["order-mailer"].subscriptions == sample.groups["order-mailer"].subscriptions
