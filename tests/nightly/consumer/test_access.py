"""A group whose keys are refused: it reports this, loses nothing, and continues with other keys."""

from __future__ import annotations

import asyncio

from structlog.testing import capture_logs

from rmqd.client.remoting.remoting_client import RemotingClient
from rmqd.codes import RequestCode, ResponseCode
from rmqd.handler_api.batch import Batch
from rmqd.wire.command import RemotingCommand
from tests.client.peer import Reply
from tests.consumer.groups import GROUP, TOPIC
from tests.consumer.members import member
from tests.consumer.scripted_broker import ScriptedBroker
from tests.consumer.test_access import NEW, OLD, only, options
from tests.waiting import eventually


async def test_a_secret_that_is_replaced_under_load_loses_and_repeats_nothing(broker: ScriptedBroker) -> None:
    """Messages that were handled while the old secret was refused are committed with the new one."""
    queue, other = broker.create_topic(TOPIC, 2)
    bodies: list[bytes] = []
    release = asyncio.Event()

    async def handle(batch: Batch) -> None:
        bodies.extend(message.body for message in batch)
        await release.wait()

    broker.peer.gate = only(OLD)
    remoting = RemotingClient(options(OLD))
    with capture_logs() as logs:
        async with member(
            broker.peer.address, handle, remoting=remoting, persist_consumer_offset_interval_seconds=0.05
        ) as m:
            await broker.store(queue, b"before")
            await eventually(lambda: bodies == [b"before"], "the handler has the message")
            broker.peer.gate = only(NEW)
            release.set()
            await eventually(lambda: not m.consumer.snapshot().ready, "the group is not ready")
            reason = m.consumer.snapshot().not_ready_reason
            assert reason is not None
            assert f"group {GROUP} is kept from consuming: {broker.peer.address} refuses access" in reason
            assert (GROUP, queue) not in broker.offsets or broker.offsets[GROUP, queue] == 0
            m.client.update_security(options(NEW))
            await eventually(lambda: broker.offsets.get((GROUP, queue)) == 1, "what was handled is committed")
            await broker.store(other, b"after")
            await eventually(lambda: bodies == [b"before", b"after"], "the next message is handled")
            assert m.consumer.snapshot().ready
            assert m.consumer.snapshot().rebalances <= 2
            await m.stop()
    told = [entry for entry in logs if entry["log_level"] in ("warning", "error")]
    assert [entry["event"] for entry in told] == ["cluster.without_id", "access.refused"]
    assert "old-secret" not in str(logs)


async def test_a_group_that_may_only_subscribe_sees_its_retries(broker: ScriptedBroker) -> None:
    """RocketMQ 5 requires the action Get on the group to query the ends of its retry topic."""
    [queue] = broker.create_topic(TOPIC)
    broker.knows_groups, broker.redelivers = False, True
    attempts: list[int] = []

    async def handle(batch: Batch) -> None:
        attempts.append(batch[0].reconsume_times)
        if len(attempts) == 1:
            raise RuntimeError("once")

    def gate(command: RemotingCommand) -> Reply | None:
        ends = (RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP)
        if command.code in ends and command.ext_fields["topic"] == f"%RETRY%{GROUP}":
            remark = f"User:u has no permission to access Group:{GROUP} from 10.0.0.9, no matched policies."
            return Reply(ResponseCode.NO_PERMISSION, remark)
        return None

    broker.peer.gate = gate
    async with member(broker.peer.address, handle, consume_from_where="first_offset") as m:
        await broker.store(queue, b"x")
        await eventually(lambda: attempts == [0, 1], "the message is redelivered")
        assert m.consumer.snapshot().ready
        await m.stop()
