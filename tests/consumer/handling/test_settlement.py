"""Settlement of messages that were not simply acknowledged."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from rmqd.client.client_options import ClientOptions
from rmqd.client.instance import ClientInstance
from rmqd.codes import RequestCode, ResponseCode
from rmqd.consumer.cache.process_queue import ProcessQueue
from rmqd.consumer.handling.handler_failures import CALL_EXPIRED
from rmqd.consumer.handling.orderly import OrderlySettlement
from rmqd.consumer.handling.send_back import NoRetry, SendBack, reconsume_limit
from rmqd.consumer.handling.settlement import Settlement, explain_unavailable
from rmqd.consumer.pop.pop_retries import PopSendBack
from rmqd.consumer.stats.counters import TopicStats
from rmqd.consumer.stats.stats_snapshot import MAX_ERRORS, MAX_REASONS
from rmqd.handler_api.batch import AlreadyHandled, Batch, DeadLetter, Decision, InvalidPayloadError, Outcome, Retry
from rmqd.runtime.clock import Clock, SystemClock
from rmqd.testing.test_group import JumpingClock
from rmqd.wire.command import RemotingCommand
from rmqd.wire.messages import properties as names
from rmqd.wire.messages.decode import decode_messages
from rmqd.wire.messages.encode import StoredMessage, encode_message
from rmqd.wire.messages.message import Message, MessageBlock
from rmqd.wire.messages.properties import COMPRESSED, COMPRESSION_SHIFT, MAX_PROPERTIES_BYTES, CompressionType
from tests.client.peer import Reply
from tests.clock import ManualClock
from tests.consumer.blocks import QUEUE
from tests.consumer.groups import GROUP, TOPIC, group_options
from tests.consumer.scripted_broker import ScriptedBroker
from tests.waiting import eventually

REFUSED = Reply(ResponseCode.SYSTEM_ERROR, "look message by offset failed")


@dataclass(slots=True)
class Case:
    """A settlement, its broker, and queues that were put back to be handed out again."""

    broker: ScriptedBroker
    client: ClientInstance
    again: list[ProcessQueue]

    def settlement(
        self, *, delay_level: int = 0, max_reconsume_times: int = -1, clock: Clock | None = None
    ) -> Settlement:
        limit = reconsume_limit(group_options(max_reconsume_times=max_reconsume_times))
        return Settlement(SendBack(self.client, GROUP, limit), delay_level, self.again.append, clock or SystemClock())

    def sent_back(self) -> list[tuple[int, int, int | None]]:
        """Return commit log offset, delay level and limit of each CONSUMER_SEND_MSG_BACK request."""
        return [(h.offset, h.delay_level, h.max_reconsume_times) for h in self.broker.sent_back]


@pytest.fixture
async def case(broker: ScriptedBroker) -> AsyncIterator[Case]:
    """A settlement with a broker that accepts everything."""
    broker.create_topic(TOPIC)
    client = ClientInstance(ClientOptions(nameservers=(broker.peer.address,)))
    await client.routes.lookup(TOPIC)
    yield Case(broker, client, [])
    await client.remoting.close()


def batch_of(messages: int, **fields: object) -> tuple[ProcessQueue, Batch]:
    """Return a batch and its queue. Commit log offsets start at 100."""
    records = [
        StoredMessage(
            topic=TOPIC,
            queue_offset=number,
            commit_log_offset=100 + number,
            **{"body": b"body", **fields},  # type: ignore[arg-type]
        )
        for number in range(messages)
    ]
    block: MessageBlock = decode_messages(b"".join(map(encode_message, records)), QUEUE)
    queue = ProcessQueue(QUEUE, 0, TopicStats(TOPIC, is_retry=False))
    queue.put(block, messages)
    return queue, Batch(queue.take(messages) if messages > 1 else queue.take(1), QUEUE)


def handled(queue: ProcessQueue) -> dict[str, int]:
    return {result: count for result, count in queue.stats.snapshot().handled.items() if count}


def reasons(queue: ProcessQueue) -> dict[str, int]:
    return {reason: count for reason, count in queue.stats.snapshot().dead_letters.items() if count}


async def test_a_failed_batch_is_sent_back_whole(case: Case) -> None:
    """The broker chooses the delay, and counts up to the group's limit."""
    queue, batch = batch_of(2)
    await case.settlement().settle(queue, batch, RuntimeError("no"))
    assert sorted(case.sent_back()) == [(100, 0, 16), (101, 0, 16)]
    assert handled(queue) == {"retried": 2}
    assert queue.commit_offset() == 2
    snapshot = queue.stats.snapshot()
    assert snapshot.exceptions == {"RuntimeError": 1}
    assert snapshot.errors[-1].msg_id == batch[0].msg_id
    assert snapshot.errors[-1].trace[-1] == "RuntimeError: no"


