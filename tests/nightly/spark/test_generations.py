"""Which checkpoint a group goes on from, over an embedded broker; queries are driven as Spark drives them."""

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
    """Each look is noted at once, brokers write to disk at once, and one that is away is not waited for."""
    monkeypatch.setattr(module, "NOTE_WRITE_INTERVAL_SECONDS", 0.0)
    monkeypatch.setattr(module, "BROKER_FLUSH_DELAY_SECONDS", 0.0)
    monkeypatch.setattr(module, "BROKER_WAIT_SECONDS", 0.0)


@pytest.fixture
def folder(broker: EmbeddedBroker, tmp_path: Path) -> Path:
    """Of the checkpoints of a group that has read two queues with three messages each, and has ended in order."""
    broker.fill("orders", 2, 3)
    driver = Driver(broker, tmp_path / "checkpoint")
    assert (driver.generation.number, driver.generation.start_offsets) == (1, None)
    assert driver.run() == numbers(0, 0, 3) + numbers(1, 0, 3)
    driver.stop()
    assert broker.offsets(GROUP, "orders") == {0: 3, 1: 3}
    return tmp_path / "checkpoint"


def test_a_driver_that_died_before_the_broker_heard_of_its_batch_repeats_nothing(
    broker: EmbeddedBroker, folder: Path
) -> None:
    driver = Driver(broker, folder)
    broker.send("orders", "0:3", "0:4")
    assert driver.query.poll()
    driver.save()
    assert broker.offsets(GROUP, "orders") == {0: 3, 1: 3}, "the next poll would tell it"
    after = Driver(broker, folder)
    assert after.generation.number == 1
    assert after.run() == []
    assert broker.offsets(GROUP, "orders") == {0: 5, 1: 3}


