"""The checkpoint that a group continues with, over an embedded broker; queries are driven as Spark drives them."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqd.errors import RmqdError
from rmqd.spark.engine import checkpoint_generations as module
from rmqd.spark.engine.checkpoint_generations import CheckpointGenerations, checkpoint_folder
from rmqd.spark.pipelines.pipeline_counts import MicroBatch
from rmqd.spark.session.spark_cluster import SparkCluster, close_clusters
from tests.spark.embedded_broker import EmbeddedBroker, queue
from tests.spark.needed import need

need("pyspark", "pyarrow")

from rmqd.spark.handlers.range_outcome import RangeOutcome  # noqa: E402
from tests.spark.local_folder import LocalFolder  # noqa: E402
from tests.spark.micro_batches import Killed  # noqa: E402
from tests.spark.stream_options import numbers  # noqa: E402
from tests.spark.test_generations import (  # noqa: E402
    GROUP,
    Driver,
    order_of,
)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write each snapshot at once, expect brokers to write to disk at once, and do not wait for unreachable brokers."""
    monkeypatch.setattr(module, "NOTE_WRITE_INTERVAL_SECONDS", 0.0)
    monkeypatch.setattr(module, "BROKER_FLUSH_DELAY_SECONDS", 0.0)
    monkeypatch.setattr(module, "BROKER_WAIT_SECONDS", 0.0)


@pytest.fixture
def folder(broker: EmbeddedBroker, tmp_path: Path) -> Path:
    """The checkpoints of a group that has read two queues with three messages each, and has ended normally."""
    broker.fill("orders", 2, 3)
    driver = Driver(broker, tmp_path / "checkpoint")
    assert (driver.generation.number, driver.generation.start_offsets) == (1, None)
    assert driver.run() == numbers(0, 0, 3) + numbers(1, 0, 3)
    driver.stop()
    assert broker.offsets(GROUP, "orders") == {0: 3, 1: 3}
    return tmp_path / "checkpoint"


def test_a_driver_that_died_before_the_commit_of_its_batch_repeats_nothing(
    broker: EmbeddedBroker, folder: Path
) -> None:
    driver = Driver(broker, folder)
    broker.send("orders", "0:3", "0:4")
    assert driver.query.poll()
    driver.save()
    assert broker.offsets(GROUP, "orders") == {0: 3, 1: 3}, "the next poll would commit it"
    after = Driver(broker, folder)
    assert after.generation.number == 1
    assert after.run() == []
    assert broker.offsets(GROUP, "orders") == {0: 5, 1: 3}