async def test_messages_that_wait_for_an_unavailable_database_show_the_reason(case: Case) -> None:
    queue, batch = batch_of(2)
    error = ConnectionError("the database is away")
    error.rmqd_wait_seconds = 30  # type: ignore[attr-defined]
    clock = ManualClock()
    await case.settlement(clock=clock).settle(queue, batch, error)
    assert (case.sent_back(), queue.retrying) == ([], 2)
    until, _ = queue.unavailable
    assert until == clock.wall() + 30
    problem = explain_unavailable(queue, until + 59.5, GROUP)
    assert problem is not None
    assert "ConnectionError: the database is away" in problem.evidence
    assert explain_unavailable(queue, until + 60, GROUP) is None


async def test_reasons_of_dead_letters_are_counted_within_bounds(case: Case) -> None:
    """Reasons may contain ids, so frequent reasons stay, and rare ones are counted together."""
    queue, batch = batch_of(31)
    for number, message in enumerate(batch):
        batch.dead_letter(message, reason="not JSON" if number < 4 else f"no customer {number}")
    await case.settlement().settle(queue, batch, None)
    counted = queue.stats.snapshot().dead_letter_reasons
    assert counted["not JSON"] == 4
    assert sum(counted.values()) == 31
    assert len(counted) == MAX_REASONS + 1


async def test_the_last_errors_are_kept(case: Case) -> None:
    """MAX_ERRORS of them. A decision that is raised is kept without a traceback."""
    queue, batch = batch_of(MAX_ERRORS + 2)
    for message in batch:
        await case.settlement().settle(queue, Batch([message], QUEUE), ValueError(f"attempt {message.queue_offset}"))
    errors = queue.stats.snapshot().errors
    assert [error.error for error in errors] == [
        f"ValueError('attempt {number}')" for number in range(2, 2 + MAX_ERRORS)
    ]
    declined, batch = batch_of(1)
    await case.settlement().settle(declined, batch, Retry())
    assert declined.stats.snapshot().errors[0].trace == ()


async def test_each_message_is_settled_by_its_own_decision(case: Case) -> None:
    """The exception applies to the undecided messages."""
    queue, batch = batch_of(5)
    batch.ack(batch[0])
    batch.retry(batch[1], delay_level=5)
    batch.dead_letter(batch[2], reason="broken")
    batch.retry(batch[3])
    await case.settlement(delay_level=2).settle(queue, batch, Retry(delay_level=7))
    assert sorted(case.sent_back()) == [(101, 5, 16), (103, 2, 16), (104, 7, 16)]
    [sent] = case.broker.sent
    assert sent.header.topic == f"%DLQ%{GROUP}"
    assert handled(queue) == {"acked": 1, "retried": 3, "dead_lettered": 1}
    assert queue.stats.snapshot().retries == {2: 1, 5: 1, 7: 1}
    assert reasons(queue) == {"handler": 1}


async def test_a_dead_letter_always_has_a_reason(case: Case) -> None:
    queue, batch = batch_of(1)
    await case.settlement().settle(queue, batch, DeadLetter())
    (sent,) = case.broker.sent
    assert sent.properties["RMQD_REASON"] == "the handler gave no reason"


async def test_decisions_without_an_exception_acknowledge_the_rest(case: Case) -> None:
    """RocketMQ's ackIndex is such a decision."""
    queue, batch = batch_of(4)
    batch.ack_index = 1
    await case.settlement().settle(queue, batch, None)
    assert [at for at, _, _ in sorted(case.sent_back())] == [102, 103]
    assert handled(queue) == {"acked": 2, "retried": 2}


