"""A database that is unavailable for a minute, while its group gets messages all the time, in simulated time."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from typing import Any

import pytest
from structlog.testing import capture_logs

from rmqd.broker.embedded_rocketmq import EmbeddedOptions, embedded_rocketmq
from rmqd.client.client_options import ClientOptions
from rmqd.client.instance import ClientInstance
from rmqd.client.sending.outgoing_message import OutgoingMessage
from rmqd.consumer.consumer_options import CircuitOptions
from rmqd.handler_api.batch import Batch
from rmqd.testing.message_factory import messages_of
from rmqd.wire.topics import dlq_topic
from tests.client.running import running
from tests.clock import ManualClock
from tests.consumer.groups import GROUP, TOPIC
from tests.consumer.members import member
from tests.consumer.pop.popping import Popping

AWAY_SECONDS = 60
Plan = tuple[tuple[int, int, bool], ...]  # seconds, messages sent per second, and whether the database is unavailable
MINUTE: Plan = ((5, 20, False), (AWAY_SECONDS, 20, True), (15, 20, False))
BACKLOG = 300  # messages sent before the group starts
CONCURRENCY = 4
CIRCUIT = CircuitOptions(5, 0.0, 30.0, 15.0)
PROBES = AWAY_SECONDS // 15  # failing probes


def messages_in(plan: Plan) -> int:
    return sum(seconds * a_second for seconds, a_second, _ in plan)


class Database:
    """A handler whose database may be unavailable. It counts the calls of each message, and records the writes."""

    def __init__(self) -> None:
        self.away = False
        self.written: set[str] = set()
        self.calls: Counter[str] = Counter()
        self.reconsume_times: Counter[str] = Counter()

    async def __call__(self, batch: Batch) -> None:
        for message in batch:
            key = message.keys or ""
            self.calls[key] += 1
            self.reconsume_times[key] = max(self.reconsume_times[key], message.reconsume_times)
        await asyncio.sleep(0)
        if self.away:
            raise ConnectionError("connection refused")
        self.written.update(message.keys or "" for message in batch)


async def run_through_an_outage(
    circuit: CircuitOptions | None,
    plan: Plan = MINUTE,
    backlog: int = 0,
    **options: Any,
) -> tuple[Database, int, list[str]]:
    """The final state of the database, the number of dead letters, and the circuit's events."""
    clock = ManualClock()
    database = Database()
    options = {
        "consume_from_where": "first_offset",
        "max_reconsume_times": 2,
        "concurrency": CONCURRENCY,
        **options,
    }
    with capture_logs() as logs:
        async with embedded_rocketmq(EmbeddedOptions(topics={TOPIC: 4}), clock) as rocketmq:
            client = ClientInstance(ClientOptions(nameservers=(rocketmq.nameserver,)), clock=clock)
            async with contextlib.AsyncExitStack() as stack:
                await stack.enter_async_context(running(client.run()))
                if options.get("consume_mode") == "pop":
                    await Popping(rocketmq, client, clock).set_mode("POP")
                sent: set[str] = set()

                async def send(key: str) -> None:
                    await client.producer.send(OutgoingMessage(TOPIC, b"an order", keys=key))
                    sent.add(key)

                for number in range(backlog):
                    await send(f"before {number}")
                database.away = plan[0][2]
                joining = member(
                    rocketmq.nameserver,
                    database,
                    clock=clock,
                    circuit=circuit,
                    **options,
                )
                one = await stack.enter_async_context(joining)
                await clock.until(lambda: one.consumer.snapshot().ready, "the group is ready")
                number = 0
                for seconds, a_second, away in plan:
                    database.away = away
                    for _ in range(seconds):
                        for _ in range(a_second):
                            await send(str(number))
                            number += 1
                        await clock.advance(1)
                dead = dlq_topic(GROUP)

                def is_through() -> bool:  # compares keys, because delivery is at least once
                    letters = {message.keys or "" for message in messages_of(rocketmq.broker, dead)}
                    return database.written | letters == sent

                await clock.until(is_through, "every message is handled or a dead letter", most=300)
                letters = len(messages_of(rocketmq.broker, dead))
                async with clock.flowing():  # a member that pops waits for more to acknowledge in one request
                    await one.stop()
    assert len(sent) == backlog + messages_in(plan)
    return (
        database,
        letters,
        [entry["event"] for entry in logs if entry["event"].startswith("circuit.")],
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "mode",
    [{}, {"consume_mode": "orderly"}, {"order_by": "keys"}, {"consume_mode": "pop"}],
    ids=["concurrently", "orderly", "order_by", "pop"],
)
async def test_with_a_circuit_breaker_an_outage_costs_no_attempt(
    mode: dict[str, Any],
) -> None:
    """No message is dead-lettered after three attempts. Fewer than one in a hundred is handled again."""
    database, dead_letters, events = await run_through_an_outage(CIRCUIT, **mode)
    assert len(database.calls) == messages_in(MINUTE)
    assert dead_letters == 0
    assert events.count("circuit.opened") == events.count("circuit.closed") == 1
    assert events.count("circuit.probe_failed") <= PROBES
    assert max(database.reconsume_times.values()) <= 1  # in order, until the circuit opens
    assert sum(calls > 1 for calls in database.calls.values()) < messages_in(MINUTE) / 100


@pytest.mark.slow
async def test_without_a_circuit_breaker_an_outage_dead_letters_messages() -> None:
    """Each message uses up its attempts within seconds."""
    database, dead_letters, _ = await run_through_an_outage(None, consume_mode="orderly")
    assert dead_letters > PROBES
    assert sum(calls > 1 for calls in database.calls.values()) >= messages_in(MINUTE) / 100


@pytest.mark.slow
async def test_popped_messages_that_wait_for_the_circuit_stay_invisible() -> None:
    """For longer than their invisible time. Otherwise each would be redelivered with one attempt more."""
    plan: Plan = ((AWAY_SECONDS + 40, 0, True), (15, 0, False))
    database, dead_letters, events = await run_through_an_outage(CIRCUIT, plan, BACKLOG, consume_mode="pop")
    assert dead_letters == 0
    probes = events.count("circuit.probe_failed")
    assert probes >= 6
    assert not any(database.reconsume_times.values())
