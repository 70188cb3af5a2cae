"""The rules of a diagnosis, checked with tables of facts."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from rmqd.client.group_reader import MemberReport, QueueLag
from rmqd.errors import RemotingTimeoutError
from rmqd.operate.diagnosis.cluster_findings import findings_of_daemon
from rmqd.operate.diagnosis.diagnosis_facts import (
    BrokerFacts,
    DiagnosisSnapshot,
    TopicFacts,
)
from rmqd.operate.diagnosis.judge import consequences, judge, needs_second_snapshot
from rmqd.operate.diagnosis.progress_findings import late_messages, waiting_findings
from rmqd.operate.queries.message_queries import FoundMessage
from rmqd.wire.bodies.config_bodies import SubscriptionGroupConfig
from rmqd.wire.bodies.group_bodies import ConsumerRunningInfo, ConsumeStatus, ProcessQueueInfo
from rmqd.wire.bodies.heartbeat_data import tag_subscription
from rmqd.wire.bodies.route_data import BrokerData, QueueData, TopicRouteData
from rmqd.wire.bodies.stats_bodies import Connection, ConsumerConnection
from rmqd.wire.message_queue import MessageQueue

NOW = 1_800_000_000.0
TOPIC, GROUP, BROKER = "orders", "mailer", "broker-a"
QUEUES = tuple(MessageQueue(TOPIC, BROKER, number) for number in range(2))
RETRY = MessageQueue(f"%RETRY%{GROUP}", BROKER, 0)


def owned(queue: MessageQueue, at: int, **values: Any) -> tuple[MessageQueue, ProcessQueueInfo]:
    return queue, ProcessQueueInfo(commit_offset=at, locked=True, **values)


def member(
    client_id: str = "one", *queues: tuple[MessageQueue, ProcessQueueInfo], tags: str = "*", **values: Any
) -> MemberReport:
    """A member with these queues."""
    status = values.pop("status", ConsumeStatus(consume_ok_tps=10.0))
    properties = {"PROP_CONSUMEORDERLY": "false", "messageModel": "CLUSTERING", **values.pop("properties", {})}
    info = ConsumerRunningInfo(
        properties,
        (tag_subscription(TOPIC, tags, 1), tag_subscription(RETRY.topic, "*", 1)),
        dict(queues),
        {TOPIC: status},
        values.pop("user", {}),
    )
    connection = Connection(client_id, "10.0.0.1:5000", "JAVA", 513)
    return MemberReport(**{"client_id": client_id, "connections": {BROKER: (connection,)}, "info": info, **values})


def lag(queue: MessageQueue, committed: int | None, low: int, high: int, seconds: float) -> QueueLag:
    """The group's offsets in a queue. No rule needs the number of messages behind the committed offset."""
    return QueueLag(queue.broker_name, queue.queue_id, committed, low, high, 0, seconds)


def snapshot(*members: MemberReport, **values: Any) -> DiagnosisSnapshot:
    """A healthy group, with some of its facts replaced; `places` are (committed, max, age of the oldest)."""
    places = values.pop("places", [(100, 100, 0.0), (100, 100, 0.0)])
    connections = tuple(one for member in members for known in member.connections.values() for one in known)
    subscriptions = {TOPIC: tag_subscription(TOPIC, "*", 1)}
    views = {BROKER: ConsumerConnection(connections, subscriptions, "CONSUME_PASSIVELY", "CLUSTERING")}
    route = TopicRouteData((QueueData(BROKER, 2, 2, 6),), (BrokerData("c", BROKER, {0: "10.0.0.9:10911"}),))
    facts: dict[str, Any] = {
        "group": GROUP,
        "at": NOW,
        "brokers": {BROKER: BrokerFacts(name=BROKER, master="10.0.0.9:10911", permission=6)},
        "settings": {BROKER: SubscriptionGroupConfig(group_name=GROUP)},
        "views": views if members else {},
        "topics": {TOPIC: TopicFacts(topic=TOPIC, route=route, queues=QUEUES)},
        "members": {one.client_id: one for one in members},
        "queues": {queue: lag(queue, at, 0, end, age) for queue, (at, end, age) in zip(QUEUES, places, strict=False)},
    }
    return DiagnosisSnapshot(**facts | values)


BOTH = owned(QUEUES[0], 100), owned(QUEUES[1], 100)
WELL = member("one", *BOTH)