async def test_an_expired_batch_counts_as_expired_and_not_also_as_retried(case: Case) -> None:
    """It is sent back with delay level 3, as in Java, except for messages that were decided before."""
    queue, batch = batch_of(2)
    batch.ack(batch[0])
    await case.settlement(delay_level=9).settle(queue, batch, CALL_EXPIRED)
    assert case.sent_back() == [(101, 3, 16)]
    assert handled(queue) == {"acked": 1, "expired": 1}


@pytest.mark.parametrize(
    ("limit", "times", "dead"), [(-1, 15, False), (-1, 16, True), (2, 1, False), (2, 2, True), (0, 0, True)]
)
async def test_a_failed_last_attempt_makes_a_dead_letter(case: Case, limit: int, times: int, dead: bool) -> None:
    """N reconsume times make N + 1 attempts; -1 stands for 16."""
    queue, batch = batch_of(1, reconsume_times=times)
    await case.settlement(max_reconsume_times=limit).settle(queue, batch, RuntimeError("no"))
    assert bool(case.broker.sent) == dead
    assert bool(case.broker.sent_back) == (not dead)
    assert handled(queue) == {"dead_lettered" if dead else "retried": 1}
    assert queue.stats.snapshot().retries == ({} if dead else {min(3 + times, 18): 1})
    assert reasons(queue) == ({"limit": 1} if dead else {})
    if dead:
        assert case.broker.sent[0].properties["RMQD_REASON"] == "max_reconsume_times reached"


@pytest.mark.parametrize("by", ["message", "exception", "group"])
async def test_delay_level_minus_1_means_a_dead_letter(case: Case, by: str) -> None:
    queue, batch = batch_of(1)
    if by == "message":
        batch.retry(batch[0], delay_level=-1)
    error = Retry(delay_level=-1) if by == "exception" else RuntimeError("no")
    await case.settlement(delay_level=-1 if by == "group" else 0).settle(queue, batch, error)
    assert [sent.header.topic for sent in case.broker.sent] == [f"%DLQ%{GROUP}"]
    assert handled(queue) == {"dead_lettered": 1}


async def test_a_dead_letter_carries_its_reason(case: Case) -> None:
    """It has the stored body, the user's properties and rmqd's, but no property that would delay it."""
    properties = {"KEYS": "k1", "colour": "red", "UNIQ_KEY": "id1", "DELAY": "3", "REAL_TOPIC": "t1", "TIMER_OUT": "1"}
    queue, batch = batch_of(1, properties=properties, flag=7, born_timestamp=1234, sys_flag=0x8)
    await case.settlement().settle(queue, batch, DeadLetter("no \x01 such\x02customer"))
    [sent] = case.broker.sent
    header = sent.header
    assert (header.flag, header.born_timestamp, header.sys_flag, header.queue_id) == (7, 1234, 0, -1)
    assert sent.body == b"body"
    told = sent.properties
    assert told.pop("RMQD_EXCEPTION").strip().endswith("DeadLetter: no   such customer")
    assert (header.batch, header.default_topic_queue_nums) == (False, 1)
    assert told == {
        "KEYS": "k1",
        "colour": "red",
        "UNIQ_KEY": "id1",
        "RETRY_TOPIC": TOPIC,
        "ORIGIN_MESSAGE_ID": batch[0].offset_msg_id,
        "RMQD_REASON": "no   such customer",
        "RMQD_GROUP": GROUP,
    }


@pytest.mark.parametrize("reason", ["why", "w" * 60_000])
@pytest.mark.parametrize("user_bytes", [0, 32_000, 32_500])
async def test_the_exception_is_cut_to_the_size_limit_of_properties(case: Case, reason: str, user_bytes: int) -> None:
    """The limit is 32,767 bytes, including some for the broker. The end of the traceback, with the error, is kept."""
    queue, batch = batch_of(1, properties={"big": "x" * user_bytes} if user_bytes else {})
    error = DeadLetter(reason)
    error.__cause__ = RuntimeError("é" * 50_000)
    await case.settlement().settle(queue, batch, error)
    [sent] = case.broker.sent
    assert len((sent.header.properties or "").encode()) < MAX_PROPERTIES_BYTES - 100 or user_bytes == 32_500
    assert len((sent.header.properties or "").encode()) <= MAX_PROPERTIES_BYTES
    if user_bytes == 0:
        assert len((sent.header.properties or "").encode()) > MAX_PROPERTIES_BYTES - 1000
        told, shown = len(sent.properties["RMQD_REASON"]), len(sent.properties["RMQD_EXCEPTION"].encode())
        assert told == len(reason) or abs(told - shown) < 10, "each has half of the space"


