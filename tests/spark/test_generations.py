"""Which checkpoint a group goes on from, over an embedded broker; queries are driven as Spark drives them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rmqd.config.model.root_model import RootConfig
from rmqd.errors import RmqdError
from rmqd.spark.session.group_spec import GroupSpec
from rmqd.spark.source.source_offsets import offsets_tree
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
    """Each look is noted at once, brokers write to disk at once, and one that is away is not waited for."""
    monkeypatch.setattr(module, "NOTE_WRITE_INTERVAL_SECONDS", 0.0)
    monkeypatch.setattr(module, "BROKER_FLUSH_DELAY_SECONDS", 0.0)
    monkeypatch.setattr(module, "BROKER_WAIT_SECONDS", 0.0)


class Driver:
    """One run of a group's driver: a query with the generation it goes on from."""

    def __init__(self, broker: EmbeddedBroker, folder: Path, **more: str) -> None:
        self._broker = broker
        topics = dict.fromkeys(more.get("subscribe", "orders").split(","), "*")
        self.generations = CheckpointGenerations(order_of(broker, subscriptions=topics), LocalFolder(folder))
        self.generation = self.generations.current()
        self._checkpoint = checkpoint_of(self.generation)
        if self.generation.start_offsets is not None:
            more |= {
                "startingOffsets": json.dumps(offsets_tree(self.generation.start_offsets)),
                "commitOffsets": "true",
            }
        self.query = Query(self._checkpoint, {**grouped(broker), **more})

    def run(self) -> list[str]:
        """The bodies of what there is, until the query idles."""
        before = len(self.query.rows)
        self.query.run_until_idle()
        self.save()
        return [body for rows in self.query.rows[before:] for body in rows]

    def save(self) -> None:
        """What Spark would have written by now."""
        save(self._checkpoint, self.generation.path)

    def stop(self) -> None:
        """End in order."""
        self.save()
        self.generations.commit_end_offsets()


def order_of(broker: EmbeddedBroker, **values: Any) -> GroupSpec:
    group = {"engine": "spark", "subscriptions": {"orders": "*"}, "handler": {"plugin": "noop"}, **values}
    return GroupSpec(GROUP, RootConfig.model_validate({"nameserver": broker.nameserver, "groups": {GROUP: group}}))


def checkpoint_of(generation: CheckpointGeneration) -> Checkpoint:
    """What is in a checkpoint, as Spark reads it."""
    folder = Path(generation.path)
    offsets = [folder / "offsets" / str(batch) for batch in range(len(list(folder.glob("offsets/*"))))]
    return Checkpoint([file.read_text().splitlines()[2] for file in offsets], len(list(folder.glob("commits/*"))))


def note_of(generation: CheckpointGeneration) -> str:
    (note,) = Path(generation.path).parent.glob("note-*.json")
    return note.read_text()


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


def test_the_same_generation_goes_on_where_nobody_moved_the_group(broker: EmbeddedBroker, folder: Path) -> None:
    broker.send("orders", "0:3")
    driver = Driver(broker, folder)
    assert driver.generation.number == 1
    assert driver.run() == ["0:3"]


def test_a_group_that_ran_elsewhere_goes_on_where_it_ended_there(broker: EmbeddedBroker, folder: Path) -> None:
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


def test_a_batch_that_was_under_way_is_repeated(broker: EmbeddedBroker, folder: Path) -> None:
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
def test_a_reset_while_it_was_down_holds(broker: EmbeddedBroker, folder: Path, target: int) -> None:
    """Also back to a place that the query has committed itself once."""
    broker.commit(GROUP, "orders", {0: target})
    driver = Driver(broker, folder)
    assert driver.generation.start_offsets == {queue("orders", 0): target, queue("orders", 1): 3}
    assert "was reset" in note_of(driver.generation)
    assert driver.run() == numbers(0, target, 3)


