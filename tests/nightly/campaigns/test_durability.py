"""A short durability campaign, and its detection of broken promises."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.nightly.campaigns.durability import Durability, DurabilityPlan
from tests.nightly.campaigns.durability_load import GROUP, TOPIC

pytestmark = pytest.mark.process

PLAN = DurabilityPlan(seed=3, kills=4, load_seconds=(0.1, 1.0))


@pytest.mark.slow
def test_kills_lose_nothing_that_the_broker_acknowledged(tmp_path: Path) -> None:
    """Messages, batches, delayed messages and committed offsets survive."""
    result = Durability(PLAN, tmp_path).run()

    print(result.report())
    assert result.passed, result.report()
    assert any(one.acknowledged.stored for one in result.rounds)
    assert any(one.acknowledged.later for one in result.rounds)


@pytest.mark.slow
def test_lost_changed_and_uncommitted_data_is_reported(tmp_path: Path) -> None:
    """The last life reports a deleted message, a changed message, and an offset that was never committed."""
    plan = DurabilityPlan(seed=4, kills=1, load_seconds=(1.0, 1.0))
    [life] = Durability(plan, tmp_path).run().rounds
    last = {stored.queue_id: stored for stored in life.acknowledged.stored}
    with closing(sqlite3.connect(tmp_path / "data" / "broker.sqlite3")) as database, database:
        gone, other = last[0], last[1]
        database.execute(
            "DELETE FROM record WHERE topic = ? AND queue_id = 0 AND queue_offset >= ?", (TOPIC, gone.offset)
        )
        another = "SELECT record FROM record WHERE topic = ? AND queue_id = 2 AND queue_offset = 0"
        database.execute(
            f"UPDATE record SET record = ({another}) WHERE topic = ? AND queue_id = 1 AND queue_offset = ?",
            (TOPIC, TOPIC, other.offset),
        )
        key = f"{TOPIC}@{GROUP}@3"
        database.execute("UPDATE journal SET value = 999999 WHERE kind = 'offset' AND key = ?", (key,))

    problems = "\n".join(Durability(plan, tmp_path).run().problems)

    assert "messages of life 1 are lost" in problems
    assert f"{TOPIC}:1 has a gap at" in problems
    assert f"{TOPIC}@broker-a:3 is committed at 999999, and ends before" in problems
