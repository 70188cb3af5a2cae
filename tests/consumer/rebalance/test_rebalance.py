"""What a rebalance changes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rmqd.consumer.rebalance.rebalance import plan
from rmqd.wire.message_queue import MessageQueue

queues = st.sets(st.integers(0, 9).map(lambda number: MessageQueue("t1", "a", number)))


@given(wanted=queues, held=queues)
def test_the_plan_leads_from_what_is_held_to_what_is_wanted(wanted: set[MessageQueue], held: set[MessageQueue]) -> None:
    """It touches no queue that stays."""
    change = plan(wanted, held)
    assert (held - change.give_up) | change.take == wanted
    assert not change.take & change.give_up
    assert not (change.take | change.give_up) & (wanted & held)
