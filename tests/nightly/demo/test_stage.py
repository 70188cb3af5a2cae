"""The demo's parts together, in this process: its figures against what really became of each order."""

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

ORDERS = 60  # among them 25, which is no JSON, 12 and 42, whose payment fails, and 40, whose payment always fails


@pytest.fixture(autouse=True)
def _all_orders_are_due_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmqd.demo.demo_orders.orders_due", lambda elapsed_seconds: ORDERS)


def config_of(plugin: str, **group: object) -> RootConfig:
    """The sample, with another handler and other settings."""
    settings = {"handler.plugin": plugin, **group}
    overrides = [f"groups.order-mailer.{key}={value}" for key, value in settings.items()]
    return load_runnable(SAMPLE_CONFIG, overrides, environ={})


async def play(config: RootConfig, *, levels: str, patience_seconds: float = 30) -> tuple[DemoGroup, DemoFigures]:
    """The stage and its last figures, after all orders were sent and the group has drained."""
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


async def test_the_sums_are_those_of_the_orders_themselves() -> None:
    """What was sent is acknowledged, dead or waiting for a retry, each order in one place."""
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


async def test_an_orderly_group_has_nothing_waiting_elsewhere() -> None:
    """What it tries again stays in its queue, and is handled or dead before the messages after it."""
    orderly = {"consume_mode": "orderly", "max_reconsume_times": 1, "suspend_current_queue_time": "10ms"}

    _, figures = await play(config_of("rmqd.demo.demo_orders:handle", **orderly), levels="1h " * 18)

    account = figures.account
    assert (account.stored, account.waiting, account.unhandled, account.unaccounted) == (ORDERS, 0, 0, 0)
    assert {"order-25", "order-40"} <= {letter.key for letter in figures.dead_letters}


async def test_what_was_not_handled_is_counted_by_what_the_broker_has_committed() -> None:
    config = config_of("tests.nightly.demo.endless_handler:handle", shutdown_timeout="0s")

    _, figures = await play(config, levels="1h " * 18, patience_seconds=0.05)

    account = figures.account
    assert (account.stored, account.unhandled, account.unaccounted) == (ORDERS, ORDERS, 0)


def test_the_sample_is_the_group_of_the_sample_configuration() -> None:
    """Name and subscriptions; its handler and its haste are the demo's own."""
    shown = read_group(DemoOptions())
    sample = load_config(Path(__file__).parents[3] / "config" / "rmqd.yaml", environ={})

    assert list(shown.groups) == list(sample.groups)
    assert shown.groups["order-mailer"].subscriptions == sample.groups["order-mailer"].subscriptions