def causes(first: DiagnosisSnapshot, second: DiagnosisSnapshot | None = None) -> list[str]:
    return [problem.cause for problem in judge(first, second)]


def test_a_healthy_group_has_no_findings() -> None:
    assert judge(snapshot(WELL)) == []
    assert not needs_second_snapshot(snapshot(WELL))


BROKERS: list[tuple[dict[str, Any], list[str], str]] = [
    ({"silence": "timed out after 5 s"}, ["no_route"], "does not respond: timed out after 5 s"),
    ({"master": None, "slaves": ("10.0.0.8:10911",)}, ["broker_read_only"], "its slave 10.0.0.8:10911"),
    ({"permission": 4}, ["broker_read_only"], "brokerPermission=4"),
    ({"permission": 2}, ["no_permission"], "brokerPermission=2"),
    ({"disk_used": 0.91, "disk_limit": 0.9}, ["broker_read_only"], "91% full"),
    ({"disk_used": 0.89, "disk_limit": 0.9}, [], ""),
    ({"clock_ahead_seconds": -600.0}, ["clock_skew"], "10 min behind"),
    ({"clock_ahead_seconds": 90.0}, ["clock_skew"], "90 s ahead of"),
    ({"clock_ahead_seconds": 2.0}, [], ""),
]


@pytest.mark.parametrize(("change", "expected", "evidence"), BROKERS)
def test_brokers(change: dict[str, Any], expected: list[str], evidence: str) -> None:
    broker = replace(BrokerFacts(name=BROKER, master="10.0.0.9:10911", permission=6), **change)
    found = judge(snapshot(WELL, brokers={BROKER: broker}))
    assert [problem.cause for problem in found] == expected
    assert all(evidence in problem.evidence for problem in found)


def test_a_name_server_without_brokers() -> None:
    assert causes(snapshot(brokers={}, topics={}, settings={}, queues={})) == ["no_route"]


SETTINGS: list[tuple[dict[str, Any], list[str]]] = [
    ({"consume_enable": False}, ["consumption_disabled"]),
    ({"retry_queue_nums": 0}, ["retries_dropped"]),
    ({"consume_broadcast_enable": False}, []),
]


@pytest.mark.parametrize(("change", "expected"), SETTINGS)
def test_settings_of_the_group(change: dict[str, Any], expected: list[str]) -> None:
    settings = replace(SubscriptionGroupConfig(group_name=GROUP), **change)
    assert causes(snapshot(WELL, settings={BROKER: settings})) == expected


def test_topics_without_a_route_or_permission() -> None:
    closed = TopicRouteData((QueueData(BROKER, 2, 2, 2),), (BrokerData("c", BROKER, {0: "10.0.0.9:10911"}),))
    gone = TopicFacts(topic="gone", missing=True)
    assert causes(snapshot(WELL, topics={"gone": gone})) == ["topic_missing"]
    assert causes(snapshot(WELL, topics={"x": TopicFacts(topic="x", error="timed out")})) == ["no_route"]
    assert causes(snapshot(WELL, topics={TOPIC: TopicFacts(topic=TOPIC, route=closed)})) == ["no_permission"]
    assert causes(snapshot(topics={"gone": gone})) == ["topic_missing", "no_members"]


def test_no_members() -> None:
    (known,) = judge(snapshot(places=[(90, 100, 7200.0), (100, 100, 0.0)]))
    assert (known.cause, "10 messages wait, the oldest for 2 h" in known.evidence) == ("no_members", True)
    (unknown,) = judge(snapshot(settings={}, queues={}))
    assert (unknown.cause, "no broker knows the group" in unknown.evidence) == ("no_members", True)
    broker = BrokerFacts(name=BROKER, master="10.0.0.9:10911", makes_groups=False)
    (refused,) = judge(snapshot(brokers={BROKER: broker}, settings={}, queues={}))
    assert (refused.cause, f"updateSubGroup -c c -g {GROUP}" in refused.next) == ("group_unknown", True)


