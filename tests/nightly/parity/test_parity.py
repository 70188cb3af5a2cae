"""Guarantees for handlers on both engines, with the embedded broker, and with a real RocketMQ if available.

All groups of tests/nightly/parity/config run at once, and each test checks one aspect of the results.
"""

from __future__ import annotations

import itertools
import os
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from rmqd.spark.session.spark_cluster import close_clusters
from rmqd.spark.source.range_fetch import close_kept_connections
from tests.nightly.parity.running import ParityRun, Sent
from tests.spark.embedded_broker import EmbeddedBroker
from tests.spark.needed import need

need("pyspark", "pyarrow")


BATCHES = 10
IN_ORDER = 6
MESSAGES = [
    *(Sent("retries", f"plain-{number}", queue=number % 2) for number in range(20)),
    Sent("retries", "fails-once", ("raise", "ok")),
    Sent("retries", "always", ("raise",)),
    Sent("retries", "level-2", ("raise_retry:2", "ok")),
    Sent("retries", "declared-dead", ("raise_dead_letter:no such customer",)),
    Sent("retries", "straight-to-dead", ("raise_retry:-1",)),
    Sent("timeouts", "level-3", ("raise", "ok")),
    *(Sent("batches", f"batched-{number}") for number in range(BATCHES)),
    Sent("batches", "one-acked", ("ack",)),
    Sent("batches", "one-retried", ("retry:1", "ok")),
    Sent("batches", "one-dead", ("dead_letter:damaged",)),
    Sent("batches", "the-rest", ("raise", "ok")),
    *(Sent("tags", tag, tags=tag) for tag in ("paid", "open", "refunded", "")),
    Sent("tags", "paid-twice", ("raise", "ok"), tags="paid"),
    *(Sent("sql", f"sql-{amount}", properties={"amount": str(amount)}) for amount in (50, 100, 101, 500)),
    Sent("sql", "sql-again", ("raise", "ok"), properties={"amount": "200"}),
    *(Sent("functions", f"called-{number}", queue=number % 2) for number in range(6)),
    Sent("functions", "fails-in-a-thread", ("raise",)),
    *(Sent("orderly", f"first-{number}") for number in range(IN_ORDER)),
    Sent("orderly", "stumbles", ("raise", "raise_suspend:0.2", "ok")),
    *(Sent("orderly", f"second-{number}") for number in range(IN_ORDER)),
    Sent("orderly", "falls", ("raise",)),
    *(Sent("orderly", f"third-{number}") for number in range(IN_ORDER)),
    *(Sent("orderly", f"beside-{number}", queue=1) for number in range(IN_ORDER)),
    Sent("timeouts", "too-slow", ("sleep:5", "ok")),
    Sent("timeouts", "quick", ("sleep:0.05",)),
    Sent("functions", "hangs", ("sleep:5",)),
]
ATTEMPTS = {
    "retries": 20 + 2 + 3 + 2 + 1 + 1 + 2 + 2 + 2 + 2,
    "batches": BATCHES + 1 + 2 + 1 + 2,
    "functions": 8,
    "orderly": 4 * IN_ORDER + 3 + 3,
    "timeouts": 2 + 1 + 2,
}
pytestmark = [
    pytest.mark.process,
    pytest.mark.timeout(300),
]  # a JVM, five queries, and messages that are delayed by 10 s
SPARK, ROCKETMQ = pytest.mark.spark, pytest.mark.rocketmq


@pytest.fixture(scope="module", autouse=True)
def _kept_until_the_end_of_these_tests() -> Iterator[None]:
    """Close clusters and connections, which are otherwise kept until the process ends."""
    yield
    close_clusters()
    close_kept_connections()


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("local, embedded"),
        pytest.param("spark, embedded", marks=SPARK),
        pytest.param("local, rocketmq", marks=ROCKETMQ),
        pytest.param("spark, rocketmq", marks=[SPARK, ROCKETMQ]),
    ],
)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ParityRun]:
    """A finished run: all groups have handled all messages and stopped."""
    engine, broker = request.param.split(", ")
    folder = tmp_path_factory.mktemp("parity")
    spark = request.getfixturevalue("spark") if engine == "spark" else None
    if broker == "embedded":
        with EmbeddedBroker(folder / "broker") as embedded:
            yield done(ParityRun(engine, embedded.nameserver, "parity", folder), spark)
    else:
        prefix = f"parity_{engine}_{time.time_ns() // 1_000_000 % 10**9}_{os.getpid()}"
        yield done(ParityRun(engine, request.getfixturevalue("rocketmq").nameserver, prefix, folder), spark)


def done(run: ParityRun, spark: object) -> ParityRun:
    run.send(MESSAGES)
    with run.running(spark):  # type: ignore[arg-type]  # pyspark is imported only where it is used
        run.until(ATTEMPTS)
    return run


def times(run: ParityRun, group: str) -> dict[str, list[int]]:
    """The reconsume times of each message's attempts."""
    found: dict[str, list[int]] = {}
    for attempt in run.attempts(group):
        found.setdefault(attempt.id, []).append(attempt.times)
    return found


def gaps(run: ParityRun, group: str, message: str) -> list[float]:
    """Seconds between a message's attempts."""
    at = [attempt.at for attempt in run.attempts(group) if attempt.id == message]
    return [later - earlier for earlier, later in itertools.pairwise(at)]


def test_acknowledged_messages_are_not_redelivered(run: ParityRun) -> None:
    """After a graceful stop, every group made exactly the attempts in the scripts."""
    assert {group: len(run.attempts(group)) for group in ATTEMPTS} == ATTEMPTS
    assert run.behind(ATTEMPTS) == {}


