"""Odd acts of handlers: their message is acknowledged, retried or dead-lettered, and other messages are not affected.

Many odd messages share one run here. tests/nightly runs each act alone.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.consumer.handling.odd_handlers import Odd, made
from tests.consumer.handling.odd_rows import DEAD, ERRORS, IN_A_THREAD, IN_THE_LOOP, RESULTS, RETRIED, Stage, stage

__all__ = ["stage"]

async_or_not = pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])


def acts_of(table: list[tuple[str, Any, list[str]]]) -> dict[str, Odd]:
    return {name: act for name, act, _ in table}


def outcomes_of(table: list[tuple[str, Any, list[str]]]) -> dict[str, list[str]]:
    return {name: outcomes for name, _, outcomes in table}


def errors() -> dict[str, Odd]:
    """Acts that raise each of the errors."""
    return {name: made(error) for name, error in ERRORS}


def all_are(outcomes: list[str]) -> dict[str, list[str]]:
    return {name: outcomes for name, _ in ERRORS}


@async_or_not
def test_odd_results_settle_their_message(stage: Stage, is_async: bool) -> None:
    assert stage.play_all(acts_of(RESULTS), is_async=is_async) == outcomes_of(RESULTS)


@async_or_not
def test_any_raised_error_is_a_failure(stage: Stage, is_async: bool) -> None:
    assert stage.play_all(errors(), is_async=is_async) == all_are(RETRIED)


@async_or_not
def test_any_error_at_the_last_attempt_makes_a_dead_letter(stage: Stage, is_async: bool) -> None:
    """The dead letter shows the exception."""
    assert stage.play_all(errors(), is_async=is_async, max_reconsume_times=0) == all_are(DEAD)
    assert all(dead.properties["RMQD_EXCEPTION"] for dead in stage.dead)


def test_an_orderly_group_retries_any_error_in_place(stage: Stage) -> None:
    assert stage.play_all(errors(), is_async=True, consume_mode="orderly") == all_are(RETRIED)


# These acts change the outcomes of later acts in the same run.
ALONE = ["takes the loop's executor away", "has one that comes when it has returned"]


@pytest.mark.parametrize("alone", ["", *ALONE], ids=["together", "executor", "timeout"])
def test_a_coroutine_that_misuses_the_loop_affects_only_its_message(stage: Stage, alone: str) -> None:
    table = [row for row in IN_THE_LOOP if (row[0] == alone if alone else row[0] not in ALONE)]
    assert stage.play_all(acts_of(table), is_async=True, concurrency=1) == outcomes_of(table)


def test_a_function_that_misuses_its_thread_affects_only_its_message(stage: Stage) -> None:
    assert stage.play_all(acts_of(IN_A_THREAD), is_async=False) == outcomes_of(IN_A_THREAD)