TWICE = (Connection("one", "10.0.0.1:5000"), Connection("one", "10.0.0.2:5000"))
ORDERLY = {"PROP_CONSUMEORDERLY": "true"}
AMONG_MEMBERS: list[tuple[str, list[MemberReport], list[str]]] = [
    ("one client id twice", [member("one", *BOTH, connections={BROKER: TWICE})], ["client_id_conflict"]),
    ("a connection that was given up", [member("10.0.0.1@7#123456789012", *BOTH, connections={BROKER: TWICE})], []),
    ("other tags", [member("one", BOTH[0]), member("two", BOTH[1], tags="a")], ["subscription_mismatch"]),
    ("tags in another order", [member("one", BOTH[0], tags="a||b"), member("two", BOTH[1], tags="b || a")], []),
    ("one in order", [member("one", BOTH[0]), member("two", BOTH[1], properties=ORDERLY)], ["mode_mismatch"]),
    ("a queue of nobody", [member("one", BOTH[0])], ["orphaned_queue"]),
    ("no lock", [member("one", BOTH[0], properties=ORDERLY)], ["held_lock"]),
    ("more members than queues", [WELL, member("two")], ["idle_member"]),
    ("one that pulls by itself", [member("one", properties={"PROP_CONSUME_TYPE": "CONSUME_ACTIVELY"})], []),
    ("a member that cannot tell", [member("one", BOTH[0]), member("two", info=None)], []),
]


@pytest.mark.parametrize(("members", "expected"), [row[1:] for row in AMONG_MEMBERS], ids=[r[0] for r in AMONG_MEMBERS])
def test_a_problem_that_may_be_momentary_is_reported_if_it_is_seen_twice(
    members: list[MemberReport], expected: list[str]
) -> None:
    seen = snapshot(*members)
    assert causes(seen, seen) == expected
    assert causes(snapshot(WELL), seen) == causes(seen, snapshot(WELL)) == causes(seen) == []
    assert needs_second_snapshot(seen) == bool(expected)


def test_a_queue_assigned_to_a_dead_connection_is_orphaned() -> None:
    seen = snapshot(member("10.0.0.1@7#123456789012", BOTH[0], connections={BROKER: TWICE}))
    (found,) = judge(seen, seen)
    assert found.cause == "orphaned_queue"
    assert "counts 10.0.0.1@7#123456789012 on broker-a more than once" in found.evidence
    assert found.next.startswith("wait two minutes until the broker drops them")


def test_an_unresponsive_member_is_reported_with_the_queues_without_owner() -> None:
    (found,) = judge(
        snapshot(member("one", BOTH[0]), member("two", info=None, error=RemotingTimeoutError("broker-a", "timed out")))
    )
    assert found.cause == "orphaned_queue"
    assert "two (10.0.0.1:5000)" in found.evidence
    assert "orders on broker-a, queue 1" in found.evidence


def test_offsets_outside_of_a_queue_are_reported() -> None:
    above, below = [(150, 100, 60.0)], [(10, 100, 60.0)]
    expired = {QUEUES[0]: lag(QUEUES[0], 10, 50, 100, 60.0)}
    assert causes(snapshot(places=above)) == ["no_members", "offset_illegal"]
    assert causes(snapshot(places=below)) == ["no_members"]
    (_, found) = judge(snapshot(queues=expired))
    assert "40 messages deleted before being handled" in found.evidence
    (_, both) = judge(snapshot(places=[(150, 100, 60.0), (170, 100, 60.0)]))
    assert "queues 0, 1 at an offset above its end (queue 0: at 150, outside 0 to 100)" in both.evidence


@pytest.mark.parametrize(
    ("ok", "failed", "expected"),
    [
        (0.0, 1.0, ["failing_handler"]),
        (1.0, 1.0, ["failing_handler"]),
        (9.0, 1.0, ["failing_handler"]),
        (0.9, 0.1, []),
        (20.0, 1.0, []),
        (0.0, 0.02, []),
        (5.0, 0.0, []),
    ],
)
def test_handlers_that_fail(ok: float, failed: float, expected: list[str]) -> None:
    status = ConsumeStatus(consume_ok_tps=ok, consume_failed_tps=failed)
    assert causes(snapshot(member("one", *BOTH, status=status))) == expected


