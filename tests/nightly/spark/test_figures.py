"""The metrics of a group on Spark, from the reports of executors, Spark and brokers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from rmqd.client.client_options import TraceOptions
from rmqd.client.group_reader import QueueLag
from rmqd.consumer.pauses import WHOLE_GROUP, Pauses
from rmqd.consumer.stats.stats_snapshot import GroupSnapshot, LastError, QueueSnapshot
from rmqd.plugins.model_options import options_of_group
from tests.clock import ManualClock
from tests.config.configs import config
from tests.daemon.fakes import topic_snapshot
from tests.spark.embedded_broker import queue
from tests.spark.needed import need

need("pyspark")

from rmqd.spark.engine.spark_figures import BatchProgress, DriverMetrics  # noqa: E402
from rmqd.spark.handlers.range_outcome import RangeOutcome  # noqa: E402

RETRY = "%RETRY%mailer"


class Group:
    """A group's metrics, and their clock."""

    def __init__(self, *topics: str) -> None:
        subscriptions = {"engine": "spark", "subscriptions": dict.fromkeys(topics or ("orders",), "*")}
        settings = config("mailer", changes={"mailer": subscriptions}).groups["mailer"]
        self.clock = ManualClock()
        self.options = options_of_group(settings, "mailer", "/nowhere")
        self.figures = DriverMetrics(self.options, self.clock)
        self.pauses = Pauses()

    def now(self, state: str = "running", *, handling: bool = False) -> GroupSnapshot:
        """Return the group's snapshot."""
        return self.figures.snapshot(state, None, "10.0.0.1@spark-1", self.pauses, handling=handling)

    def queue(self, *, handling: bool = False) -> QueueSnapshot:
        """Return the only queue."""
        (found,) = self.now(handling=handling).queues
        return found


def at(committed: int | None, end: int, number: int = 0) -> QueueLag:
    """A queue with messages from 0 on."""
    lag = end - (committed or 0)
    return QueueLag("broker-a", number, committed, 0, end, lag, 2.5 if lag else 0.0)


def test_a_handler_that_always_fails_is_a_problem() -> None:
    """Executors report the outcome of each range."""
    group = Group()
    blank = group.now().topics[0]
    errors = tuple(LastError(1.7e9, "KeyError('city')", "orders", msg_id) for msg_id in ("A1", "A2"))
    failed = replace(blank, handled={**blank.handled, "retried": 5}, exceptions={"KeyError": 5}, errors=errors)
    with capture_logs() as logs:
        for _ in range(15):
            group.clock.turn(2.0)
            group.figures.count_outcomes(
                [RangeOutcome(queue=queue("orders", 0), start=0, end=5, topic_counters=(failed,))]
            )
    (problem,) = group.now().problems
    assert problem.cause == "failing_handler"
    assert "KeyError('city')" in problem.evidence
    assert group.now().rates["failed"] == pytest.approx(2.5, abs=0.2)
    assert [entry["cause"] for entry in logs if entry["event"] == "group.problem"] == ["failing_handler"]
    worked = replace(blank, handled={**blank.handled, "acked": 5})
    group.clock.turn(2.0)
    group.figures.count_outcomes([RangeOutcome(queue=queue("orders", 0), start=5, end=10, topic_counters=(worked,))])
    assert not group.now().problems


def test_counters_exist_from_the_start_and_executors_add_to_them() -> None:
    group = Group("orders", "invoices")
    assert [(one.topic, one.is_retry, one.handled["acked"]) for one in group.now().topics] == [
        ("orders", False, 0), ("invoices", False, 0), ("orders", True, 0), ("invoices", True, 0)
    ]  # fmt: skip
    blank = replace(group.now().topics[0], received=3, handled={"acked": 2, "retried": 1})
    outcome = RangeOutcome(
        queue=queue("orders", 0), start=0, end=3, topic_counters=(blank,), lost_messages=4, hook_failures={"audit": 1}
    )
    group.figures.count_outcomes([outcome, outcome])
    now = group.now()
    assert (now.topics[0].received, now.topics[0].handled["acked"], now.topics[0].handled["retried"]) == (6, 4, 2)
    assert now.hook_failures == {"audit": 2}
    assert now.batches is not None
    assert now.batches.lost == 8


def test_the_records_of_message_trace_are_counted_from_zero_if_it_is_enabled() -> None:
    group = Group()
    assert group.now().trace_records == {}
    traced = replace(group.options, trace=TraceOptions("traces", 1))
    group.figures = DriverMetrics(traced, group.clock)
    assert group.now().trace_records == {"sent": 0, "full": 0, "failed": 0}


def test_a_handlers_counts_of_other_topics_are_kept() -> None:
    """The retry topic may have messages of a topic that the group no longer subscribes to."""
    group = Group()
    group.figures.count_outcomes([RangeOutcome(queue=queue("orders", 0), start=0, end=1, topic_counters=(UNKNOWN,))])
    assert group.now().topics[-1].topic == "left"


UNKNOWN = replace(topic_snapshot("left", received=1), handler_duration=Group().now().topics[0].handler_duration)


def test_an_idle_batch_is_not_counted() -> None:
    """Its offsets are the query's positions."""
    group = Group()
    group.figures.set_queue_lags("orders", [at(5, 9)])
    group.figures.record_batch(BatchProgress(True, {"triggerExecution": 5}, {queue("orders", 0): 7}))
    batches = group.now().batches
    assert batches is not None
    assert (batches.duration.count, batches.last_end) == (0, None)
    assert group.queue().position == 7
    phases = {"triggerExecution": 500, "latestOffset": 10, "getBatch": 20, "new": 1}
    group.figures.record_batch(BatchProgress(False, phases, removed_queues=2))
    batches = group.now().batches
    assert batches is not None
    assert (batches.duration.count, batches.last_end) == (1, group.clock.wall())
    assert batches.phase_seconds["asking_offsets"] == pytest.approx(0.03)
    assert batches.retired_queues == 2


