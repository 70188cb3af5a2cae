"""The decisions that `rmqd try` reports, which are the decisions of a consumer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rmqd import Batch, DeadLetter, Retry, Suspend
from rmqd.client.client_options import ClientOptions
from rmqd.client.instance import ClientInstance
from rmqd.consumer.assembly import assemble_group
from rmqd.consumer.handling.batch_worker import make_background_batch
from rmqd.handler_api.batch import AGAIN_DECISION
from rmqd.operate.try_handler.trial import TrialDecision
from rmqd.operate.try_handler.trial_main import is_failure, trial_decisions_of
from rmqd.testing import make_message
from tests.consumer.groups import group_options, handler_of

ACKED = TrialDecision("acked")


async def told(handle: Callable[[Batch], object], *times: int, **options: Any) -> tuple[TrialDecision, ...]:
    """The decisions about a batch of three messages, or of messages with these reconsume times."""
    chosen = group_options(**options)
    client = ClientInstance(ClientOptions(nameservers=("127.0.0.1:1",)))
    context, _ = assemble_group(chosen, handler_of(handle), client)
    batch = make_background_batch(chosen, [make_message(reconsume_times=one, topic="t1") for one in times or (0, 0, 0)])
    error = None
    try:
        handle(batch)
    except Exception as raised:  # noqa: BLE001  the handler's
        error = raised
    return trial_decisions_of(batch, error, chosen, context.retry_policy)


def fail(batch: Batch) -> None:
    raise ValueError("boom")


async def test_messages_are_acknowledged_if_the_handler_returns() -> None:
    assert await told(lambda batch: None) == (ACKED, ACKED, ACKED)


async def test_messages_without_a_decision_follow_the_exception() -> None:
    def decide(batch: Batch) -> None:
        batch.ack(batch[0])
        batch.dead_letter(batch[1], "no such order")
        raise Retry(7)

    dead = TrialDecision("dead_lettered", reason="no such order")
    assert await told(decide) == (ACKED, dead, TrialDecision("retried", delay_level=7))


@pytest.mark.parametrize(("times", "level"), [(0, 3), (2, 5), (15, 18)])
async def test_a_retry_without_a_delay_level_gets_the_brokers_level(times: int, level: int) -> None:
    assert await told(fail, times) == (TrialDecision("retried", delay_level=level),)


async def test_a_message_that_fails_its_last_attempt_is_dead_lettered() -> None:
    assert await told(fail, 16) == (TrialDecision("dead_lettered", reason="max_reconsume_times reached"),)
    level = {"delay_level_when_next_consume": -1}
    assert await told(fail, 0, **level) == (TrialDecision("dead_lettered", reason="delay level -1"),)


async def test_a_broadcasting_group_drops_failed_messages() -> None:
    verdict = TrialDecision("dropped", reason="broadcasting groups have no retries")
    assert await told(fail, 0, message_model="broadcasting") == (verdict,)


async def test_an_orderly_group_retries_in_place() -> None:
    def one_fails(batch: Batch) -> None:
        batch.retry(batch[1])

    def suspend(batch: Batch) -> None:
        raise Suspend(5)

    again = TrialDecision("retried", rest_seconds=1.0)
    assert await told(one_fails, consume_mode="orderly") == (ACKED, again, again)
    assert await told(suspend, 0, consume_mode="orderly") == (TrialDecision("retried", rest_seconds=5),)


async def test_messages_that_the_handler_did_not_start_are_retried_at_once() -> None:
    def cut_short(batch: Batch) -> None:
        batch.ack(batch[0])
        batch.decide(2, AGAIN_DECISION)
        raise Retry(7)

    expected = (ACKED, TrialDecision("retried", delay_level=7), TrialDecision("retried", rest_seconds=0))
    assert await told(cut_short) == expected


async def test_a_rollback_retries_the_whole_batch() -> None:
    def roll_back(batch: Batch) -> None:
        batch.ack(batch[0])
        batch.rollback()

    again = TrialDecision("retried", rest_seconds=1.0)
    assert await told(roll_back, consume_mode="orderly", auto_commit=False) == (again, again, again)


def test_decision_exceptions_are_not_failures() -> None:
    assert [is_failure(one) for one in (None, Retry(), DeadLetter("x"), Suspend(), ValueError())] == [False] * 4 + [
        True
    ]