def test_a_message_that_fails_repeatedly_is_reported() -> None:
    status = ConsumeStatus(consume_ok_tps=9.0, consume_failed_tps=0.05)
    at_ms = round(NOW - 20) * 1000
    seen = FoundMessage(RETRY.topic, BROKER, 0, 3, "C0A8", "", "k1", None, 0, at_ms, "", "", 4, {}, b"")
    well = member("one", *BOTH, status=status)
    (found,) = judge(snapshot(well, retried=(seen,)))
    assert (found.cause, "C0A8 [k1] (sent back 4 times)" in found.evidence) == ("poison_message", True)
    copies = [
        replace(seen, msg_id=f"COPY{times}", reconsume_times=times, properties={"ORIGIN_MESSAGE_ID": "C0A8"})
        for times in range(1, 9)
    ]
    (found,) = judge(snapshot(well, retried=tuple(copies)))
    assert "C0A8 [k1] (sent back 8 times)" in found.evidence, "older brokers give no ids to messages without one"
    for other in (replace(seen, reconsume_times=1), replace(seen, stored_at_ms=at_ms - 4_000_000)):
        assert judge(snapshot(well, retried=(other,))) == []
    canary = {"problems": [{"cause": "canary_failed", "evidence": "the canary fails.", "next": "stop it"}]}
    (found,) = judge(snapshot(well, retried=(seen,)), of_daemon=findings_of_daemon(canary, GROUP))
    assert (found.cause, found.next.startswith("stop it")) == ("failing_handler", True), "its messages are not at fault"


def two_looks(
    before: int, after: int, end: int, gained: int = 0, **queue: Any
) -> tuple[DiagnosisSnapshot, DiagnosisSnapshot]:
    """Two snapshots, 7 s apart. The only member's first queue is at these offsets, 60 s behind."""
    values = {name: queue.pop(name) for name in ("status", "properties", "user") if name in queue}
    looks = []
    for seconds, at, to in ((0, before, end), (7, after, end + gained)):
        one = member("one", owned(QUEUES[0], at, **queue), BOTH[1], **values)
        looks.append(snapshot(one, at=NOW + seconds, places=[(at, to, 60.0), (100, 100, 0.0)]))
    return looks[0], looks[1]


def test_messages_that_a_group_is_catching_up_with_are_counted() -> None:
    looks = two_looks(10, 500, 1500, 70, cached_msg_count=800)
    assert (judge(*looks), late_messages(*looks)) == ([], 1070)
    assert late_messages(*two_looks(10, 10, 100)) == 0
    assert late_messages(*two_looks(10, 20, 9000, cached_msg_count=32)) == 0


FAILS = ConsumeStatus(consume_failed_tps=0.5)
SLOW = ConsumeStatus(consume_ok_tps=20.0, consume_rt=900.0)
QUICK = ConsumeStatus(consume_ok_tps=20.0, consume_rt=2.0)
WAITING: list[tuple[str, tuple[DiagnosisSnapshot, DiagnosisSnapshot], list[str]]] = [
    ("a handler that hangs", two_looks(10, 10, 100, cached_msg_count=32), ["slow_handler"]),
    ("nothing is pulled", two_looks(10, 10, 100), ["stalled_queue"]),
    ("waits for its rate limit", two_looks(
        10, 10, 100, status=ConsumeStatus(pull_tps=9.0), properties={"pullRateLimit": "10"},
        last_pull_timestamp=int(NOW * 1000)), ["flow_control"]),
    ("does not pull, though other queues do at the rate limit", two_looks(
        10, 10, 100, status=ConsumeStatus(pull_tps=9.0), properties={"pullRateLimit": "10"}), ["stalled_queue"]),
    ("does not pull, far below its rate limit", two_looks(
        10, 10, 100, status=ConsumeStatus(pull_tps=1.0), properties={"pullRateLimit": "10"},
        last_pull_timestamp=int(NOW * 1000)), ["stalled_queue"]),
    ("paused", two_looks(10, 10, 100, user={"state": "paused"}), ["stalled_queue"]),
    ("one message holds back the rest", two_looks(
        10, 10, 9000, cached_msg_count=40, cached_msg_min_offset=10, cached_msg_max_offset=2010), ["flow_control"]),
    ("a poisoned queue", two_looks(
        10, 10, 100, cached_msg_count=9, properties=ORDERLY, status=FAILS), ["poison_message"]),
    ("slower than what comes", two_looks(
        10, 80, 900, 700, cached_msg_count=800, status=SLOW), ["skewed_queue", "slow_handler"]),
    ("a maximum of threads that Java's pool never reaches", two_looks(
        10, 80, 900, 700, cached_msg_count=10, status=SLOW,
        properties={"pullThresholdForQueue": "10", "consumeThreadMin": "20", "consumeThreadMax": "64"}),
        ["skewed_queue", "slow_handler"]),
    ("small thresholds", two_looks(
        10, 80, 900, 700, cached_msg_count=10, status=QUICK, properties={"pullThresholdForQueue": "10"}),
        ["flow_control"]),
    ("a hot queue whose cache is full, in order", two_looks(
        10, 80, 9000, 700, cached_msg_count=1000, status=replace(SLOW, consume_ok_tps=0.3), properties=ORDERLY),
        ["skewed_queue", "slow_handler"]),
    ("slower than what comes, in order", two_looks(
        10, 80, 9000, 700, cached_msg_count=1000, status=replace(SLOW, consume_ok_tps=1.0), properties=ORDERLY),
        ["skewed_queue", "slow_handler"]),
    ("an open circuit", two_looks(
        10, 10, 100, cached_msg_count=32, status=FAILS, user={"queues": "2 paused", "circuit": "open"}),
        ["failing_handler"]),
    ("on Spark", two_looks(10, 10, 100, user={"engine": "spark"}), []),
    ("catching up", two_looks(10, 500, 1500, 70, cached_msg_count=800, status=QUICK), []),
]  # fmt: skip


