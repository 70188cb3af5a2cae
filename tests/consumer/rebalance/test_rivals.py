"""Which of two engines must leave the group, by the members that each of them sees."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from rmqd.consumer.rebalance.ownership import EngineConflict
from rmqd.errors import GroupHeldElsewhereError
from tests.clock import ManualClock

# other versions of rmqd in the group rely on these
JOINING_SECONDS, JUNIOR_SECONDS, SENIOR_SECONDS = 3.0, 15.0, 30.0

LOCAL, SPARK, OTHER_SPARK = "10.0.0.1@7#1", "10.0.0.2@spark-7#1", "10.0.0.3@spark-7#1"


def leaves_after(own: str, other: str, *, running: bool = False) -> float:
    """How many seconds a member tolerates a member of the other engine."""
    clock = ManualClock()
    conflict = EngineConflict("g", own, clock)
    if running:
        assert conflict.may_consume(())
    start = clock.now
    try:
        while conflict.may_consume([other]) == running:
            clock.turn(0.5)
            assert clock.now - start < 100, "it never leaves"
    except GroupHeldElsewhereError:
        return clock.now - start
    raise AssertionError("it consumes beside the other engine")


def test_drivers_on_spark_conflict_with_every_other_member() -> None:
    everybody = {LOCAL, "10.0.0.9@9#9", SPARK, OTHER_SPARK}
    clock = ManualClock()
    assert EngineConflict("g", LOCAL, clock).other_engine_members(everybody) == {SPARK, OTHER_SPARK}
    assert EngineConflict("g", SPARK, clock).other_engine_members(everybody) == everybody - {SPARK}


def test_a_client_id_that_only_contains_spark_is_not_a_driver() -> None:
    members = {"spark-1@7#1", "10.0.0.1@my-spark-1", "10.0.0.1@7#1@spark-x"}
    assert EngineConflict("g", LOCAL, ManualClock()).other_engine_members(members) == set()


def test_of_two_new_members_one_leaves_at_once_and_the_other_waits() -> None:
    assert leaves_after(SPARK, LOCAL) == 0
    assert leaves_after(LOCAL, SPARK) == JOINING_SECONDS
    assert leaves_after(OTHER_SPARK, SPARK) == 0
    assert leaves_after(SPARK, OTHER_SPARK) == JOINING_SECONDS


def test_a_running_member_outlasts_a_new_one() -> None:
    """A new member must not disturb others."""
    for own, other in ((SPARK, LOCAL), (LOCAL, SPARK), (SPARK, OTHER_SPARK), (OTHER_SPARK, SPARK)):
        assert leaves_after(own, other, running=True) > leaves_after(other, own) + 5


def test_of_two_running_members_one_leaves_before_the_other_would() -> None:
    assert leaves_after(SPARK, LOCAL, running=True) == JUNIOR_SECONDS
    assert leaves_after(LOCAL, SPARK, running=True) == SENIOR_SECONDS
    assert leaves_after(OTHER_SPARK, SPARK, running=True) == JUNIOR_SECONDS
    assert leaves_after(SPARK, OTHER_SPARK, running=True) == SENIOR_SECONDS


def test_one_senior_among_several_makes_a_junior_and_is_named() -> None:
    """A driver between two others is junior to one of them."""
    conflict = EngineConflict("g", SPARK, ManualClock())
    with pytest.raises(GroupHeldElsewhereError, match=r"10\.0\.0\.1"):
        conflict.may_consume([OTHER_SPARK, "10.0.0.1@spark-7#1"])


def test_a_member_of_the_other_engine_that_leaves_is_forgotten() -> None:
    clock = ManualClock()
    conflict = EngineConflict("g", LOCAL, clock)
    for _ in range(10):
        assert not conflict.may_consume([SPARK])
        clock.turn(JOINING_SECONDS - 0.5)
        assert not conflict.may_consume([SPARK])
        conflict.may_consume(())
        conflict.was_clear = False


def test_the_log_and_the_error_name_both_members() -> None:
    conflict = EngineConflict("g", SPARK, ManualClock())
    with capture_logs() as logs, pytest.raises(GroupHeldElsewhereError) as caught:
        conflict.may_consume([LOCAL])
    assert logs == [
        {
            "event": "group_held_elsewhere",
            "log_level": "error",
            "group": "g",
            "here": SPARK,
            "engine": "local",
            "client_id": LOCAL,
            "host": "10.0.0.1",
        }
    ]
    assert str(caught.value) == (
        "group g runs elsewhere: on 10.0.0.1 (10.0.0.1@7#1), with engine: local, or with another client. A group can "
        "use only one engine at a time; stop the group there, and this member (10.0.0.2@spark-7#1) continues at its "
        "offsets"
    )
