"""A short owners campaign for every run of the tests, and failures of its verdict."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rmqd.wire.message_queue import MessageQueue
from tests.conformance import behaviour
from tests.nightly.campaigns.divisions import BROKER_NAMES, DIVISIONS, ROOM_OF_SLOT, Division
from tests.nightly.campaigns.members import JOIN, KILL, LEAVE
from tests.nightly.campaigns.owners import Change, Owners, OwnersPlan, OwnersResult
from tests.nightly.rocketmq import go_peers
from tests.rocketmq import RealCluster
from tests.rocketmq.spec import ClusterSpec

# with this seed a member of each language leaves and is killed
SEED = 3
CHANGES = 9


@behaviour(
    "strategies",
    (
        "Members of different languages agree on every queue's owner, with each strategy, through joins,"
        " leaves and kills"
    ),
    java="each member computes the assignment itself, from the broker's list of client ids",
    rmqd="the same",
    checked="rmqd daemons, Java clients and a Go client in seven groups; each reports its queues",
)
@pytest.mark.slow
@pytest.mark.rocketmq
@pytest.mark.timeout(240)
def test_members_of_three_languages_agree_on_every_owner(tmp_path: Path) -> None:
    """The members use each strategy on two brokers, through several joins, leaves and kills."""
    without_go = ("rmqd-a", "rmqd-b", "java-c")
    has_go = go_peers.available()
    plan = OwnersPlan(SEED, CHANGES, (*without_go, "go-e") if has_go else without_go)

    with RealCluster.start(ClusterSpec(brokers=2, broker_names=BROKER_NAMES, heap="384m")) as cluster:
        result = Owners(plan, cluster, tmp_path).run()

    print(result.report())
    assert result.passed, result.report()
    assert {event.split()[1] for event in result.events()} == {JOIN, LEAVE, KILL}, result.report()
    if not has_go:
        assert not os.environ.get("CI"), "no Go, and CI is set"
        pytest.skip("rmqd and Java agree; there is no Go to be a member too (Debian: apt-get install golang-go)")


def result_of(*seconds: float | None) -> OwnersResult:
    changes = [Change(JOIN, "rmqd-a", {division.name: at for division in DIVISIONS}) for at in seconds]
    return OwnersResult(OwnersPlan(SEED, 2), changes)


def test_a_change_without_agreement_or_an_incomplete_run_fails() -> None:
    assert result_of(0.1, 0.2).passed
    assert not result_of(0.1, None).passed
    assert not result_of(0.1).passed


@pytest.mark.parametrize("division", DIVISIONS, ids=lambda division: division.name)
def test_every_queue_has_one_owner_if_all_members_are_present(division: Division) -> None:
    """Strategies without fixed lists or rooms also work with two of the members."""
    retries = f"%RETRY%{division.group}"
    topics = [(topic, number) for topic, count in (("owners", 6), (retries, 1)) for number in range(count)]
    queues = sorted(MessageQueue(topic, broker, number) for broker in BROKER_NAMES for topic, number in topics)
    members = {slot: f"10.0.0.1@{room}@{slot}" for slot, room in ROOM_OF_SLOT.items()}

    owners = division.owners(members, queues)
    fewer = division.owners(dict(list(members.items())[2:4]), queues)

    one_room = division.name == "by_one_machine_room"
    assert {queue: len(slots) for queue, slots in owners.items()} == {
        queue: 0 if one_room and queue.broker_name == BROKER_NAMES[1] else 1 for queue in queues
    }
    if division.strategy not in ("by_config", "by_machine_room"):
        assert {len(slots) for slots in fewer.values()} == {1}
