"""A popping member beside a scripted broker: what it asks, and what it makes of answers that no broker often gives."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from rmqd.codes import RequestCode, ResponseCode
from tests.client.peer import Reply
from tests.consumer.groups import Blocked
from tests.consumer.members import member
from tests.consumer.pop.test_answers import PopBroker, pop, popping
from tests.seen import Seen
from tests.waiting import eventually

__all__ = ["pop"]

pytestmark = pytest.mark.usefixtures("unpaced")


async def test_a_broker_that_takes_0_for_the_year_1970_is_told_the_time(pop: PopBroker, seen: Seen) -> None:
    pop.pops.append(Reply(ResponseCode.POLLING_TIMEOUT, "the broker pop message is timeout too much"))
    pop.add(4)
    async with member(pop.address, seen, consume_mode="pop"):
        await seen.has(b"x")
        first, second = (await pop.peer.received(RequestCode.POP_MESSAGE, 2))[:2]
    assert first.ext_fields["bornTime"] == "0"
    assert int(second.ext_fields["bornTime"]) > 1_600_000_000_000


async def test_what_stands_still_is_said_with_its_cause_and_when_it_goes_on(
    pop: PopBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, seconds in (("TICK_SECONDS", 0.02), ("STALL_SECONDS", 0.1)):
        monkeypatch.setattr(f"rmqd.consumer.health.watchdog.{name}", seconds)
    monkeypatch.setattr("rmqd.consumer.assigned.stall.SLOW_CALL_SECONDS", 0.05)
    monkeypatch.setattr("rmqd.consumer.pop.loop.EXCEPTION_DELAY_SECONDS", 0.05)
    monkeypatch.setattr("rmqd.consumer.pull.backoff.EXCEPTION_DELAY_SECONDS", 0.05)
    handler = Blocked()

    with capture_logs() as logs:

        def told() -> list[tuple[str, str]]:
            stalls = [entry for entry in logs if entry["event"] in ("queue.stalled", "queue.recovered")]
            return [(entry["event"], entry["cause"]) for entry in stalls]

        async with member(pop.address, handler, consume_mode="pop") as one:
            await eventually(lambda: popping(one), "it pops")
            pop.add(4)
            expected = [("queue.stalled", "slow_handler")]
            await eventually(lambda: told() == expected, "the handler does not come back")
            handler.release.set()
            expected += [("queue.recovered", "slow_handler")]
            await eventually(lambda: told() == expected, "it does")
            pop.peer.on(RequestCode.POP_MESSAGE, Reply(ResponseCode.NO_PERMISSION, "not you"))
            pop.add(5)
            expected += [("queue.stalled", "no_permission")]
            await eventually(lambda: told() == expected, "pops are refused")
            queue = one.queue(-1)
            assert queue is not None
            assert queue.stall is not None
            assert (queue.state, queue.stall.cause) == ("stuck", "no_permission")
