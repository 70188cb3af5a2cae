"""Runs of the targets with all kept inputs, without a fuzzer."""

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
    made = load(request.param)
    yield made
    made.close()


def test_every_kept_input_is_quickly_accepted_or_rejected(target: Target) -> None:
    """A rejection raises the documented error. The corpus must have more than 100 inputs to be meaningful."""
    inputs = corpus(target.name)
    for data in inputs:
        target.timed(data)
    assert len(inputs) > 100
    assert sum(map(len, inputs)) < MAX_CORPUS_BYTES


@pytest.mark.slow
def test_inputs_leak_no_memory(target: Target) -> None:
    """The peak is limited too, because the memory for an input is bounded."""
    inputs = corpus(target.name)[:200]
    left = []
    tracemalloc.start()
    try:
        for _ in range(3):  # the first two rounds create objects that are created only once
            for data in inputs:
                target.run(data)
            gc.collect()  # because a connection and its protocol refer to each other
            left.append(tracemalloc.get_traced_memory()[0])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert left[-1] - left[-2] < MAX_LEFT_BYTES
    assert peak < 32 * 1024 * 1024


@pytest.mark.parametrize("name", PLANTED)
def test_no_kept_input_triggers_a_planted_bug(name: str) -> None:
    """Otherwise a fuzzer that finds the bug would prove nothing."""
    target = load(name)
    try:
        with replaced(PLANTED[name]()):
            for data in corpus(name):
                target.run(data)
    finally:
        target.close()
