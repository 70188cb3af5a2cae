"""The checkpoint that a group continues from, over an embedded broker; queries are driven as Spark drives them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rmqd.config.model.root_model import RootConfig
from rmqd.errors import RmqdError
from rmqd.spark.session.group_spec import GroupSpec
from rmqd.spark.source.source_offsets import SourceOffsets, offsets_tree
from rmqd.wire.message_queue import MessageQueue
from tests.spark.embedded_broker import EmbeddedBroker, queue
from tests.spark.needed import need

need("pyspark", "pyarrow")

from rmqd.spark.engine import checkpoint_generations as module  # noqa: E402
from rmqd.spark.engine.checkpoint_generations import (  # noqa: E402
    CheckpointGeneration,
    CheckpointGenerations,
    offsets_moved_by_others,
)
from tests.spark.local_folder import LocalFolder, save  # noqa: E402
from tests.spark.micro_batches import Checkpoint, Killed, Query  # noqa: E402
from tests.spark.stream_options import grouped, numbers  # noqa: E402

GROUP = "reports"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Notes are written at once, brokers count as flushed at once, and the driver waits for no broker."""
    monkeypatch.setattr(module, "NOTE_WRITE_INTERVAL_SECONDS", 0.0)
    monkeypatch.setattr(module, "BROKER_FLUSH_DELAY_SECONDS", 0.0)
    monkeypatch.setattr(module, "BROKER_WAIT_SECONDS", 0.0)


class Driver:
    """One run of a group's driver: a query and the generation that it continues."""

    def __init__(self, broker: EmbeddedBroker, folder: Path, **more: str) -> None:
        self._broker = broker
        topics = dict.fromkeys(more.get("subscribe", "orders").split(","), "*")
        self.generations = CheckpointGenerations(order_of(broker, subscriptions=topics), LocalFolder(folder))
        self.generation = self.generations.prepare_generation()
        self._checkpoint = checkpoint_of(self.generation)
        if self.generation.start_offsets is not None:
            more |= {
                "startingOffsets": json.dumps(offsets_tree(self.generation.start_offsets)),
                "commitOffsets": "true",
            }
        self.query = Query(self._checkpoint, {**grouped(broker), **more})

    def run(self) -> list[str]:
        """Run until the query is idle. Return the bodies that it read."""
        before = len(self.query.rows)
        self.query.run_until_idle()
        self.save()
        return [body for rows in self.query.rows[before:] for body in rows]

    def save(self) -> None:
        """Write the query's logs as Spark would."""
        save(self._checkpoint, self.generation.path)

    def stop(self) -> None:
        self.save()
        self.generations.commit_end_offsets()


def order_of(broker: EmbeddedBroker, **values: Any) -> GroupSpec:
    group = {"engine": "spark", "subscriptions": {"orders": "*"}, "handler": {"plugin": "noop"}, **values}
    return GroupSpec(GROUP, RootConfig.model_validate({"nameserver": broker.nameserver, "groups": {GROUP: group}}))


def checkpoint_of(generation: CheckpointGeneration) -> Checkpoint:
    """Read a generation's checkpoint as Spark does."""
    folder = Path(generation.path)
    offsets = [folder / "offsets" / str(batch) for batch in range(len(list(folder.glob("offsets/*"))))]
    return Checkpoint([file.read_text().splitlines()[2] for file in offsets], len(list(folder.glob("commits/*"))))


def note_of(generation: CheckpointGeneration) -> str:
    (note,) = Path(generation.path).parent.glob("note-*.json")
    return note.read_text()


@pytest.fixture
def folder(broker: EmbeddedBroker, tmp_path: Path) -> Path:
    """The checkpoints of a group that has read two queues with three messages each, and has ended gracefully."""
    broker.fill("orders", 2, 3)
    driver = Driver(broker, tmp_path / "checkpoint")
    assert (driver.generation.number, driver.generation.start_offsets) == (1, None)
    assert driver.run() == numbers(0, 0, 3) + numbers(1, 0, 3)
    driver.stop()
    assert broker.offsets(GROUP, "orders") == {0: 3, 1: 3}
    return tmp_path / "checkpoint"


