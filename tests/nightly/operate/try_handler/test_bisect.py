"""The one message on which a handler fails is found in few runs, and where there is none that is said.

The core of these tests is in tests/operate/try_handler/test_bisect.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.operate.try_handler.test_bisect import MAX_MESSAGES, MAX_RUNS, find, message


def test_two_messages_fail() -> None:
    """The first is found, and it is said that there is another; without it the other one is found."""
    finding = find(lambda batch, before: bool({30, 70} & set(batch)), 100)
    assert (finding.message, finding.others_fail) == (message(30), True)


@settings(deadline=None, max_examples=25)
@given(first=st.integers(0, 98), between=st.integers(1, 99))
def test_only_a_combination_fails(first: int, between: int) -> None:
    """No message is accused: it is said that these two fail together."""
    second = min(first + between, 99)
    finding = find(lambda batch, before: {first, second} <= {*before, *batch}, 100)
    assert (finding.answer, finding.message) == ("not_alone", None)
    assert list(finding.together) == [message(first), message(second)]


def test_a_combination_in_one_batch_fails() -> None:
    """What was seen to fail together is told."""
    finding = find(lambda batch, before: {10, 90} <= set(batch), 100, 1024)
    assert (finding.answer, finding.message) == ("not_alone", None)
    assert {message(10), message(90)} <= set(finding.together)


def test_what_runs_full_needs_many_messages() -> None:
    """As where each message costs memory: so many in a row fail, whichever they are."""
    finding = find(lambda batch, before: len(before) == 4000, MAX_MESSAGES)
    assert (finding.answer, len(finding.together)) == ("not_alone", 4001)
    assert finding.runs <= MAX_RUNS + 1


@settings(deadline=None, max_examples=5)
@given(poison=st.integers(0, MAX_MESSAGES - 2))
def test_the_process_ends_later(poison: int) -> None:
    """A message whose harm shows at the next one is not alone to be seen, and is the first of those that are told."""
    finding = find(lambda batch, before: poison in before[-1:], MAX_MESSAGES)
    assert (finding.answer, list(finding.together)) == ("not_alone", [message(poison), message(poison + 1)])
    assert finding.runs <= MAX_RUNS


def test_what_does_not_fail_again_is_no_message_s_fault() -> None:
    calls: list[int] = []

    def fails(batch: Sequence[int], before: Sequence[int]) -> bool:
        calls.append(1)
        return len(calls) == 50

    finding = find(fails, 100)
    assert (finding.answer, finding.message) == ("not_again", None)


def test_an_end_behind_the_last_call_is_seen() -> None:
    finding = find(lambda batch, before: False, 1, at_end=lambda: "was killed by SIGSEGV")
    assert (finding.answer, finding.message, finding.kind) == ("found", message(0), "died")
