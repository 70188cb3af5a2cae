"""What a handler may count on, on both engines: over the embedded broker, and over a real RocketMQ where there is one.

All groups of tests/nightly/parity/config run at once, and each test looks at one side of what came of it.
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
    """Not until the end of the process, as is right where a process has one cluster."""
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
    """All groups, from their start until everything that was sent is dealt with, and they have stopped."""
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
    """The reconsume times with which each message came."""
    found: dict[str, list[int]] = {}
    for attempt in run.attempts(group):
        found.setdefault(attempt.id, []).append(attempt.times)
    return found


def gaps(run: ParityRun, group: str, message: str) -> list[float]:
    """Seconds between a message's attempts."""
    at = [attempt.at for attempt in run.attempts(group) if attempt.id == message]
    return [later - earlier for earlier, later in itertools.pairwise(at)]


def test_nothing_comes_twice_that_was_acknowledged(run: ParityRun) -> None:
    """Every group, at the end of a graceful stop: as many attempts as the messages ask for."""
    assert {group: len(run.attempts(group)) for group in ATTEMPTS} == ATTEMPTS
    assert run.behind(ATTEMPTS) == {}


def test_what_fails_is_tried_again(run: ParityRun) -> None:
    """At the delay that the group, the handler or the broker says, with the number of the attempt."""
    seen = times(run, "retries")
    assert all(seen[f"plain-{number}"] == [0] for number in range(20))
    assert seen["fails-once"] == seen["level-2"] == [0, 1]
    assert 1 <= gaps(run, "retries", "fails-once")[0] < 5
    assert gaps(run, "retries", "level-2")[0] >= 5
    assert times(run, "timeouts")["level-3"] == [0, 1]
    assert gaps(run, "timeouts", "level-3")[0] >= 10


def test_a_retried_message_has_its_topic(run: ParityRun) -> None:
    """And its tag, though it comes by the retry topic."""
    topics = {attempt.more["topic"].rpartition("_")[2] for attempt in run.attempts("retries")}
    assert topics == {"retries", "tags", "sql"}
    again = [attempt.more for attempt in run.attempts("retries") if attempt.id == "paid-twice"]
    assert [one["tags"] for one in again] == ["paid", "paid"]


def test_what_is_given_up_is_in_the_dead_letters(run: ParityRun) -> None:
    """After N + 1 attempts, at the handler's word, and at delay level -1; with why."""
    assert times(run, "retries")["always"] == [0, 1, 2]
    assert times(run, "retries")["declared-dead"] == times(run, "retries")["straight-to-dead"] == [0]
    assert run.dead_letters("retries") == {
        "always": "max_reconsume_times reached",
        "declared-dead": "no such customer",
        "straight-to-dead": "delay level -1",
    }


def test_batches_are_full_where_they_can_be(run: ParityRun) -> None:
    """At most consume_message_batch_max_size, of one queue, in its order, each message once."""
    first = [attempt.more for attempt in run.attempts("batches") if attempt.times == 0]
    batches = {tuple(one["batch"]) for one in first}
    assert sorted(offset for batch in batches for offset in batch) == list(range(BATCHES + 4))
    assert Counter(map(len, batches)) == {4: 3, 2: 1}
    assert all(list(batch) == sorted(batch) for batch in batches)


def test_decisions_about_one_message_stand(run: ParityRun) -> None:
    """Whatever is raised for the rest of the batch."""
    seen = times(run, "batches")
    assert seen["one-acked"] == [0]
    assert seen["one-retried"] == seen["the-rest"] == [0, 1]
    assert run.dead_letters("batches") == {"one-dead": "damaged"}


def test_filters_hold(run: ParityRun) -> None:
    """By tags and by SQL92, in one group; what was passed over counts as consumed."""
    by_tags, by_sql = {"paid": [0], "refunded": [0], "paid-twice": [0, 1]}, {"101": [0], "500": [0], "again": [0, 1]}
    seen = times(run, "retries")
    assert {name: seen[name] for name in ("paid", "open", "refunded", "", "paid-twice") if name in seen} == by_tags
    assert {name[4:]: came for name, came in seen.items() if name.startswith("sql-")} == by_sql


def test_a_handler_gets_its_options_and_is_started_before(run: ParityRun) -> None:
    """A class its model, after `start`; a function the dict."""
    assert {attempt.more["started"] for attempt in run.attempts("retries")} == {True}
    assert {attempt.more["greeting"] for attempt in run.attempts("functions")} == {"hello"}


def test_a_function_is_a_handler(run: ParityRun) -> None:
    """In threads; with max_reconsume_times: 0 the first failure is the last."""
    assert set(map(tuple, times(run, "functions").values())) == {(0,)}
    reason = "max_reconsume_times reached"
    assert run.dead_letters("functions") == {"fails-in-a-thread": reason, "hangs": reason}


def test_an_orderly_group_keeps_the_order(run: ParityRun) -> None:
    """What fails is repeated in place, and nothing of its queue passes it; other queues are their own."""
    first, second, third = ([f"{name}-{number}" for number in range(IN_ORDER)] for name in ("first", "second", "third"))
    by_queue: dict[int, list[str]] = {}
    for attempt in run.attempts("orderly"):
        by_queue.setdefault(attempt.more["queue"], []).append(attempt.id)
    assert by_queue[0] == [*first, *["stumbles"] * 3, *second, *["falls"] * 3, *third]
    assert by_queue[1] == [f"beside-{number}" for number in range(IN_ORDER)]


def test_an_orderly_queue_rests(run: ParityRun) -> None:
    """For suspend_current_queue_time, or as long as Suspend says; its attempts are counted, and end."""
    assert times(run, "orderly")["stumbles"] == [0, 1, 2]
    after_failing, suspended = gaps(run, "orderly", "stumbles")
    assert after_failing >= 0.045  # of 0.05: the event loop's timers count in whole milliseconds
    assert suspended >= 0.195
    assert run.dead_letters("orderly") == {"falls": "max_reconsume_times reached"}


def test_a_handler_past_consume_timeout_is_given_up(run: ParityRun) -> None:
    """Its batch is sent back, to come after 10 s; a thread that hangs delays nobody."""
    assert times(run, "timeouts") == {"too-slow": [0, 1], "quick": [0], "level-3": [0, 1]}
    assert gaps(run, "timeouts", "too-slow")[0] >= 10
    assert times(run, "functions")["hangs"] == [0]
