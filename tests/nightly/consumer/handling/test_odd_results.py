"""Whatever a handler does with one message: that is acknowledged, retried or dead-lettered, and the rest goes on.

A group whose handler does something odd with the second of three messages runs beside another group, in one event
loop. The rows say what becomes of that message; the others of its group, and all of the other group, are acknowledged.
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
def test_what_becomes_of_the_message(stage: Stage, row: tuple[str, Odd, list[str]], is_async: bool) -> None:
    _, act, outcomes = row
    assert stage.play(act, is_async=is_async) == outcomes


@async_or_not
@rows(ERRORS)
def test_what_is_raised_is_a_failure(
    stage: Stage, row: tuple[str, Callable[[], BaseException]], is_async: bool
) -> None:
    assert stage.play(made(row[1]), is_async=is_async) == RETRIED


@async_or_not
@rows(ERRORS)
def test_at_the_last_attempt_it_is_a_dead_letter(
    stage: Stage, row: tuple[str, Callable[[], BaseException]], is_async: bool
) -> None:
    """Which tells what was raised."""
    assert stage.play(made(row[1]), is_async=is_async, max_reconsume_times=0) == DEAD
    [dead] = stage.dead
    assert dead.properties["RMQD_EXCEPTION"]


@rows(ERRORS)
def test_in_an_orderly_group_it_is_repeated_in_place(
    stage: Stage, row: tuple[str, Callable[[], BaseException]]
) -> None:
    assert stage.play(made(row[1]), is_async=True, consume_mode="orderly") == RETRIED


@rows(IN_THE_LOOP)
def test_what_a_coroutine_does_to_the_loop(stage: Stage, row: tuple[str, Odd, list[str]]) -> None:
    _, act, outcomes = row
    assert stage.play(act, is_async=True, concurrency=1) == outcomes


@rows(IN_A_THREAD)
def test_what_a_function_does_to_its_thread(stage: Stage, row: tuple[str, Odd, list[str]]) -> None:
    _, act, outcomes = row
    assert stage.play(act, is_async=False) == outcomes