def test_the_same_generation_continues_if_the_group_was_not_moved(broker: EmbeddedBroker, folder: Path) -> None:
    broker.send("orders", "0:3")
    driver = Driver(broker, folder)
    assert driver.generation.number == 1
    assert driver.run() == ["0:3"]


def test_a_group_consumed_elsewhere_continues_at_the_brokers_offsets(broker: EmbeddedBroker, folder: Path) -> None:
    broker.send("orders", "0:3", "0:4")
    broker.commit(GROUP, "orders", {0: 4})
    driver = Driver(broker, folder)
    assert driver.generation.number == 2
    assert driver.generation.start_offsets == {queue("orders", 0): 4, queue("orders", 1): 3}
    assert "was consumed elsewhere" in note_of(driver.generation)
    assert driver.run() == ["0:4"]
    assert (folder / "generation-000001" / "checkpoint" / "commits" / "0").exists()
    driver.stop()
    assert Driver(broker, folder).generation.number == 2


def test_the_offsets_of_a_stream_that_a_pipeline_joins_are_not_the_groups(broker: EmbeddedBroker, folder: Path) -> None:
    """Spark writes a line for each source. The other stream may be first."""
    other = json.dumps(SourceOffsets({queue("refunds", 0): 9}).to_json())
    for file in folder.glob("*/checkpoint/offsets/*"):
        version, session, own = file.read_text().splitlines()
        file.write_text("\n".join([version, session, other, own]))
    broker.send("orders", "0:3", "0:4")
    broker.commit(GROUP, "orders", {0: 4})
    made = CheckpointGenerations(order_of(broker), LocalFolder(folder)).prepare_generation()
    assert made.start_offsets == {queue("orders", 0): 4, queue("orders", 1): 3}


def test_a_batch_in_flight_at_a_crash_is_repeated(broker: EmbeddedBroker, folder: Path) -> None:
    driver = Driver(broker, folder)
    broker.send("orders", "0:3", "0:4")
    with pytest.raises(Killed):
        driver.query.poll(die_before_commit=True)
    driver.save()
    broker.send("orders", "0:5")
    after = Driver(broker, folder)
    assert after.generation.number == 1
    assert after.run() == ["0:3", "0:4", "0:5"]


@pytest.mark.parametrize("target", [0, 1], ids=["to its beginning", "in between"])
def test_a_reset_while_the_driver_is_down_is_applied(broker: EmbeddedBroker, folder: Path, target: int) -> None:
    """The target may be an offset that the query once committed itself."""
    broker.commit(GROUP, "orders", {0: target})
    driver = Driver(broker, folder)
    assert driver.generation.start_offsets == {queue("orders", 0): target, queue("orders", 1): 3}
    assert "was reset" in note_of(driver.generation)
    assert driver.run() == numbers(0, target, 3)


def test_a_pending_reset_is_applied(broker: EmbeddedBroker, folder: Path) -> None:
    """It is no longer pending afterwards, so it does not affect later queries."""
    broker.reset(GROUP, "orders", {1: 1})
    driver = Driver(broker, folder)
    assert driver.generation.start_offsets == {queue("orders", 0): 3, queue("orders", 1): 1}
    assert broker.pending_reset(GROUP, "orders", 1) is None
    assert broker.offsets(GROUP, "orders") == {0: 3, 1: 1}
    assert driver.run() == numbers(1, 1, 3)
    driver.stop()
    assert Driver(broker, folder).generation.number == 2


def test_the_end_does_not_overwrite_a_reset(broker: EmbeddedBroker, folder: Path) -> None:
    """The driver had not checked for the reset before it ended."""
    driver = Driver(broker, folder)
    driver.run()
    broker.commit(GROUP, "orders", {0: 1})
    driver.stop()
    assert broker.offsets(GROUP, "orders") == {0: 1, 1: 3}
    assert Driver(broker, folder).run() == numbers(0, 1, 3)