async def test_a_dead_letter_fits_however_little_space_is_left(case: Case) -> None:
    """If the user's properties leave no space, the reason is left out."""
    reasons_told = []
    for user_bytes in range(32_020, 32_180):
        _, batch = batch_of(1, properties={"big": "x" * user_bytes})
        assert await SendBack(case.client, GROUP, 16).dead_letter(batch[0], "why", RuntimeError("no" * 1000))
        sent = case.broker.sent[-1]
        assert len((sent.header.properties or "").encode()) <= MAX_PROPERTIES_BYTES
        reasons_told.append(sent.properties.get("RMQD_REASON", ""))
    assert (reasons_told[0], reasons_told[-1]) == ("why", "")


async def test_a_compressed_body_is_sent_unchanged_with_its_flag(case: Case) -> None:
    """The reader of the dead letters decompresses it."""
    body = zlib.compress(b"body" * 100)
    queue, batch = batch_of(1, body=body, sys_flag=COMPRESSED | CompressionType.ZLIB << COMPRESSION_SHIFT)
    await case.settlement().settle(queue, batch, DeadLetter("x"))
    [sent] = case.broker.sent
    assert (sent.body, sent.header.sys_flag) == (body, 0x301)


async def test_the_broker_makes_the_dead_letter_if_it_refuses_rmqds(case: Case) -> None:
    """The message is sent back with level -1."""
    case.broker.peer.on(RequestCode.SEND_MESSAGE_V2, Reply(ResponseCode.TOPIC_NOT_EXIST, "no auto-creation here"))
    queue, batch = batch_of(1)
    await case.settlement().settle(queue, batch, DeadLetter("x"))
    assert case.sent_back() == [(100, -1, 16)]
    assert handled(queue) == {"dead_lettered": 1}


async def test_a_broker_never_makes_the_dead_letter_of_a_message_in_light_queues(case: Case) -> None:
    """It would add its copy to the light queues again, so that a group of lite topics gets it at once, for ever."""
    case.broker.peer.on(RequestCode.SEND_MESSAGE_V2, REFUSED)
    queue, batch = batch_of(1, properties={"__LITE_TOPIC": "room-1", "INNER_MULTI_DISPATCH": "%LMQ%$chats$room-1"})
    await case.settlement().settle(queue, batch, DeadLetter("x"))
    assert (case.sent_back(), handled(queue), queue.retrying) == ([], {}, 1)


async def test_a_missing_dead_letter_topic_is_created_to_keep_the_reason(case: Case) -> None:
    """With autoCreateTopicEnable=false a broker creates it only for a send-back, which carries no reason."""
    peer, refusal = case.broker.peer, Reply(ResponseCode.TOPIC_NOT_EXIST, "no auto-creation here")

    def create(command: RemotingCommand) -> Reply:
        peer.on(RequestCode.SEND_MESSAGE_V2, case.broker.send)
        assert (command.ext_fields["topic"], command.ext_fields["readQueueNums"]) == (f"%DLQ%{GROUP}", "1")
        return Reply()

    peer.on(RequestCode.SEND_MESSAGE_V2, refusal)
    peer.on(RequestCode.UPDATE_AND_CREATE_TOPIC, create)
    queue, batch = batch_of(1)
    await case.settlement().settle(queue, batch, DeadLetter("no such customer"))
    [sent] = case.broker.sent
    assert (sent.properties["RMQD_REASON"], case.sent_back()) == ("no such customer", [])