def test_a_first_batch_that_was_under_way_is_repeated_unless_the_group_moved_on(
    broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """Nothing is done by then, and the checkpoint has the start."""
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


def test_a_reset_forward_holds(broker: EmbeddedBroker, folder: Path) -> None:
    broker.send("orders", "0:3", "0:4", "0:5")
    broker.reset(GROUP, "orders", {0: 5})
    assert Driver(broker, folder).run() == ["0:5"]


def test_a_reset_after_a_kill_is_told_from_the_kill(broker: EmbeddedBroker, folder: Path) -> None:
    """What brokers held was noted while it ran."""
    driver = Driver(broker, folder)
    broker.send("orders", "0:3", "0:4", "0:5")
    driver.run()
    assert driver.generations.find_moved_offsets() == {}
    broker.commit(GROUP, "orders", {0: 4})
    assert Driver(broker, folder).generation.start_offsets == {queue("orders", 0): 4, queue("orders", 1): 3}


def test_a_reset_that_a_broker_has_yet_to_tell_holds_after_a_kill_wherever_it_leads(
    broker: EmbeddedBroker, folder: Path
) -> None:
    """Between what was noted and the checkpoint it would look like a commit of the driver's own."""
    driver = Driver(broker, folder)
    broker.send("orders", "0:3", "0:4", "0:5")
    driver.run()
    broker.reset(GROUP, "orders", {0: 4})
    assert Driver(broker, folder).run() == ["0:4", "0:5"]


def test_the_end_tells_the_brokers_of_the_last_batch(broker: EmbeddedBroker, folder: Path) -> None:
    """The query did not come to it any more; and what comes next is told from a crash."""
    driver = Driver(broker, folder)
    broker.send("orders", "0:3", "0:4")
    assert driver.query.poll()
    driver.stop()
    assert broker.offsets(GROUP, "orders") == {0: 5, 1: 3}
    broker.commit(GROUP, "orders", {0: 4})
    assert Driver(broker, folder).run() == ["0:4"]


def test_a_generation_that_has_done_nothing_yet_is_left_where_the_group_moved_on(
    broker: EmbeddedBroker, folder: Path
) -> None:
    broker.commit(GROUP, "orders", {0: 1})
    assert Driver(broker, folder).generation.number == 2
    assert Driver(broker, folder).generation.number == 2
    broker.commit(GROUP, "orders", {0: 2})
    driver = Driver(broker, folder)
    assert (driver.generation.number, driver.run()) == (3, ["0:2"])


def test_what_is_noted_is_forgotten_where_the_group_ran_elsewhere_since(broker: EmbeddedBroker, folder: Path) -> None:
    """It began there where it had been sent to."""
    driver = Driver(broker, folder)
    driver.run()
    broker.send("orders", "0:3", "0:4", "0:5")
    broker.commit(GROUP, "orders", {0: 1})
    assert driver.generations.find_moved_offsets() == {queue("orders", 0): 1}
    driver.run()  # the batch under way, whose commit is the last word so far
    assert broker.offsets(GROUP, "orders") == {0: 6, 1: 3}
    driver.stop()
    assert broker.offsets(GROUP, "orders") == {0: 1, 1: 3}
    broker.commit(GROUP, "orders", {0: 2})
    assert Driver(broker, folder).run() == numbers(0, 2, 6)


def test_a_member_that_has_come_meanwhile_is_left_in_peace(broker: EmbeddedBroker, folder: Path) -> None:
    """As one that was cut off, and with which both engines have had the group for a time."""
    driver = Driver(broker, folder)
    driver.run()
    broker.send("orders", *(f"0:{number}" for number in range(3, 8)))
    broker.commit(GROUP, "orders", {0: 5})
    assert driver.generations.find_moved_offsets() == {queue("orders", 0): 5}
    broker.commit(GROUP, "orders", {0: 6})
    driver.stop()
    assert broker.offsets(GROUP, "orders") == {0: 6, 1: 3}
    broker.commit(GROUP, "orders", {0: 7})
    assert Driver(broker, folder).run() == ["0:7"]


def test_a_reset_that_an_executor_met_survives_a_crash_in_that_batch(broker: EmbeddedBroker, folder: Path) -> None:
    driver = Driver(broker, folder)
    broker.send("orders", "0:3", "0:4")
    with pytest.raises(Killed):
        driver.query.poll(die_before_commit=True)
    met = RangeOutcome(queue=queue("orders", 0), start=3, end=5, reset_to=1)
    assert driver.generations.store_resets_of([RangeOutcome(queue=queue("orders", 1), start=3, end=3), met])
    assert driver.generations.find_moved_offsets() == {queue("orders", 0): 1}
    driver.save()
    assert Driver(broker, folder).run() == numbers(0, 1, 5)


def test_outcomes_without_a_reset_change_nothing(broker: EmbeddedBroker, folder: Path) -> None:
    driver = Driver(broker, folder)
    assert not driver.generations.store_resets_of([RangeOutcome(queue=queue("orders", 0), start=3, end=5)])
    assert driver.generations.find_moved_offsets() == {}


def test_a_reset_is_told_from_such_a_loss(
    broker: EmbeddedBroker, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that has one in store takes no commits; soon after the start nothing else tells the two apart."""
    monkeypatch.setattr(module, "BROKER_FLUSH_DELAY_SECONDS", 10.0)
    driver = Driver(broker, folder)
    broker.send("orders", "0:3", "0:4", "0:5")
    driver.run()
    assert driver.generations.find_moved_offsets() == {}
    broker.reset(GROUP, "orders", {0: 4})
    assert driver.generations.find_moved_offsets() == {}, "a commit may be on its way"
    assert driver.generations.find_moved_offsets() == {queue("orders", 0): 4}
    driver.stop()
    assert Driver(broker, folder).run() == ["0:4", "0:5"]


def test_such_a_broker_is_told_while_the_query_goes_on(
    broker: EmbeddedBroker, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The query itself commits nothing where its last commit is gone."""
    monkeypatch.setattr(module, "BROKER_FLUSH_DELAY_SECONDS", 10.0)
    driver = Driver(broker, folder)
    broker.send("orders", *(f"0:{number}" for number in range(3, 9)))
    driver.run()
    broker.commit(GROUP, "orders", {0: 5})
    assert driver.generations.find_moved_offsets() == {}
    broker.send("orders", "0:9")
    assert driver.query.poll()
    driver.save()
    assert driver.generations.find_moved_offsets() == {}
    assert broker.offsets(GROUP, "orders") == {0: 10, 1: 3}


def test_a_broker_that_was_killed_right_after_a_generation_began_moves_nobody(
    broker: EmbeddedBroker, folder: Path
) -> None:
    """What the other engine committed last is forgotten there; the checkpoint has it."""
    broker.send("orders", "0:3", "0:4", "0:5")
    broker.commit(GROUP, "orders", {0: 5})
    assert Driver(broker, folder).generation.start_offsets == {queue("orders", 0): 5, queue("orders", 1): 3}
    broker.commit(GROUP, "orders", {0: 4})
    driver = Driver(broker, folder)
    assert (driver.generation.number, driver.run()) == (2, ["0:5"])


def test_a_generation_that_the_brokers_have_not_heard_of_holds(
    broker: EmbeddedBroker, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver ended, or the brokers did, between the note of it and their commit."""
    broker.reset(GROUP, "orders", {0: 1})

    def fail(*_: object) -> None:
        raise RmqdError("the brokers are away")

    with monkeypatch.context() as patched:
        patched.setattr(SparkCluster, "commit", fail)
        with pytest.raises(RmqdError, match="are away"):
            Driver(broker, folder)
    broker.commit(GROUP, "orders", {0: 3})  # as by a commit of the former query that was still on its way
    driver = Driver(broker, folder)
    assert driver.generation.number == 2
    assert driver.generation.start_offsets == {queue("orders", 0): 1, queue("orders", 1): 3}
    assert broker.offsets(GROUP, "orders") == {0: 1, 1: 3}


def test_a_queue_that_is_gone_is_in_no_new_generation(broker: EmbeddedBroker, folder: Path) -> None:
    """A query cannot begin in a queue that is not there."""
    broker.create_topic("orders", 1)
    broker.commit(GROUP, "orders", {0: 1})
    assert Driver(broker, folder).generation.start_offsets == {queue("orders", 0): 1}


def test_a_topic_that_is_gone_keeps_no_other_one_from_being_looked_after(
    broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """A reset is seen, and at the end the brokers know where the group is."""
    broker.fill("orders", 1, 3)
    broker.fill("bills", 1, 3)
    driver = Driver(broker, tmp_path / "checkpoint", subscribe="orders,bills")
    driver.run()
    driver.generations.find_moved_offsets()
    broker.delete_topic("bills")
    close_clusters()  # so that its route is not known from before
    broker.commit(GROUP, "orders", {0: 1})
    assert driver.generations.find_moved_offsets() == {queue("orders", 0): 1}

    again = Driver(broker, tmp_path / "checkpoint", subscribe="orders,bills")
    assert (again.generation.number, again.generation.start_offsets) == (2, {queue("orders", 0): 1})
    again.stop()
    assert broker.offsets(GROUP, "orders") == {0: 1}


def leave_a_written_batch(broker: EmbeddedBroker, folder: Path) -> CheckpointGenerations:
    """Of a driver that ended behind its sink, and before Spark noted the batch; each topic is at 3, with it at 4."""
    for topic in ("orders", "bills"):
        broker.fill(topic, 1, 3)
    driver = Driver(broker, folder, subscribe="orders,bills")
    driver.run()
    driver.generations.find_moved_offsets()
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


def test_a_batch_that_its_sink_has_is_done(broker: EmbeddedBroker, tmp_path: Path) -> None:
    """Though its driver died before Spark noted it: in a topic that nobody reset, its rows are not given again."""
    generations = leave_a_written_batch(broker, tmp_path / "checkpoint")
    broker.commit(GROUP, "orders", {0: 1})
    generation = generations.current()
    assert (generation.number, generation.start_offsets) == (2, {queue("orders", 0): 1, queue("bills", 0): 4})


def test_a_batch_that_its_sink_has_is_done_for_the_other_engine(broker: EmbeddedBroker, tmp_path: Path) -> None:
    """A drain was cut behind it: the brokers are told, and what the other engine does is not done again here."""
    generations = leave_a_written_batch(broker, tmp_path / "checkpoint")
    generations.current()
    generations.commit_end_offsets()
    assert (broker.offsets(GROUP, "orders"), broker.offsets(GROUP, "bills")) == ({0: 4}, {0: 4})
    broker.send("orders", "0:4", "0:5")
    broker.commit(GROUP, "orders", {0: 6})
    generation = of_two_topics(broker, tmp_path / "checkpoint").current()
    assert (generation.number, generation.start_offsets) == (2, {queue("orders", 0): 6, queue("bills", 0): 4})


def test_a_broker_that_does_not_answer_is_not_known_to_hold_anything_by_that(
    broker: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was killed right after the last commit, and forgets it; that is nobody's reset."""
    monkeypatch.setattr(module, "BROKER_FLUSH_DELAY_SECONDS", 3600.0)
    broker.fill("orders", 1, 3)
    driver = Driver(broker, tmp_path / "checkpoint")
    driver.run()
    assert driver.generations.find_moved_offsets() == {}
    broker.stop()
    monkeypatch.setattr(module, "BROKER_FLUSH_DELAY_SECONDS", 0.001)
    with pytest.raises(RmqdError):
        driver.generations.find_moved_offsets()
    broker.start()
    broker.commit(GROUP, "orders", {0: 0})
    close_clusters()  # one that has just failed to connect leaves the broker alone for a moment
    assert [driver.generations.find_moved_offsets() for _ in range(3)] == [{}, {}, {}]
    assert broker.offsets(GROUP, "orders") == {0: 3}


def test_notes_do_not_pile_up(broker: EmbeddedBroker, folder: Path) -> None:
    driver = Driver(broker, folder)
    for number in range(3, 6):
        broker.send("orders", f"0:{number}")
        driver.run()
        driver.generations.find_moved_offsets()
    assert len(list((folder / "generation-000001").glob("note-*"))) == 1


class CountingFolder(LocalFolder):
    """Counts what is asked of a checkpoint, which an object store charges for."""

    asked = 0

    def names(self, path: str = "") -> list[str]:
        self.asked += "/checkpoint" in path
        return super().names(path)

    def read(self, path: str) -> bytes:
        self.asked += "/checkpoint" in path
        return super().read(path)


def test_a_group_that_idles_leaves_its_checkpoint_alone(broker: EmbeddedBroker, folder: Path) -> None:
    """Until brokers show that something has happened."""
    counting = CountingFolder(folder)
    driver = Driver(broker, folder)
    generations = CheckpointGenerations(order_of(broker), counting)
    generations.current()
    driver.query.poll()
    assert generations.find_moved_offsets() == {}
    before = counting.asked
    for _ in range(9):
        assert generations.find_moved_offsets() == {}
    assert counting.asked == before
    broker.commit(GROUP, "orders", {0: 1})
    assert generations.find_moved_offsets() == {queue("orders", 0): 1}


def test_old_generations_are_deleted(broker: EmbeddedBroker, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group that fails again and again at a corrupt message begins one each time."""
    monkeypatch.setattr(module, "MAX_KEPT_GENERATIONS", 3)
    for target in range(4):
        broker.commit(GROUP, "orders", {0: target})
        driver = Driver(broker, folder)
    assert driver.generation.number == 5
    assert sorted(path.name for path in folder.iterdir()) == [f"generation-00000{number}" for number in (3, 4, 5)]


def test_a_note_that_is_damaged_is_told_with_its_place(broker: EmbeddedBroker, folder: Path) -> None:
    (folder / "generation-000001" / "note-999999.json").write_text("{")
    with pytest.raises(RmqdError, match=r"generation-000001/note-999999.json: not a valid generation file"):
        Driver(broker, folder)


def test_checkpoints_are_in_the_state_dir_unless_the_group_says_otherwise(broker: EmbeddedBroker) -> None:
    assert checkpoint_folder(order_of(broker)) == "/var/lib/rmqd/spark/reports"
    assert checkpoint_folder(order_of(broker, spark={"checkpoint": "s3a://here/it"})) == "s3a://here/it"