def test_a_reset_of_an_idle_queue_is_seen(broker: EmbeddedBroker, folder: Path) -> None:
    """Executors do not pull an idle queue, so none of them finds the reset."""
    driver = Driver(broker, folder)
    broker.send("orders", "0:3")
    driver.run()
    assert driver.generations.store_moved_offsets() == {}
    broker.reset(GROUP, "orders", {1: 2})
    assert driver.generations.store_moved_offsets() == {queue("orders", 1): 2}
    broker.send("orders", "0:4")
    driver.run()  # the batch in flight
    driver.stop()
    after = Driver(broker, folder)
    assert after.generation.start_offsets == {queue("orders", 0): 5, queue("orders", 1): 2}
    assert after.run() == ["1:2"]


def test_a_reset_survives_the_querys_own_commits(broker: EmbeddedBroker, folder: Path) -> None:
    """The query's next commit overwrites an applied reset on the broker."""
    driver = Driver(broker, folder)
    driver.run()
    broker.commit(GROUP, "orders", {0: 1})
    assert driver.generations.store_moved_offsets() == {queue("orders", 0): 1}
    broker.send("orders", "0:3")
    driver.run()
    assert broker.offsets(GROUP, "orders") == {0: 4, 1: 3}
    after = Driver(broker, folder)
    assert after.run() == numbers(0, 1, 4)
    assert broker.offsets(GROUP, "orders") == {0: 4, 1: 3}


def test_the_querys_own_commits_are_not_a_move(broker: EmbeddedBroker, folder: Path) -> None:
    driver = Driver(broker, folder)
    for number in range(3, 6):
        broker.send("orders", f"0:{number}")
        assert driver.query.poll()
        driver.save()
        assert driver.generations.store_moved_offsets() == {}, "the broker is behind"
        assert not driver.query.poll()
        assert driver.generations.store_moved_offsets() == {}, "the broker is up to date"


def test_commits_that_a_killed_broker_lost_are_repeated(
    broker: EmbeddedBroker, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last flush was some seconds earlier. The group was not moved."""
    monkeypatch.setattr(module, "BROKER_FLUSH_DELAY_SECONDS", 10.0)
    driver = Driver(broker, folder)
    broker.send("orders", "0:3", "0:4", "0:5")
    driver.run()
    assert driver.generations.store_moved_offsets() == {}
    broker.commit(GROUP, "orders", {0: 4})
    looks = [(driver.generations.store_moved_offsets(), broker.offsets(GROUP, "orders")[0]) for _ in range(4)]
    assert [moved for moved, _ in looks] == [{}] * 4
    assert looks[0][1] == 4, "a commit may be in flight, so the first check repeats nothing"
    assert looks[-1][1] == 6
    after = Driver(broker, folder)
    assert (after.generation.number, after.run()) == (1, [])


def test_a_broker_that_lost_the_groups_offsets_changes_nothing(broker: EmbeddedBroker, folder: Path) -> None:
    broker.forget_group(GROUP)
    driver = Driver(broker, folder)
    assert (driver.generation.number, driver.run()) == (1, [])


def test_a_checkpoint_of_another_query_is_refused(broker: EmbeddedBroker, folder: Path) -> None:
    offsets = folder / "generation-000001" / "checkpoint" / "offsets" / "0"
    offsets.write_text(offsets.read_text().replace('"q"', '"topic"'))
    with pytest.raises(RmqdError, match=r"generation-000001/checkpoint/offsets/0 has no RocketMQ offsets"):
        Driver(broker, folder)
    offsets.write_text("v2\n{}")
    with pytest.raises(RmqdError, match="has version 'v2'; expected v1"):
        Driver(broker, folder)


def test_an_offset_outside_the_querys_own_commits_is_a_move() -> None:
    """Offsets between the broker's known flushed offset and the checkpoint are the driver's own commits."""
    one = MessageQueue("orders", "broker-a", 0)

    def is_move(stored: int, done: int = 10, held: int = 7) -> bool:
        return bool(offsets_moved_by_others({one: done}, {one: held}, {one: stored}))

    assert [stored for stored in range(14) if not is_move(stored)] == [7, 8, 9, 10]
    assert not is_move(4, done=4), "the query itself went back"
    assert offsets_moved_by_others({}, {}, {one: 5}) == {}, "a queue without a checkpoint entry starts there anyway"