def test_an_interrupted_first_batch_is_repeated_unless_the_offset_changed(
    broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """No batch is done yet, and the checkpoint has the start offsets."""
    broker.fill("orders", 1, 3)
    broker.commit(GROUP, "orders", {0: 1})
    for committed, number, bodies in ((1, 1, ["0:1", "0:2"]), (2, 2, ["0:2"])):
        folder = tmp_path / str(committed)
        driver = Driver(broker, folder)
        with pytest.raises(Killed):
            driver.query.poll(die_before_commit=True)
        driver.save()
        broker.commit(GROUP, "orders", {0: committed})
        after = Driver(broker, folder)
        assert (after.generation.number, after.run()) == (number, bodies)
        broker.commit(GROUP, "orders", {0: 1})


def test_a_reset_forward_takes_effect(broker: EmbeddedBroker, folder: Path) -> None:
    broker.send("orders", "0:3", "0:4", "0:5")
    broker.reset(GROUP, "orders", {0: 5})
    assert Driver(broker, folder).run() == ["0:5"]


def test_a_reset_after_a_kill_is_distinguished_from_the_kill(broker: EmbeddedBroker, folder: Path) -> None:
    """The brokers' offsets were recorded while the driver ran."""
    driver = Driver(broker, folder)
    broker.send("orders", "0:3", "0:4", "0:5")
    driver.run()
    assert driver.generations.store_moved_offsets() == {}
    broker.commit(GROUP, "orders", {0: 4})
    assert Driver(broker, folder).generation.start_offsets == {queue("orders", 0): 4, queue("orders", 1): 3}


def test_a_pending_reset_to_any_offset_takes_effect_after_a_kill(broker: EmbeddedBroker, folder: Path) -> None:
    """An offset between the recorded one and the checkpoint would look like a commit of the driver."""
    driver = Driver(broker, folder)
    broker.send("orders", "0:3", "0:4", "0:5")
    driver.run()
    broker.reset(GROUP, "orders", {0: 4})
    assert Driver(broker, folder).run() == ["0:4", "0:5"]


def test_a_stop_commits_the_last_batch(broker: EmbeddedBroker, folder: Path) -> None:
    """The query could not commit it any more. A later reset is distinguished from a crash."""
    driver = Driver(broker, folder)
    broker.send("orders", "0:3", "0:4")
    assert driver.query.poll()
    driver.stop()
    assert broker.offsets(GROUP, "orders") == {0: 5, 1: 3}
    broker.commit(GROUP, "orders", {0: 4})
    assert Driver(broker, folder).run() == ["0:4"]


def test_a_generation_without_a_batch_is_replaced_if_the_offset_changed(broker: EmbeddedBroker, folder: Path) -> None:
    broker.commit(GROUP, "orders", {0: 1})
    assert Driver(broker, folder).generation.number == 2
    assert Driver(broker, folder).generation.number == 2
    broker.commit(GROUP, "orders", {0: 2})
    driver = Driver(broker, folder)
    assert (driver.generation.number, driver.run()) == (3, ["0:2"])


def test_a_recorded_reset_is_dropped_if_the_group_ran_elsewhere_since(broker: EmbeddedBroker, folder: Path) -> None:
    """The other engine started at the reset offset."""
    driver = Driver(broker, folder)
    driver.run()
    broker.send("orders", "0:3", "0:4", "0:5")
    broker.commit(GROUP, "orders", {0: 1})
    assert driver.generations.store_moved_offsets() == {queue("orders", 0): 1}
    driver.run()  # the batch in flight, which makes the last commit so far
    assert broker.offsets(GROUP, "orders") == {0: 6, 1: 3}
    driver.stop()
    assert broker.offsets(GROUP, "orders") == {0: 1, 1: 3}
    broker.commit(GROUP, "orders", {0: 2})
    assert Driver(broker, folder).run() == numbers(0, 2, 6)


def test_the_offsets_of_a_later_member_are_kept(broker: EmbeddedBroker, folder: Path) -> None:
    """A member that was cut off may run, so that both engines have the group for a while."""
    driver = Driver(broker, folder)
    driver.run()
    broker.send("orders", *(f"0:{number}" for number in range(3, 8)))
    broker.commit(GROUP, "orders", {0: 5})
    assert driver.generations.store_moved_offsets() == {queue("orders", 0): 5}
    broker.commit(GROUP, "orders", {0: 6})
    driver.stop()
    assert broker.offsets(GROUP, "orders") == {0: 6, 1: 3}
    broker.commit(GROUP, "orders", {0: 7})
    assert Driver(broker, folder).run() == ["0:7"]


def test_a_reset_that_an_executor_found_survives_a_crash_in_that_batch(broker: EmbeddedBroker, folder: Path) -> None:
    driver = Driver(broker, folder)
    broker.send("orders", "0:3", "0:4")
    with pytest.raises(Killed):
        driver.query.poll(die_before_commit=True)
    met = RangeOutcome(queue=queue("orders", 0), start=3, end=5, reset_to=1)
    assert driver.generations.store_resets_of([RangeOutcome(queue=queue("orders", 1), start=3, end=3), met])
    assert driver.generations.store_moved_offsets() == {queue("orders", 0): 1}
    driver.save()
    assert Driver(broker, folder).run() == numbers(0, 1, 5)


def test_outcomes_without_a_reset_change_nothing(broker: EmbeddedBroker, folder: Path) -> None:
    driver = Driver(broker, folder)
    assert not driver.generations.store_resets_of([RangeOutcome(queue=queue("orders", 0), start=3, end=5)])
    assert driver.generations.store_moved_offsets() == {}


def test_a_reset_is_distinguished_from_a_lost_commit(
    broker: EmbeddedBroker, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker with a pending reset takes no commits. Soon after the start nothing else distinguishes the two."""
    monkeypatch.setattr(module, "BROKER_FLUSH_DELAY_SECONDS", 10.0)
    driver = Driver(broker, folder)
    broker.send("orders", "0:3", "0:4", "0:5")
    driver.run()
    assert driver.generations.store_moved_offsets() == {}
    broker.reset(GROUP, "orders", {0: 4})
    assert driver.generations.store_moved_offsets() == {}, "a commit may be in flight"
    assert driver.generations.store_moved_offsets() == {queue("orders", 0): 4}
    driver.stop()
    assert Driver(broker, folder).run() == ["0:4", "0:5"]


def test_a_broker_that_lost_a_commit_receives_it_again_while_the_query_runs(
    broker: EmbeddedBroker, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The query itself commits nothing if its last commit is lost."""
    monkeypatch.setattr(module, "BROKER_FLUSH_DELAY_SECONDS", 10.0)
    driver = Driver(broker, folder)
    broker.send("orders", *(f"0:{number}" for number in range(3, 9)))
    driver.run()
    broker.commit(GROUP, "orders", {0: 5})
    assert driver.generations.store_moved_offsets() == {}
    broker.send("orders", "0:9")
    assert driver.query.poll()
    driver.save()
    assert driver.generations.store_moved_offsets() == {}
    assert broker.offsets(GROUP, "orders") == {0: 10, 1: 3}


def test_a_broker_killed_right_after_the_start_of_a_generation_moves_no_offset(
    broker: EmbeddedBroker, folder: Path
) -> None:
    """It forgets the last commit of the other engine, but the checkpoint has it."""
    broker.send("orders", "0:3", "0:4", "0:5")
    broker.commit(GROUP, "orders", {0: 5})
    assert Driver(broker, folder).generation.start_offsets == {queue("orders", 0): 5, queue("orders", 1): 3}
    broker.commit(GROUP, "orders", {0: 4})
    driver = Driver(broker, folder)
    assert (driver.generation.number, driver.run()) == (2, ["0:5"])


def test_a_generation_that_was_not_committed_takes_effect(
    broker: EmbeddedBroker, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver or the brokers failed after the generation was recorded, and before the brokers had its offsets."""
    broker.reset(GROUP, "orders", {0: 1})

    def fail(*_: object) -> None:
        raise RmqdError("the brokers are away")

    with monkeypatch.context() as patched:
        patched.setattr(SparkCluster, "commit", fail)
        with pytest.raises(RmqdError, match="are away"):
            Driver(broker, folder)
    broker.commit(GROUP, "orders", {0: 3})  # like a commit in flight of the previous query
    driver = Driver(broker, folder)
    assert driver.generation.number == 2
    assert driver.generation.start_offsets == {queue("orders", 0): 1, queue("orders", 1): 3}
    assert broker.offsets(GROUP, "orders") == {0: 1, 1: 3}


def test_a_missing_queue_is_not_in_a_new_generation(broker: EmbeddedBroker, folder: Path) -> None:
    """A query cannot start at a queue that does not exist."""
    broker.create_topic("orders", 1)
    broker.commit(GROUP, "orders", {0: 1})
    assert Driver(broker, folder).generation.start_offsets == {queue("orders", 0): 1}


def test_a_missing_topic_does_not_affect_other_topics(broker: EmbeddedBroker, tmp_path: Path) -> None:
    """A reset of another topic is found, and its offsets are committed at the end."""
    broker.fill("orders", 1, 3)
    broker.fill("bills", 1, 3)
    driver = Driver(broker, tmp_path / "checkpoint", subscribe="orders,bills")
    driver.run()
    driver.generations.store_moved_offsets()
    broker.delete_topic("bills")
    close_clusters()  # forgets its route
    broker.commit(GROUP, "orders", {0: 1})
    assert driver.generations.store_moved_offsets() == {queue("orders", 0): 1}

    again = Driver(broker, tmp_path / "checkpoint", subscribe="orders,bills")
    assert (again.generation.number, again.generation.start_offsets) == (2, {queue("orders", 0): 1})
    again.stop()
    assert broker.offsets(GROUP, "orders") == {0: 1}


def leave_a_written_batch(broker: EmbeddedBroker, folder: Path) -> CheckpointGenerations:
    """A driver ended after its sink wrote a batch, before Spark recorded it. The batch moves each topic from 3 to 4."""
    for topic in ("orders", "bills"):
        broker.fill(topic, 1, 3)
    driver = Driver(broker, folder, subscribe="orders,bills")
    driver.run()
    driver.generations.store_moved_offsets()
    for topic in ("orders", "bills"):
        broker.send(topic, "0:3")
    with pytest.raises(Killed):
        driver.query.poll(die_before_commit=True)
    driver.save()
    Path(driver.generation.path, "metadata").write_text('{"id": "a-query"}')
    return of_two_topics(broker, folder)


def of_two_topics(broker: EmbeddedBroker, folder: Path) -> CheckpointGenerations:
    """The generations of a group whose sink has batch 1."""

    def is_written(batch: MicroBatch) -> bool:
        plan = b'"bills": {"broker-a": {"0": 4}}'
        return (batch.query_id, batch.number, plan in batch.offset_log) == ("a-query", 1, True)

    order = order_of(broker, subscriptions={"orders": "*", "bills": "*"})
    return CheckpointGenerations(order, LocalFolder(folder), is_written)


def test_a_batch_in_the_sink_is_done(broker: EmbeddedBroker, tmp_path: Path) -> None:
    """Its driver died before Spark recorded it. The rows of a topic without a reset are not returned again."""
    generations = leave_a_written_batch(broker, tmp_path / "checkpoint")
    broker.commit(GROUP, "orders", {0: 1})
    generation = generations.prepare_generation()
    assert (generation.number, generation.start_offsets) == (2, {queue("orders", 0): 1, queue("bills", 0): 4})


def test_a_batch_in_the_sink_is_done_for_the_other_engine(broker: EmbeddedBroker, tmp_path: Path) -> None:
    """A drain was cut off after the batch. The batch is committed, and the other engine's work is not repeated."""
    generations = leave_a_written_batch(broker, tmp_path / "checkpoint")
    generations.prepare_generation()
    generations.commit_end_offsets()
    assert (broker.offsets(GROUP, "orders"), broker.offsets(GROUP, "bills")) == ({0: 4}, {0: 4})
    broker.send("orders", "0:4", "0:5")
    broker.commit(GROUP, "orders", {0: 6})
    generation = of_two_topics(broker, tmp_path / "checkpoint").prepare_generation()
    assert (generation.number, generation.start_offsets) == (2, {queue("orders", 0): 6, queue("bills", 0): 4})


def test_a_broker_that_does_not_respond_has_not_flushed_its_offsets(
    broker: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was killed right after the last commit, and has lost it. That is not a reset."""
    monkeypatch.setattr(module, "BROKER_FLUSH_DELAY_SECONDS", 3600.0)
    broker.fill("orders", 1, 3)
    driver = Driver(broker, tmp_path / "checkpoint")
    driver.run()
    assert driver.generations.store_moved_offsets() == {}
    broker.stop()
    monkeypatch.setattr(module, "BROKER_FLUSH_DELAY_SECONDS", 0.001)
    with pytest.raises(RmqdError):
        driver.generations.store_moved_offsets()
    broker.start()
    broker.commit(GROUP, "orders", {0: 0})
    close_clusters()  # a client pauses after a failed connect
    assert [driver.generations.store_moved_offsets() for _ in range(3)] == [{}, {}, {}]
    assert broker.offsets(GROUP, "orders") == {0: 3}


def test_only_the_last_note_is_kept(broker: EmbeddedBroker, folder: Path) -> None:
    driver = Driver(broker, folder)
    for number in range(3, 6):
        broker.send("orders", f"0:{number}")
        driver.run()
        driver.generations.store_moved_offsets()
    assert len(list((folder / "generation-000001").glob("note-*"))) == 1


class CountingFolder(LocalFolder):
    """Counts the accesses to a checkpoint, because object stores charge for them."""

    asked = 0

    def names(self, path: str = "") -> list[str]:
        self.asked += "/checkpoint" in path
        return super().names(path)

    def read(self, path: str) -> bytes:
        self.asked += "/checkpoint" in path
        return super().read(path)


def test_an_idle_group_does_not_access_its_checkpoint(broker: EmbeddedBroker, folder: Path) -> None:
    """It reads the checkpoint again when brokers report a change."""
    counting = CountingFolder(folder)
    driver = Driver(broker, folder)
    generations = CheckpointGenerations(order_of(broker), counting)
    generations.prepare_generation()
    driver.query.poll()
    assert generations.store_moved_offsets() == {}
    before = counting.asked
    for _ in range(9):
        assert generations.store_moved_offsets() == {}
    assert counting.asked == before
    broker.commit(GROUP, "orders", {0: 1})
    assert generations.store_moved_offsets() == {queue("orders", 0): 1}


def test_old_generations_are_deleted(broker: EmbeddedBroker, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group that fails repeatedly at a corrupt message starts a new one each time."""
    monkeypatch.setattr(module, "MAX_KEPT_GENERATIONS", 3)
    for target in range(4):
        broker.commit(GROUP, "orders", {0: target})
        driver = Driver(broker, folder)
    assert driver.generation.number == 5
    assert sorted(path.name for path in folder.iterdir()) == [f"generation-00000{number}" for number in (3, 4, 5)]


def test_a_damaged_note_is_reported_with_its_path(broker: EmbeddedBroker, folder: Path) -> None:
    (folder / "generation-000001" / "note-999999.json").write_text("{")
    with pytest.raises(RmqdError, match=r"generation-000001/note-999999.json: not a valid generation file"):
        Driver(broker, folder)


def test_checkpoints_are_in_the_state_dir_by_default(broker: EmbeddedBroker) -> None:
    assert checkpoint_folder(order_of(broker)) == "/var/lib/rmqd/spark/reports"
    assert checkpoint_folder(order_of(broker, spark={"checkpoint": "s3a://here/it"})) == "s3a://here/it"