@pytest.mark.parametrize(("looks", "expected"), [row[1:] for row in WAITING], ids=[row[0] for row in WAITING])
def test_why_messages_wait(looks: tuple[DiagnosisSnapshot, DiagnosisSnapshot], expected: list[str]) -> None:
    assert needs_second_snapshot(looks[0])
    assert causes(*looks) == expected


def test_the_next_step_for_a_rate_limit_raises_the_limit() -> None:
    (found,) = judge(*two_looks(10, 80, 9000, 700, status=QUICK, properties={"pullRateLimit": "10"}))
    assert found.next.startswith("raise pull_rate_limit, then `rmqd reload`")


@pytest.mark.parametrize(("number", "told"), [(0, 1), (1, 2)], ids=["the same queue", "another queue"])
def test_brokers_and_daemon_give_one_finding_for_the_same_queue(number: int, told: int) -> None:
    stall = {"cause": "slow_handler", "evidence": "a call runs for 40 s", "next": "look at the handler"}
    queue = {"topic": TOPIC, "broker": BROKER, "queue": number, "stall": stall}
    before, now = two_looks(10, 10, 100, cached_msg_count=32)
    found = judge(before, now, findings_of_daemon({"queues": [queue]}, GROUP))
    assert [one.cause for one in found] == ["slow_handler"] * told
    evidence = "; ".join(sorted(one.evidence for one in found))
    assert "90 messages wait in orders on broker-a, queue 0" in evidence
    assert "the daemon reports: a call runs for 40 s" in evidence


def test_reports_of_several_queues_with_the_same_step_are_one_finding() -> None:
    def stalled(number: int) -> dict[str, object]:
        stall = {"cause": "offset_illegal", "evidence": f"offset {number} is too high", "next": "reset it"}
        return {"topic": TOPIC, "broker": BROKER, "queue": number, "stall": stall}

    queues = [*map(stalled, range(5))]
    (found,) = judge(snapshot(WELL), of_daemon=findings_of_daemon({"queues": queues}, GROUP))
    some = "offset 0 is too high; offset 1 is too high; offset 2 is too high"
    assert found.evidence == f"the daemon reports: {some}; and 2 more"


def test_equal_reports_with_different_steps_are_quoted_once() -> None:
    problems = [{"cause": "no_permission", "evidence": "a refuses", "next": f"permit {topic}"} for topic in "xy"]
    (found,) = judge(snapshot(WELL), of_daemon=findings_of_daemon({"problems": problems}, GROUP))
    assert found.evidence == "the daemon reports: a refuses"


def test_a_group_kept_from_consuming_gives_one_finding_with_its_cause() -> None:
    waits = f"group {GROUP} is kept from consuming: a refuses PULL_MESSAGE"
    (refused,) = judge(snapshot(WELL), of_daemon=findings_of_daemon({"not_ready_reason": waits}, GROUP))
    assert (refused.cause, waits in refused.evidence) == ("no_permission", True)
    problem = {"cause": "consumption_disabled", "evidence": "no retry queue", "next": "do this"}
    of_daemon = {"not_ready_reason": f"group {GROUP} is kept from consuming: no retry queue", "problems": [problem]}
    (disabled,) = judge(snapshot(WELL), of_daemon=findings_of_daemon(of_daemon, GROUP))
    assert (disabled.cause, disabled.next.startswith("do this")) == ("consumption_disabled", True)