async def test_a_message_whose_send_back_is_refused_is_sent_to_the_retry_topic(case: Case) -> None:
    """It has all properties that the broker would have set."""
    case.broker.peer.on(RequestCode.CONSUMER_SEND_MSG_BACK, REFUSED)
    queue, batch = batch_of(1, reconsume_times=2, properties={"KEYS": "k", "DELAY": "4"})
    await case.settlement(max_reconsume_times=9).settle(queue, batch, RuntimeError("no"))
    [sent] = case.broker.sent
    assert sent.header.topic == f"%RETRY%{GROUP}"
    assert (sent.header.reconsume_times, sent.header.max_reconsume_times) == (3, 9)
    assert sent.properties == {
        "KEYS": "k",
        "DELAY": "5",
        "RECONSUME_TIME": "3",
        "MAX_RECONSUME_TIMES": "9",
        "RETRY_TOPIC": TOPIC,
        "ORIGIN_MESSAGE_ID": batch[0].offset_msg_id,
    }
    assert handled(queue) == {"retried": 1}


async def test_messages_that_no_broker_accepts_are_handed_out_again_later(case: Case) -> None:
    """The rest of the batch is finished. The commit offset stays below the refused messages."""
    clock = JumpingClock()
    case.broker.peer.on(RequestCode.CONSUMER_SEND_MSG_BACK, REFUSED)
    case.broker.peer.on(RequestCode.SEND_MESSAGE_V2, REFUSED)
    queue, batch = batch_of(3)
    batch.ack(batch[0])
    await case.settlement(clock=clock).settle(queue, batch, RuntimeError("no"))
    assert (queue.commit_offset(), queue.retrying, len(queue.pending)) == (1, 2, 0)
    clock.jump_to(clock.wall() + 4.9)
    assert case.again == []
    clock.jump_to(clock.wall() + 0.2)  # Java: 5 s
    assert case.again == [queue]
    assert [message.queue_offset for message in queue.pending] == [1, 2]
    assert queue.retrying == 0
    assert handled(queue) == {"acked": 1}


