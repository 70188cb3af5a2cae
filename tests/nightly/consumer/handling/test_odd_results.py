"""Odd behaviour of a handler: the message is acknowledged, retried or dead-lettered, and the rest continues.

A group whose handler does something odd with the second of three messages runs next to another group, in one event
loop. The rows state the outcome of that message. All other messages of both groups are acknowledged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.consumer.handling.odd_handlers import Odd, made
from tests.consumer.handling.odd_rows import DEAD, ERRORS, IN_A_THREAD, IN_THE_LOOP, RESULTS, RETRIED, Stage, stage

__all__ = ["stage"]


def rows(table: list[Any]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("row", table, ids=lambda row: row[0])


async_or_not = pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])


@async_or_not
@rows(RESULTS)
def test_an_odd_result_has_its_outcome(stage: Stage, row: tuple[str, Odd, list[str]], is_async: bool) -> None:
    _, act, outcomes = row
    assert stage.play(act, is_async=is_async) == outcomes


@async_or_not
@rows(ERRORS)
def test_a_raised_error_is_a_failure(
    stage: Stage, row: tuple[str, Callable[[], BaseException]], is_async: bool
) -> None:
    assert stage.play(made(row[1]), is_async=is_async) == RETRIED


@async_or_not
@rows(ERRORS)
def test_an_error_at_the_last_attempt_makes_a_dead_letter(
    stage: Stage, row: tuple[str, Callable[[], BaseException]], is_async: bool
) -> None:
    """The dead letter names the exception."""
    assert stage.play(made(row[1]), is_async=is_async, max_reconsume_times=0) == DEAD
    [dead] = stage.dead
    assert dead.properties["RMQD_EXCEPTION"]


@rows(ERRORS)
def test_an_error_in_an_orderly_group_is_retried_in_place(
    stage: Stage, row: tuple[str, Callable[[], BaseException]]
) -> None:
    assert stage.play(made(row[1]), is_async=True, consume_mode="orderly") == RETRIED


@rows(IN_THE_LOOP)
def test_an_odd_coroutine_in_the_loop_has_its_outcome(stage: Stage, row: tuple[str, Odd, list[str]]) -> None:
    _, act, outcomes = row
    assert stage.play(act, is_async=True, concurrency=1) == outcomes


@rows(IN_A_THREAD)
def test_an_odd_function_in_a_thread_has_its_outcome(stage: Stage, row: tuple[str, Odd, list[str]]) -> None:
    _, act, outcomes = row
    assert stage.play(act, is_async=False) == outcomes