def test_late_rows_are_logged_and_counted() -> None:
    group = Group()
    with capture_logs() as logs:
        group.figures.record_batch(BatchProgress(True, late_rows=2, watermark="10:04"))
        group.figures.record_batch(BatchProgress(True, late_rows=1, watermark="10:05"))
    assert [(entry["rows"], entry["watermark"]) for entry in logs] == [(2, "10:04"), (1, "10:05")]
    batches = group.now().batches
    assert batches is not None
    assert batches.late_rows == 3


def test_a_queue_shows_the_brokers_offsets() -> None:
    group = Group()
    group.figures.set_queue_lags("orders", [at(5, 9)])
    found = group.queue()
    assert (found.committed, found.max, found.lag, found.lag_seconds, found.position) == (5, 9, 4, 2.5, 5)
    assert (found.state, group.queue(handling=True).state) == ("pulling", "handling")
    assert found.last_commit is None, "the time of the first offset's commit is unknown"
    group.figures.set_queue_lags("orders", [at(9, 9)])
    assert (group.queue().state, group.queue().last_commit) == ("waiting", group.clock.wall())
    group.figures.set_queue_lags("orders", [at(9, 9), at(None, 3, 1)])
    assert [(one.queue, one.committed) for one in group.now().queues] == [(0, 9), (1, None)]
    assert group.now().assigned == {"orders": 2}
    group.figures.set_queue_lags("orders", [])
    assert group.now().queues == ()


def test_a_state_begins_when_it_is_first_seen() -> None:
    group = Group()
    group.figures.set_queue_lags("orders", [at(9, 9)])
    began = group.queue().since
    group.clock.turn(10)
    group.figures.set_queue_lags("orders", [at(9, 10)])
    assert (group.queue().since, group.queue().state) == (group.clock.wall(), "pulling")
    assert group.clock.wall() == began + 10


def test_the_retry_topic_of_one_topic_is_shown_as_on_the_local_engine() -> None:
    """A group with several topics shows the retry topic under its own name."""
    for topics, shown in ((("orders",), "orders"), (("orders", "invoices"), RETRY)):
        group = Group(*topics)
        group.figures.set_queue_lags(RETRY, [at(0, 1)])
        assert (group.queue().topic, group.queue().is_retry) == (shown, True)
        assert RETRY not in group.now().assigned


def test_a_group_is_ready_once_it_runs_and_all_its_queues_are_known() -> None:
    group = Group("orders", "invoices")
    assert "waits for Spark" in str(group.now("starting").not_ready_reason)
    group.figures.set_queue_lags("orders", [at(0, 0)])
    group.figures.set_topic_failure("invoices", "topic invoices has no route")
    assert group.now().not_ready_reason == "group mailer waits for the queues of invoices: topic invoices has no route"
    group.figures.set_queue_lags("invoices", [])
    assert (group.now().ready, group.now().not_ready_reason) == (True, None)
    assert group.now("draining").not_ready_reason == "group mailer is draining"


def test_a_paused_group_is_not_stuck() -> None:
    group = Group()
    group.figures.set_queue_lags("orders", [at(5, 9)])
    group.pauses.pause(WHOLE_GROUP)
    group.clock.turn(1000)
    assert group.queue().state == "paused"
    assert group.queue().stall is None
    assert group.now().paused


def test_a_queue_without_progress_is_stuck_with_a_cause() -> None:
    """The time counts from the last change of its offset, or from the first waiting message."""
    group = Group()
    group.figures.set_queue_lags("orders", [at(9, 9)])
    group.clock.turn(1000)
    group.figures.set_queue_lags("orders", [at(9, 12)])
    assert group.queue().stall is None
    group.clock.turn(130)
    group.figures.set_queue_lags("orders", [at(9, 13)])
    with capture_logs() as events:
        stall = group.queue().stall
        assert stall is not None
        assert (group.queue().state, stall.cause) == ("stuck", "stalled_queue")
        assert stall.evidence == "4 messages wait, and the offset has not changed for 130 s"
        group.figures.set_queue_lags("orders", [at(10, 13)])
        assert group.queue().state == "pulling"
    assert [(event["event"], event["cause"], event["group"]) for event in events] == [
        ("queue.stalled", "stalled_queue", "mailer"), ("queue.recovered", "stalled_queue", "mailer")
    ]  # fmt: skip


def test_the_queues_of_an_unreachable_broker_are_stuck() -> None:
    """They keep their last values."""
    group = Group()
    group.figures.set_queue_lags("orders", [at(5, 9)])
    group.figures.set_topic_failure("orders", "10.0.0.9:10911: refused")
    found = group.queue()
    assert found.stall is not None
    assert (found.state, found.stall.cause, found.stall.evidence) == (
        "stuck", "broker_unreachable", "10.0.0.9:10911: refused"
    )  # fmt: skip
    assert found.lag == 4
    group.figures.set_queue_lags("orders", [at(5, 9)])
    assert group.queue().stall is None


def test_a_group_that_has_ended_owns_no_queue() -> None:
    group = Group()
    group.figures.set_queue_lags("orders", [at(5, 9)])
    for state in ("failed", "stopped"):
        assert (group.now(state).queues, group.now(state).assigned) == ((), {"orders": 0})