@pytest.mark.parametrize("ending", ["left", "dropped"])
async def test_a_released_queue_does_not_hand_out_refused_messages_again(
    case: Case, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    """Its next owner handles them."""
    monkeypatch.setattr("rmqd.consumer.handling.settlement.LOCAL_RETRY_SECONDS", 0.05)
    case.broker.peer.on(RequestCode.CONSUMER_SEND_MSG_BACK, REFUSED)
    case.broker.peer.on(RequestCode.SEND_MESSAGE_V2, REFUSED)
    queue, batch = batch_of(1)
    await case.settlement().settle(queue, batch, RuntimeError("no"))
    queue.start_release()
    if ending == "dropped":
        queue.drop("handed_over")
    await eventually(lambda: queue.retrying == 0, "the time of the next attempt has come")
    assert not case.again
    assert not queue.pending


@pytest.mark.parametrize("error", [None, RuntimeError("no"), CALL_EXPIRED])
async def test_results_for_a_dropped_queue_are_discarded(case: Case, error: Exception | None) -> None:
    """The next owner has the messages too. They count as duplicates, by cause."""
    queue, batch = batch_of(3)
    batch.dead_letter(batch[1])
    queue.drop("handed_over")
    await case.settlement().settle(queue, batch, error)
    await asyncio.sleep(0)
    assert not case.broker.sent
    assert not case.broker.sent_back
    assert handled(queue) == {}
    assert queue.stats.snapshot().duplicates == {"handed_over": 3}


@pytest.mark.parametrize("answer", [Reply(ResponseCode.SUCCESS), REFUSED], ids=["taken", "refused"])
async def test_messages_that_are_being_sent_back_for_a_dropped_queue_count_as_duplicates(
    case: Case, answer: Reply
) -> None:
    """Seed 9740959: they arrive as retries, and the next owner gets them too, because no commit passed them."""
    queue, batch = batch_of(3)
    batch.ack(batch[0])
    answered = asyncio.Event()

    async def answer_later(command: RemotingCommand) -> Reply:
        await answered.wait()
        return answer

    case.broker.peer.on(RequestCode.CONSUMER_SEND_MSG_BACK, answer_later)
    case.broker.peer.on(RequestCode.SEND_MESSAGE_V2, answer_later)
    settling = asyncio.create_task(case.settlement().settle(queue, batch, RuntimeError("no")))
    await case.broker.peer.received(RequestCode.CONSUMER_SEND_MSG_BACK, 2)
    queue.drop("handed_over")
    answered.set()
    await settling
    assert queue.stats.snapshot().duplicates == {"handed_over": 2}
    assert handled(queue) == ({"acked": 1} if answer is REFUSED else {"acked": 1, "retried": 2})
    assert queue.retrying == 0


async def test_an_invalid_payload_does_not_count_as_a_failed_call(case: Case) -> None:
    """The handler of the batch continues. The message is dead-lettered for its own reason, or acknowledged."""
    queue, batch = batch_of(3)
    error = InvalidPayloadError("no JSON")
    batch.decide(1, Decision(Outcome.DEAD_LETTER, reason=str(error), error=error))
    batch.decide(2, Decision(Outcome.ACK, error=InvalidPayloadError("skipped")))
    with capture_logs() as logs:
        await case.settlement().settle(queue, batch, None)
    snapshot = queue.stats.snapshot()
    assert (snapshot.invalid_payloads, handled(queue)) == (2, {"acked": 2, "dead_lettered": 1})
    told = [(one["event"], one["first_offset"], "acknowledged" in one) for one in logs if "first_offset" in one]
    assert told == [("payload.invalid", 1, False), ("payload.invalid", 2, True)]


@pytest.mark.parametrize(
    ("error", "level"), [(Retry(), 0), (Retry(3), 3), (Retry(0), 0), (ValueError(), 0), (SystemExit(), 0)]
)
async def test_an_exception_sends_the_batch_back_with_its_level(case: Case, error: BaseException, level: int) -> None:
    """SystemExit in a handler does not end the process."""
    queue, batch = batch_of(1)
    await case.settlement().settle(queue, batch, error)
    assert case.sent_back() == [(100, level, 16)]


async def test_already_handled_of_one_message_does_not_acknowledge_the_batch(case: Case) -> None:
    queue, batch = batch_of(2)
    await case.settlement().settle(queue, batch, AlreadyHandled(batch[1]))
    assert (len(case.sent_back()), handled(queue)) == (2, {"retried": 2})


async def test_a_batch_is_settled_at_once_if_the_handler_acknowledged_each_message(case: Case) -> None:
    """If one of them must be retried, nothing is settled yet."""
    queue, batch = batch_of(2)
    batch.ack(batch[0])
    batch.retry(batch[1])
    assert case.settlement().settle_at_once(queue, batch) is None
    assert (queue.commit_offset(), handled(queue)) == (0, {})
    batch.ack(batch[1])
    assert case.settlement().settle_at_once(queue, batch) is False
    assert (queue.commit_offset(), queue.cached_count, handled(queue)) == (2, 0, {"acked": 2})


class LateFirst(ProcessQueue):
    """Another member has the message at offset 0 by now."""

    def may_be_redelivered(self, message: Message) -> bool:
        return message.queue_offset == 0


async def test_a_message_that_another_member_has_by_now_is_not_sent_back(case: Case) -> None:
    """It is finished here, and the rest of the batch is sent back."""
    source, _ = batch_of(2)
    queue = LateFirst(QUEUE, 0, TopicStats(TOPIC, is_retry=False))
    queue.put(source.blocks[0], 2)
    batch = Batch(queue.take(2), QUEUE)
    await case.settlement().settle(queue, batch, RuntimeError("no"))
    assert case.sent_back() == [(101, 0, 16)]
    assert (queue.commit_offset(), queue.cached_count, handled(queue)) == (2, 0, {"retried": 1})


class Faulty(SendBack):
    """A send-back with a bug that one message triggers."""

    async def retry(self, message: Message, delay_level: int) -> bool:
        if message.queue_offset == 0:
            raise ZeroDivisionError
        return await super().retry(message, delay_level)


async def test_a_bug_in_sending_back_affects_only_its_message(case: Case) -> None:
    """The message is retried as if no broker had accepted it, and the bug is logged."""
    queue, batch = batch_of(2)
    settlement = Settlement(Faulty(case.client, GROUP, 16), 0, case.again.append, JumpingClock())
    with capture_logs() as logs:
        await settlement.settle(queue, batch, RuntimeError("no"))
    assert case.sent_back() == [(101, 0, 16)]
    assert (queue.commit_offset(), queue.retrying, handled(queue)) == (0, 1, {"retried": 1})
    assert [entry["offset"] for entry in logs if entry["event"] == "settlement.failed"] == [0]


@pytest.mark.parametrize(
    ("level", "times", "told"),
    [
        (0, 0, "in 10 s (delay level 3)"),
        (0, 2, "in 60 s (delay level 5)"),
        (14, 2, "in 10 min (delay level 14)"),
        (0, 3, "none: max_reconsume_times reached"),
    ],
)
async def test_a_failure_is_logged_with_its_next_attempt(case: Case, level: int, times: int, told: str) -> None:
    queue, batch = batch_of(2, reconsume_times=times, properties={"KEYS": "k1"})
    batch.ack(batch[0])
    with capture_logs() as logs:
        await case.settlement(delay_level=level, max_reconsume_times=3).settle(queue, batch, RuntimeError("no"))
    assert [[*map(one.get, ("keys", "attempt", "next_attempt"))] for one in logs[:1]] == [["k1", times + 1, told]]


async def test_orderly_messages_before_a_dead_letter_are_confirmed_before_it_is_sent(case: Case) -> None:
    """If the queue is lost later, only the other acknowledged messages count as duplicates."""
    confirmed: list[tuple[list[int], bool, int]] = []

    async def confirm(batch: Batch, done: Sequence[int], *, more_follows: bool = False) -> None:
        confirmed.append((list(done), more_follows, len(case.broker.sent)))
        if not more_follows:
            queue.drop("lock_lost")

    policy, options = SendBack(case.client, GROUP, 16), group_options(consume_mode="orderly")
    settlement = OrderlySettlement(policy, options, lambda *_: pytest.fail("suspended"), SystemClock(), confirm)
    queue, batch = batch_of(3)
    batch.dead_letter(batch[1], "bad")
    assert not await settlement.settle(queue, batch, None)
    assert confirmed == [([0], True, 0), ([0, 2], False, 1)]
    assert (handled(queue), queue.stats.snapshot().duplicates) == ({"dead_lettered": 1}, {"lock_lost": 2})


async def test_messages_wait_while_no_broker_is_known(broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dead letters too. Nothing is lost or counted. Some are listed, with their refusals and the last reason."""
    monkeypatch.setattr("rmqd.consumer.handling.send_back.MAX_REFUSED_MESSAGES", 2)
    client = ClientInstance(ClientOptions(nameservers=(broker.peer.address,)))
    queue, batch = batch_of(3)
    batch.dead_letter(batch[1])
    send_back = SendBack(client, GROUP, 16)
    settlement = Settlement(send_back, 0, list[ProcessQueue]().append, JumpingClock())
    await settlement.settle(queue, batch, RuntimeError("no"))
    assert (queue.commit_offset(), queue.retrying, handled(queue), reasons(queue)) == (0, 3, {}, {})
    assert send_back.refused == dict.fromkeys([batch[0], batch[1]], (1, "broker a has no master now"))
    broker.create_topic(TOPIC)
    await client.routes.lookup(TOPIC)
    for code in (RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.SEND_MESSAGE_V2):
        broker.peer.on(code, REFUSED)
    assert not await send_back.dead_letter(batch[0], "why", None)
    assert [(times, REFUSED.remark in why) for times, why in send_back.refused.values()] == [(1, False), (2, True)]
    broker.peer.on(RequestCode.CONSUMER_SEND_MSG_BACK, Reply())
    assert await send_back.retry(batch[0], 0)
    assert await send_back.dead_letter(batch[1], "why", None)
    assert not send_back.refused
    await client.remoting.close()


async def test_messages_that_a_broker_would_copy_wrongly_are_sent(case: Case) -> None:
    """It would copy the whole batch of an inner message, and lose the original topic of a popped retry."""
    send_back = PopSendBack(case.client, GROUP, 16, cast("Any", None))
    plain, member, popped = (batch_of(1, sys_flag=flag)[1][0] for flag in (0, names.INNER_BATCH, 0))
    popped.block.origin = TOPIC
    assert [await send_back.retry(message, 5) for message in (plain, member, popped)] == [True] * 3
    assert case.sent_back() == [(100, 5, 16)]
    assert [sent.header.topic for sent in case.broker.sent] == [f"%RETRY%{GROUP}"] * 2


@pytest.mark.parametrize(
    ("error", "event", "level"),
    [
        (RuntimeError("no"), "handler.failed", "error"),
        (CALL_EXPIRED, "handler.timed_out", "error"),
        (Retry(), "handler.declined", "info"),
    ],
)
async def test_a_failure_is_logged_once_and_a_decision_is_not_an_error(
    case: Case, error: Exception, event: str, level: str
) -> None:
    """Alerts count errors."""
    queue, batch = batch_of(1)
    with capture_logs() as logs:
        await case.settlement().settle(queue, batch, error)
    told = [(entry["event"], entry["log_level"]) for entry in logs if entry["event"].startswith("handler.")]
    assert told == [(event, level)]


async def test_the_longest_delay_is_that_of_the_last_level(case: Case) -> None:
    """Brokers have no level beyond it."""
    _, batch = batch_of(1, reconsume_times=40)
    send_back = SendBack(case.client, GROUP, 100)
    assert [send_back.delay_level(batch[0], asked) for asked in (0, 17, 30)] == [18, 17, 18]


async def test_delay_levels_are_rocketmqs(case: Case) -> None:
    """messageDelayLevel of a broker. Level 0 counts as the first."""
    _, [message] = batch_of(1)
    send_back = SendBack(case.client, GROUP, 16)
    levels = "1s 1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h".split()
    units = {"s": 1, "m": 60, "h": 3600}
    for level, text in enumerate(levels):
        assert send_back.delay_seconds(message, level) == int(text[:-1]) * units[text[-1]]


@pytest.mark.parametrize(
    ("mode", "limit", "times", "not_counted", "is_last"),
    [
        ("concurrently", 5, 0, 0, True),  # as in Java, whatever the limit
        ("orderly", -1, 99, 0, False),
        ("orderly", 2, 1, 0, False),
        ("orderly", 2, 2, 0, True),
        ("orderly", 2, 2, 1, False),
        ("orderly", 0, 0, 0, True),
    ],
)
async def test_a_broadcasting_group_drops_a_message_after_its_last_attempt(
    mode: Any, limit: int, times: int, not_counted: int, *, is_last: bool
) -> None:
    _, [message] = batch_of(1, reconsume_times=times)
    options = group_options(consume_mode=mode, message_model="broadcasting", max_reconsume_times=limit)
    policy = NoRetry(options)
    assert policy.is_last_attempt(message, not_counted) == is_last
    assert policy.delay_seconds(message, 3) == 0.0
    with capture_logs() as logs:
        assert await policy.retry(message, 0), "it is settled"
    reason = "max_reconsume_times reached" if limit > 0 and mode == "orderly" else "broadcasting groups have no retries"
    assert [(one["event"], one["reason"]) for one in logs] == [("message.dropped", reason)]


async def test_a_dropped_queue_sends_nothing_back_but_confirms_finished_messages(case: Case) -> None:
    confirmed: list[list[int]] = []

    async def confirm(batch: Batch, done: Sequence[int], *, more_follows: bool = False) -> None:
        confirmed.append(list(done))

    policy = SendBack(case.client, GROUP, 16)
    settlement = Settlement(policy, 0, case.again.append, SystemClock(), confirm)
    queue, batch = batch_of(3)
    batch.ack(batch[0])
    queue.drop("handed_over")
    await settlement.settle(queue, batch, RuntimeError("no"))
    assert (confirmed, case.sent_back(), queue.stats.snapshot().duplicates) == ([[0]], [], {"handed_over": 3})


def test_an_orderly_group_without_a_limit_retries_as_often_as_in_java() -> None:
    """Integer.MAX_VALUE, which is also sent to brokers."""
    assert reconsume_limit(group_options(consume_mode="orderly", max_reconsume_times=-1)) == 2_147_483_647


async def test_negative_reconsume_times_of_a_producer_do_not_prevent_a_retry(case: Case) -> None:
    queue, batch = batch_of(1, reconsume_times=-50)
    await case.settlement().settle(queue, batch, RuntimeError("no"))
    assert (len(case.sent_back()), handled(queue), queue.commit_offset()) == (1, {"retried": 1}, 1)
