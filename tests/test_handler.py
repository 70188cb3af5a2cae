"""The API for handlers: the batch, its decisions, and the exceptions."""

from __future__ import annotations

import pickle
import subprocess
import sys
from importlib import resources
from typing import Any, cast

import pytest

import rmqd
from rmqd import Batch, DeadLetter, Message, MessageQueue, Retry, Suspend
from rmqd.handler_api.batch import Decision, ManualCommitBatch, OrderlyBatch, Outcome, TransactionEnd

QUEUE = MessageQueue("orders", "broker-a", 3)


def test_type_checkers_may_use_the_annotations() -> None:
    """Type checkers use annotations only of packages with this marker."""
    assert resources.files(rmqd).joinpath("py.typed").is_file()


class Letter:
    """Stands for a message. A batch compares messages by identity, so two equal messages are still two."""

    finished, msg_id = False, ""

    def __init__(self, name: str) -> None:
        self.name = name

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{self.name}>"


def make(count: int) -> tuple[Batch, list[Message]]:
    messages = [cast(Message, Letter(f"m{i}")) for i in range(count)]
    return Batch(messages, QUEUE), messages


def outcomes(batch: Batch) -> dict[int, str]:
    return {index: decision.outcome.value for index, decision in batch.decisions().items()}


def test_a_batch_is_a_sequence_of_its_messages_in_order() -> None:
    batch, messages = make(3)
    assert len(batch) == 3
    assert [id(message) for message in batch] == [id(message) for message in messages]
    assert batch[0] is messages[0]
    assert batch[-1] is messages[2]
    assert [id(message) for message in batch[1:]] == [id(message) for message in messages[1:]]
    assert batch.message_queue == QUEUE


def test_a_new_batch_has_no_decisions() -> None:
    batch, _ = make(2)
    assert dict(batch.decisions()) == {}
    assert batch.ack_index == 1
    assert not batch.revoked


def test_each_message_has_its_own_decision_and_the_last_one_counts() -> None:
    batch, messages = make(4)
    batch.ack(messages[3])
    batch.retry(messages[0], delay_level=5)
    batch.dead_letter(messages[2], reason="no such customer")
    batch.retry(messages[3])
    assert batch.decisions() == {
        0: Decision(Outcome.RETRY, delay_level=5),
        2: Decision(Outcome.DEAD_LETTER, reason="no such customer"),
        3: Decision(Outcome.RETRY, delay_level=None),
    }


@pytest.mark.parametrize("decide", ["ack", "retry", "dead_letter"])
def test_a_message_of_another_batch_is_refused(decide: str) -> None:
    batch, _ = make(2)
    stranger = make(1)[1][0]
    with pytest.raises(ValueError, match=r"<m0> is not a message of this batch of 2 from .*orders"):
        getattr(batch, decide)(stranger)
    assert dict(batch.decisions()) == {}


@pytest.mark.parametrize("level", [-2, -100])
def test_a_delay_level_that_does_not_exist_is_refused(level: int) -> None:
    batch, messages = make(1)
    with pytest.raises(ValueError, match=f"{level} is not a valid delay level; expected "):
        batch.retry(messages[0], delay_level=level)
    with pytest.raises(ValueError, match="is not a valid delay level"):
        Retry(level)


@pytest.mark.parametrize(
    ("ack_index", "expected"),
    [(-1, "rrr"), (0, "arr"), (1, "aar"), (2, "aaa"), (2**31 - 1, "aaa")],
)
def test_ack_index_acknowledges_up_to_a_message_and_retries_the_rest(ack_index: int, expected: str) -> None:
    batch, _ = make(3)
    batch.ack_index = ack_index
    assert "".join(one[0] for one in outcomes(batch).values()) == expected
    assert batch.ack_index == min(ack_index, 2)


