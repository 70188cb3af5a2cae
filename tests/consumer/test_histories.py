"""Some random histories of the offset store and of hand-overs; tests/nightly and `make campaign histories` run more."""

from __future__ import annotations

import logging

import pytest
import structlog

from rmqd.runtime import clock as backoff
from tests.consumer.histories.__main__ import KINDS


@pytest.mark.parametrize(("kind", "count"), [("offsets", 40), ("hand_over", 8)])
def test_histories(kind: str, count: int) -> None:
    """What fails names its seed; `python -m tests.consumer.histories KIND --seed N` runs it again."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    for seed in range(1, count + 1):
        backoff.RANDOM.seed(seed)
        outcome = KINDS[kind](seed)
        assert outcome.is_good, f"seed {seed}: {outcome}"