def test_a_reset_that_a_broker_has_yet_to_tell_holds(broker: EmbeddedBroker, folder: Path) -> None:
    """It is told once, and no query is disturbed by it afterwards."""
    broker.reset(GROUP, "orders", {1: 1})
    driver = Driver(broker, folder)
    assert driver.generation.start_offsets == {queue("orders", 0): 3, queue("orders", 1): 1}
    assert broker.pending_reset(GROUP, "orders", 1) is None
    assert broker.offsets(GROUP, "orders") == {0: 3, 1: 1}
    assert driver.run() == numbers(1, 1, 3)
    driver.stop()
    assert Driver(broker, folder).generation.number == 2


def test_the_end_does_not_overwrite_a_reset(broker: EmbeddedBroker, folder: Path) -> None:
    """That nobody has looked for since."""
    driver = Driver(broker, folder)
    driver.run()
    broker.commit(GROUP, "orders", {0: 1})
    driver.stop()
    assert broker.offsets(GROUP, "orders") == {0: 1, 1: 3}
    assert Driver(broker, folder).run() == numbers(0, 1, 3)


def test_a_reset_of_an_idle_queue_is_seen(broker: EmbeddedBroker, folder: Path) -> None:
    """No executor pulls it, and so none is told."""
    driver = Driver(broker, folder)
    broker.send("orders", "0:3")
    driver.run()
    assert driver.generations.find_moved_offsets() == {}
    broker.reset(GROUP, "orders", {1: 2})
    assert driver.generations.find_moved_offsets() == {queue("orders", 1): 2}
    broker.send("orders", "0:4")
    driver.run()  # the batch under way
    driver.stop()
    after = Driver(broker, folder)
    assert after.generation.start_offsets == {queue("orders", 0): 5, queue("orders", 1): 2}
    assert after.run() == ["1:2"]


def test_what_an_operator_said_survives_the_queries_own_commits(broker: EmbeddedBroker, folder: Path) -> None:
    """An applied reset, which nothing on the broker remembers once the query has committed again."""
    driver = Driver(broker, folder)
    driver.run()
    broker.commit(GROUP, "orders", {0: 1})
    assert driver.generations.find_moved_offsets() == {queue("orders", 0): 1}
    broker.send("orders", "0:3")
    driver.run()
    assert broker.offsets(GROUP, "orders") == {0: 4, 1: 3}
    after = Driver(broker, folder)
    assert after.run() == numbers(0, 1, 4)
    assert broker.offsets(GROUP, "orders") == {0: 4, 1: 3}


def test_the_queries_own_commits_are_no_move(broker: EmbeddedBroker, folder: Path) -> None:
    driver = Driver(broker, folder)
    for number in range(3, 6):
        broker.send("orders", f"0:{number}")
        assert driver.query.poll()
        driver.save()
        assert driver.generations.find_moved_offsets() == {}, "the broker is behind"
        assert not driver.query.poll()
        assert driver.generations.find_moved_offsets() == {}, "it has heard of it"


def test_a_broker_that_was_killed_and_forgot_the_last_commits_is_told_again(
    broker: EmbeddedBroker, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It wrote them to disk some seconds before; nobody has moved the group."""
    monkeypatch.setattr(module, "BROKER_FLUSH_DELAY_SECONDS", 10.0)
    driver = Driver(broker, folder)
    broker.send("orders", "0:3", "0:4", "0:5")
    driver.run()
    assert driver.generations.find_moved_offsets() == {}
    broker.commit(GROUP, "orders", {0: 4})
    looks = [(driver.generations.find_moved_offsets(), broker.offsets(GROUP, "orders")[0]) for _ in range(4)]
    assert [moved for moved, _ in looks] == [{}] * 4
    assert looks[0][1] == 4, "a commit may be on its way"
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


def test_only_what_lies_beyond_the_queries_own_commits_is_a_move() -> None:
    """Between what brokers were known to hold and the checkpoint, a commit is the driver's own."""
    one = MessageQueue("orders", "broker-a", 0)

    def is_move(stored: int, done: int = 10, held: int = 7) -> bool:
        return bool(offsets_moved_by_others({one: done}, {one: held}, {one: stored}))

    assert [stored for stored in range(14) if not is_move(stored)] == [7, 8, 9, 10]
    assert not is_move(4, done=4), "the query itself went back"
    assert offsets_moved_by_others({}, {}, {one: 5}) == {}, (
        "the checkpoint does not know the queue: it starts there by itself"
    )