def test_ack_index_can_be_combined_with_other_decisions() -> None:
    batch, messages = make(3)
    batch.ack_index = 0
    batch.ack(messages[2])
    batch.dead_letter(messages[1])
    assert outcomes(batch) == {0: "ack", 1: "dead_letter", 2: "ack"}
    assert batch.ack_index == 0
    with pytest.raises(ValueError, match="ack_index -2 is below -1"):
        batch.ack_index = -2


def test_a_part_passes_its_decisions_to_the_whole_batch() -> None:
    _, messages = make(4)
    whole = ManualCommitBatch(Held(), messages, QUEUE)
    whole.dead_letter(messages[1], "by middleware")
    whole.decide(3, Decision(Outcome.DEAD_LETTER, error=ValueError("by rmqd")))
    part = whole.undecided().part([1])
    part.ack_index = 0
    assert (list(part), outcomes(whole)) == ([messages[2]], {1: "dead_letter", 3: "dead_letter", 2: "ack"})
    assert isinstance(part, ManualCommitBatch)
    part.rollback()
    assert whole.closing is TransactionEnd.ROLLBACK
    whole.ack_index = 3
    assert outcomes(whole) == {1: "ack", 3: "dead_letter", 2: "ack", 0: "ack"}


def test_a_decision_about_a_part_is_refused_when_the_whole_batch_has_ended() -> None:
    batch, messages = make(3)
    part = batch.part([1, 2])
    part.retry(messages[1])
    batch.end()
    with pytest.raises(RuntimeError, match="too late"):
        part.retry(messages[2])
    with pytest.raises(RuntimeError, match="too late"):
        part.ack_index = -1
    assert outcomes(batch) == {1: "retry"}


class Held:
    """A queue's lock, as a batch sees it."""

    valid = True


@pytest.mark.parametrize("orderly", [False, True])
def test_a_refused_rollback_names_the_required_consume_mode(orderly: bool) -> None:
    batch, messages = make(1)
    if orderly:
        batch = OrderlyBatch(Held(), messages, QUEUE)
    with pytest.raises(RuntimeError, match=r"batch\.rollback\(\) needs consume_mode: orderly"):
        batch.rollback()


def test_a_batch_of_an_orderly_group_is_revoked_when_the_lock_is_lost() -> None:
    _, messages = make(2)
    lease = Held()
    batch = OrderlyBatch(lease, messages, QUEUE)
    assert (list(batch), batch.message_queue, batch.decided) == (messages, QUEUE, None)
    assert not batch.revoked
    lease.valid = False
    assert batch.revoked


def test_the_last_call_of_commit_or_rollback_counts() -> None:
    _, messages = make(1)
    batch = ManualCommitBatch(Held(), messages, QUEUE)
    assert batch.closing is None
    batch.commit()
    assert batch.closing is TransactionEnd.COMMIT
    batch.rollback()
    assert batch.closing is TransactionEnd.ROLLBACK


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (Retry(), "retry"),
        (Retry(delay_level=3), "retry at delay level 3"),
        (DeadLetter("no such customer"), "no such customer"),
        (Suspend(), "suspend"),
        (Suspend(seconds=0.5), "suspend for 500 ms"),
    ],
)
def test_the_exceptions_keep_their_attributes_across_processes(error: Exception, text: str) -> None:
    assert str(error) == text
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert vars(copy) == vars(error)


def test_the_public_names_are_the_whole_api() -> None:
    names: list[Any] = [getattr(rmqd, name) for name in rmqd.__all__]
    assert None not in names
    assert sorted(rmqd.__all__) == sorted(
        "AlreadyHandled Batch DeadLetter Depends Message MessageQueue PullConsumer Retry Suspend SyncPullConsumer "
        "__version__ handler".split()
    )
    with pytest.raises(AttributeError, match="has no attribute 'Producer'"):
        _ = rmqd.Producer


@pytest.mark.process
def test_importing_rmqd_loads_no_submodules() -> None:
    code = "import sys, rmqd; print(*[name for name in sys.modules if name.startswith('rmqd.')])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert loaded == []