def test_one_waiting_message_is_reported_in_the_singular() -> None:
    (found,) = judge(*two_looks(10, 10, 11, cached_msg_count=1))
    assert found.evidence.startswith("1 message waits in orders on broker-a, queue 0, ")


def test_messages_that_wait_only_for_a_moment_are_not_reported() -> None:
    young = snapshot(member("one", *BOTH), places=[(90, 110, 4.0), (100, 100, 0.0)])
    assert not needs_second_snapshot(young)
    assert causes(young, young) == []


def test_messages_that_the_owner_finished_but_not_committed_do_not_wait() -> None:
    done = snapshot(member("one", owned(QUEUES[0], 110), BOTH[1]), places=[(90, 110, 60.0), (100, 100, 0.0)])
    assert not needs_second_snapshot(done)


def test_a_new_group_that_may_have_started_at_the_end_is_not_behind() -> None:
    """Java's client reports its offset only after a pull response without new messages."""

    def seen(**queue: Any) -> DiagnosisSnapshot:
        one = member("one", owned(QUEUES[0], -1, **queue), BOTH[1])
        ends = {QUEUES[0]: lag(QUEUES[0], None, 0, 500, 9000.0)}
        return snapshot(one, queues=ends)

    assert causes(seen(), seen()) == []
    hanging = seen(cached_msg_count=32, cached_msg_max_offset=31)
    assert causes(hanging, hanging) == ["slow_handler"]


def test_each_next_step_names_the_group_and_the_page() -> None:
    (found,) = judge(snapshot())
    assert f"`rmqd run --group {GROUP}`" in found.next
    assert found.next.endswith("(docs/diagnosing.md#no_members)")


def test_consequences_are_listed_below_their_cause() -> None:
    """Name servers do not know the topic of a dead broker. Advice to create the topic would be wrong."""
    broker = BrokerFacts(name=BROKER, master="10.0.0.9:10911", silence="no answer to PULL_MESSAGE (11) in 3 s")
    other = BrokerFacts(name="broker-b", master="10.0.0.8:10911")
    topics = {"gone": TopicFacts(topic="gone", missing=True)}
    found = judge(snapshot(brokers={BROKER: broker, "broker-b": other}, topics=topics, queues={}))
    assert [one.cause for one in found] == ["no_route", "topic_missing", "no_members"]
    assert {one: cause.cause for one, cause in consequences(found).items()} == dict.fromkeys(found[1:], "no_route")
    assert {one.next for one in found} == {found[0].next}


def test_a_hot_key_is_reported_as_a_skewed_queue() -> None:
    """More concurrency does not help one queue, so the slow handler is only a consequence."""
    before, now = two_looks(10, 80, 9000, 700, cached_msg_count=800, status=SLOW)
    now = replace(now, samples={QUEUES[0]: ("hot",) * 3 + ("cold",)})
    skewed, slow = judge(before, now)
    assert (skewed.cause, slow.cause) == ("skewed_queue", "slow_handler")
    assert "queue 0 has 100% of the topic's waiting messages" in skewed.evidence
    assert "its next 4 messages: hot (75%), cold (25%)" in skewed.evidence


def test_a_cause_that_brokers_and_the_daemon_report_is_one_finding() -> None:
    members = [member("one", BOTH[0]), member("two", BOTH[1], tags="a")]
    problem = {"cause": "subscription_mismatch", "evidence": "two subscribes to a", "next": "do this"}
    seen = snapshot(*members)
    (found,) = judge(seen, seen, findings_of_daemon({"problems": [problem]}, GROUP))
    assert found.next.startswith("do this")
    assert "the daemon reports: two subscribes to a" in found.evidence