def test_failed_messages_are_retried_after_their_delay(run: ParityRun) -> None:
    """The group, the handler or the broker selects the delay."""
    seen = times(run, "retries")
    assert all(seen[f"plain-{number}"] == [0] for number in range(20))
    assert seen["fails-once"] == seen["level-2"] == [0, 1]
    assert 1 <= gaps(run, "retries", "fails-once")[0] < 5
    assert gaps(run, "retries", "level-2")[0] >= 5
    assert times(run, "timeouts")["level-3"] == [0, 1]
    assert gaps(run, "timeouts", "level-3")[0] >= 10


def test_a_retried_message_keeps_its_topic_and_tag(run: ParityRun) -> None:
    """It is delivered from the retry topic."""
    topics = {attempt.more["topic"].rpartition("_")[2] for attempt in run.attempts("retries")}
    assert topics == {"retries", "tags", "sql"}
    again = [attempt.more for attempt in run.attempts("retries") if attempt.id == "paid-twice"]
    assert [one["tags"] for one in again] == ["paid", "paid"]


def test_dead_letters_have_their_reasons(run: ParityRun) -> None:
    """Messages are dead-lettered after N + 1 attempts, by the handler, or with delay level -1."""
    assert times(run, "retries")["always"] == [0, 1, 2]
    assert times(run, "retries")["declared-dead"] == times(run, "retries")["straight-to-dead"] == [0]
    assert run.dead_letters("retries") == {
        "always": "max_reconsume_times reached",
        "declared-dead": "no such customer",
        "straight-to-dead": "delay level -1",
    }


def test_batches_are_as_large_as_possible(run: ParityRun) -> None:
    """A batch has at most consume_message_batch_max_size messages of one queue, in order, each message once."""
    first = [attempt.more for attempt in run.attempts("batches") if attempt.times == 0]
    batches = {tuple(one["batch"]) for one in first}
    assert sorted(offset for batch in batches for offset in batch) == list(range(BATCHES + 4))
    assert Counter(map(len, batches)) == {4: 3, 2: 1}
    assert all(list(batch) == sorted(batch) for batch in batches)


def test_decisions_about_single_messages_override_an_exception(run: ParityRun) -> None:
    """The exception applies to the rest of the batch."""
    seen = times(run, "batches")
    assert seen["one-acked"] == [0]
    assert seen["one-retried"] == seen["the-rest"] == [0, 1]
    assert run.dead_letters("batches") == {"one-dead": "damaged"}


def test_filters_select_messages_and_their_retries(run: ParityRun) -> None:
    """One group filters by tags and by SQL92. Skipped messages count as consumed."""
    by_tags, by_sql = {"paid": [0], "refunded": [0], "paid-twice": [0, 1]}, {"101": [0], "500": [0], "again": [0, 1]}
    seen = times(run, "retries")
    assert {name: seen[name] for name in ("paid", "open", "refunded", "", "paid-twice") if name in seen} == by_tags
    assert {name[4:]: came for name, came in seen.items() if name.startswith("sql-")} == by_sql


def test_a_handler_gets_its_options_and_is_started_before_messages(run: ParityRun) -> None:
    """A class gets its options model, a function gets a dict."""
    assert {attempt.more["started"] for attempt in run.attempts("retries")} == {True}
    assert {attempt.more["greeting"] for attempt in run.attempts("functions")} == {"hello"}


def test_a_function_can_be_a_handler(run: ParityRun) -> None:
    """It runs in threads. With max_reconsume_times: 0 there is one attempt."""
    assert set(map(tuple, times(run, "functions").values())) == {(0,)}
    reason = "max_reconsume_times reached"
    assert run.dead_letters("functions") == {"fails-in-a-thread": reason, "hangs": reason}


def test_an_orderly_group_keeps_the_order_of_each_queue(run: ParityRun) -> None:
    """A failed message is retried in place, and blocks only its own queue."""
    first, second, third = ([f"{name}-{number}" for number in range(IN_ORDER)] for name in ("first", "second", "third"))
    by_queue: dict[int, list[str]] = {}
    for attempt in run.attempts("orderly"):
        by_queue.setdefault(attempt.more["queue"], []).append(attempt.id)
    assert by_queue[0] == [*first, *["stumbles"] * 3, *second, *["falls"] * 3, *third]
    assert by_queue[1] == [f"beside-{number}" for number in range(IN_ORDER)]


def test_an_orderly_queue_is_suspended_after_a_failure(run: ParityRun) -> None:
    """It is suspended for suspend_current_queue_time or the time in Suspend. Attempts are counted and limited."""
    assert times(run, "orderly")["stumbles"] == [0, 1, 2]
    after_failing, suspended = gaps(run, "orderly", "stumbles")
    assert after_failing >= 0.045  # not 0.05, because the event loop's timers count in whole milliseconds
    assert suspended >= 0.195
    assert run.dead_letters("orderly") == {"falls": "max_reconsume_times reached"}


def test_a_call_that_exceeds_consume_timeout_is_abandoned(run: ParityRun) -> None:
    """Its batch is sent back and redelivered after 10 s. A hanging thread does not delay other messages."""
    assert times(run, "timeouts") == {"too-slow": [0, 1], "quick": [0], "level-3": [0, 1]}
    assert gaps(run, "timeouts", "too-slow")[0] >= 10
    assert times(run, "functions")["hangs"] == [0]
