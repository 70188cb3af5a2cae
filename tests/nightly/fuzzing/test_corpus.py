"""Every kept input goes through its target: what a fuzzer has found stays found, where there is none."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator

import pytest

from tests.nightly.fuzzing.planted import PLANTED
from tests.nightly.fuzzing.target import Target, corpus, replaced
from tests.nightly.fuzzing.targets import TARGETS, load

MAX_CORPUS_BYTES = 200_000
MAX_LEFT_BYTES = 64 * 1024


@pytest.fixture(params=TARGETS)
def target(request: pytest.FixtureRequest) -> Iterator[Target]:
    """Each of them."""
    made = load(request.param)
    yield made
    made.close()


def test_every_kept_input_is_taken_or_refused_at_once(target: Target) -> None:
    """By the documented error, and in little time; and there are enough of them to say something."""
    inputs = corpus(target.name)
    for data in inputs:
        target.timed(data)
    assert len(inputs) > 100
    assert sum(map(len, inputs)) < MAX_CORPUS_BYTES


@pytest.mark.slow
def test_inputs_leave_no_memory_behind(target: Target) -> None:
    """Nor do many of them take much: what an input is kept in is bounded."""
    inputs = corpus(target.name)[:200]
    left = []
    tracemalloc.start()
    try:
        for _ in range(3):  # what is made once is made in the first round, or in the second one
            for data in inputs:
                target.run(data)
            gc.collect()  # a connection and its protocol refer to each other
            left.append(tracemalloc.get_traced_memory()[0])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert left[-1] - left[-2] < MAX_LEFT_BYTES
    assert peak < 32 * 1024 * 1024


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_not_in_the_corpus_already(name: str) -> None:
    """Else nothing would be shown by a fuzzer that finds it."""
    target = load(name)
    try:
        with replaced(PLANTED[name]()):
            for data in corpus(name):
                target.run(data)
    finally:
        target.close()