def test_a_cause_of_the_group_and_of_its_queues_is_one_finding() -> None:
    """It has the next step for the queue, which is more precise."""
    stall = {"cause": "poison_message", "evidence": "the handler fails at C0A8", "next": "skip it"}
    problem = stall | {"evidence": "all 48 attempts had one message, C0A8", "next": "try it"}
    queue = {"topic": TOPIC, "broker": BROKER, "queue": 0, "stall": stall}
    looks = two_looks(10, 10, 100, cached_msg_count=9, properties=ORDERLY, status=FAILS)
    (poison,) = judge(*looks, findings_of_daemon({"queues": [queue], "problems": [problem]}, GROUP))
    assert (poison.cause, poison.next.startswith("skip it")) == ("poison_message", True)
    assert "all 48 attempts had one message" in poison.evidence
    stall, problem = ({"cause": "broker_unreachable", "evidence": text, "next": "start it"} for text in "ab")
    of_daemon = findings_of_daemon({"queues": [queue | {"stall": stall}], "problems": [problem]}, GROUP)
    (away,) = judge(snapshot(brokers={}, topics={}, settings={}, queues={}), of_daemon=of_daemon)
    assert (away.cause, away.next.startswith("start it")) == ("no_route", True)


@pytest.mark.parametrize(("threads", "recommended"), [("64", 128), ("600", 1000)])
def test_the_recommended_concurrency_is_twice_the_member_s(threads: str, recommended: int) -> None:
    looks = two_looks(10, 10, 100, cached_msg_count=32, properties={"consumeThreadMin": threads})
    (slow,) = judge(*looks)
    assert f"`rmqd concurrency {GROUP} {recommended}`" in slow.next


@pytest.mark.parametrize(
    ("properties", "needed", "recommended"),
    [({}, 50, 50), ({"consumeMessageBatchMaxSize": "5"}, 10, 40), (ORDERLY, 0, 40)],
)
def test_the_recommended_concurrency_is_enough_for_the_messages_that_arrive(
    properties: dict[str, str], needed: int, recommended: int
) -> None:
    """140 messages in 7 s, and 2.5 s for each call."""
    status = ConsumeStatus(consume_ok_tps=8.0, consume_rt=2500.0)
    looks = two_looks(10, 80, 900, 140, cached_msg_count=800, status=status, properties=properties)
    [slow] = [found.problem for found in waiting_findings(*looks) if found.problem.cause == "slow_handler"]
    assert "a call of the handler takes 2.5 s" in slow.evidence
    assert re.findall(r"about (\d+) calls at once", slow.evidence) == [str(needed)] * (needed > 0)
    assert f"`rmqd concurrency {GROUP} {recommended}`" in slow.next


@pytest.mark.parametrize(("owner", "recommended"), [("one", 150), ("two", 50)])
def test_the_recommended_concurrency_counts_messages_of_all_queues_of_the_member(owner: str, recommended: int) -> None:
    """Only the first queue lags. Meanwhile 280 messages arrive in the other queue, which may have another owner."""
    status = ConsumeStatus(consume_ok_tps=8.0, consume_rt=2500.0)
    before, now = two_looks(10, 80, 900, 140, cached_msg_count=800, status=status)
    busy = {QUEUES[1]: lag(QUEUES[1], 380, 0, 380, 0.0)}
    if owner == "two":
        first = member("one", owned(QUEUES[0], 80, cached_msg_count=800), status=status)
        now = replace(now, members={"one": first, "two": member("two", BOTH[1], status=status)})
    [slow] = [
        found.problem
        for found in waiting_findings(before, replace(now, queues={**now.queues, **busy}))
        if found.problem.cause == "slow_handler"
    ]
    assert f"`rmqd concurrency {GROUP} {recommended}`" in slow.next


def test_a_slow_handler_that_the_daemon_reports_keeps_the_recommendation() -> None:
    status = ConsumeStatus(consume_rt=2500.0)
    looks = two_looks(10, 10, 900, 140, cached_msg_count=32, status=status)
    stall = {"cause": "slow_handler", "evidence": "a call is running for 25 s", "next": "more of them"}
    queue = {"topic": TOPIC, "broker": BROKER, "queue": 0, "stall": stall}
    [slow] = judge(*looks, findings_of_daemon({"queues": [queue], "problems": []}, GROUP))
    assert slow.evidence.endswith("a call is running for 25 s")
    assert f"`rmqd concurrency {GROUP} 50`" in slow.next


def test_the_command_for_a_read_only_broker_names_the_broker() -> None:
    broker = BrokerFacts(name=BROKER, master="10.0.0.9:10911", permission=4)
    (read_only,) = judge(snapshot(WELL, brokers={BROKER: broker}))
    assert "`mqadmin updateBrokerConfig -b 10.0.0.9:10911 -k brokerPermission -v 6`" in read_only.next
