"""How a range plan handles scripted responses, without a network and without waiting."""

from __future__ import annotations

import itertools

import pytest
from structlog.testing import capture_logs

from rmqd.client.client_options import ClientOptions
from rmqd.codes import ResponseCode
from rmqd.errors import ProtocolError, RemotingConnectError, RmqdError
from rmqd.spark.session.queue_range import PullSettings, QueueRange, Replica
from rmqd.spark.session.spark_access import ClientAccess
from rmqd.wire.bodies.heartbeat_data import tag_subscription
from rmqd.wire.command import FrameDecoder, RemotingCommand, decode_command
from rmqd.wire.headers.pull_headers import PullMessageResponseHeader
from rmqd.wire.message_queue import MessageQueue
from tests.client.peer import Reply
from tests.spark.needed import need

need("numpy")

from rmqd.spark.source.range_plan import RangePlan, ResetByOperator, SettledRange  # noqa: E402
from rmqd.spark.source.source_records import FramedResponse  # noqa: E402
from tests.spark.range_cases import AWAY, RUNS, Case, Scripted, queue_range, wanted  # noqa: E402

ADDRESSES = ("master:1", "slave:1")
ACCESS = ClientAccess(ClientOptions(nameservers=("ns:1",)))


def requests(plan: RangePlan) -> dict[int, tuple[int, int]]:
    """The offset and the maximum number of messages of each new pull, by opaque."""
    while plan.add_span():
        pass
    frames = FrameDecoder().feed(b"".join(frame for _, frame in plan.new_requests()))
    commands = [decode_command(frame) for frame in frames]
    return {
        command.opaque: (int(command.ext_fields["queueOffset"]), int(command.ext_fields["maxMsgNums"]))
        for command in commands
    }


def asked(plan: RangePlan) -> list[tuple[int, int]]:
    """The values of `requests`, in the order of the pulls."""
    return list(requests(plan).values())


class Driver:
    """Runs a plan against a case's scripted replicas, without waiting."""

    def __init__(self, case: Case, *, loss_fails: bool) -> None:
        self.plan = RangePlan(queue_range(case, ADDRESSES, ACCESS, loss_fails=loss_fails))
        self.found: list[int] = []
        self._scripted = Scripted(case)
        self._now = 0.0
        self._replies: dict[int | None, Reply] = {}

    def run(self) -> None:
        """Run until the range is settled."""
        for _ in itertools.takewhile(lambda _: self.plan.is_unfinished, range(1000)):
            try:
                self._step()
            except RmqdError as error:
                self.plan.handle_failure(error, self._now)
        assert not self.plan.is_unfinished

    def _step(self) -> None:
        plan, scripted = self.plan, self._scripted
        self._now += plan.take_pause_seconds()
        if plan.must_query_route:
            self._replies.clear()
            plan.use_replicas([Replica(one, ADDRESSES[one]) for one in scripted.route or ()])
        for opaque, pull in requests(plan).items():
            self._replies[opaque] = scripted.pull(ADDRESSES.index(plan.address), *pull)
        while plan.spans and (reply := self._replies.pop(plan.spans[0].opaque, None)) is not None:
            if reply is AWAY:
                raise RemotingConnectError(plan.address, "it is away")
            command = RemotingCommand(int(reply.code), 0, 1, dict(reply.ext_fields), reply.body)
            dealt = plan.handle_response(command, FramedResponse(reply.body, 0).damage)
            assert not isinstance(dealt, ResetByOperator)
            if dealt is not None and dealt.has_messages:
                self.found += range(dealt.start, dealt.end)


def test_each_range_case_has_the_expected_outcome() -> None:
    """Both pullers are tested with the same cases."""
    for case, loss_fails in RUNS:
        driver, outcome = Driver(case, loss_fails=loss_fails), wanted(case, loss_fails=loss_fails)
        with capture_logs() as logs:
            if isinstance(outcome, tuple):
                driver.run()
                assert tuple(driver.found) == outcome
                assert driver.plan.lost_messages == case.lost
            else:
                with pytest.raises(outcome):
                    driver.run()
        told = sum(entry["skipped"] for entry in logs if entry["event"] == "spark.data_lost")
        assert told == (0 if loss_fails else case.lost)


def plan_of(
    count: int, *, batch_size: int = 4, in_flight: int = 3, tags: str = "*", loss_fails: bool = True
) -> RangePlan:
    """A plan that knows its master."""
    return RangePlan(
        QueueRange(
            queue=MessageQueue("orders", "broker-a", 0),
            start=0,
            end=count,
            access=ACCESS,
            replicas=(Replica(0, ADDRESSES[0]),),
            fail_on_data_loss=loss_fails,
            subscription=tag_subscription("", tags, 0),
            pull=PullSettings(batch_size=batch_size, max_in_flight=in_flight),
        )
    )


def answer(code: ResponseCode, following: int, remark: str = "") -> RemotingCommand:
    """A broker's response with the next begin offset `following`."""
    return RemotingCommand(
        int(code), 0, 1, PullMessageResponseHeader(following, 0, 100).ext_fields(), b"", remark=remark
    )


def test_several_pulls_at_fixed_offsets_are_in_flight() -> None:
    """The number of pulls is limited. The last pull ends with the range."""
    plan = plan_of(10)
    assert asked(plan) == [(0, 4), (4, 4), (8, 2)]
    assert (asked(plan), plan.max_awaited_messages, plan.planned_end) == ([], 10, 10)


def test_new_pulls_are_sent_once_half_of_them_are_answered() -> None:
    """The unanswered pulls are at most half of the maximum number, and at least one."""
    cases: list[tuple[int, int]] = [(2, 1), (3, 2), (16, 8)]
    for in_flight, answers in cases:
        plan = plan_of(400, in_flight=in_flight)
        assert plan.should_add_spans
        asked(plan)
        for number in range(answers):
            assert not plan.should_add_spans
            plan.handle_response(answer(ResponseCode.SUCCESS, 4 * number + 4))
        assert plan.should_add_spans
        assert asked(plan) == [(4 * number, 4) for number in range(in_flight, in_flight + answers)]


def test_a_short_response_is_completed_and_shortens_the_next_spans() -> None:
    """Longer spans would meet the broker's byte limit too. A full response makes them longer again."""
    plan = plan_of(40)
    asked(plan)
    assert plan.handle_response(answer(ResponseCode.SUCCESS, 2)) == SettledRange(0, 2, has_messages=True)
    assert asked(plan) == [(2, 2)]
    assert plan.handle_response(answer(ResponseCode.SUCCESS, 4)) == SettledRange(2, 4, has_messages=True)
    assert asked(plan) == [(12, 4)]


def test_spans_become_as_short_as_the_brokers_responses() -> None:
    """If `batch_size` is above the broker's limit, only the first pulls in flight are cut short."""
    plan, limit, cut = plan_of(6400, batch_size=64), 32, 0
    pulls: dict[int, tuple[int, int]] = {}
    while plan.is_unfinished:
        pulls |= requests(plan)
        offset, most = pulls.pop(plan.spans[0].opaque or 0)
        cut += most > limit
        plan.handle_response(answer(ResponseCode.SUCCESS, offset + min(most, limit)))
    assert cut == 3


def test_messages_without_room_are_pulled_again() -> None:
    plan = plan_of(4)
    asked(plan)
    assert plan.handle_response(answer(ResponseCode.SUCCESS, 4), cut_at=3) == SettledRange(0, 3, has_messages=True)
    assert asked(plan) == [(3, 1)]


def test_one_pull_at_a_time() -> None:
    """This applies if a filter decides how far a response reaches, or if the group waits between pulls."""
    cases: list[tuple[int, str, ResponseCode]] = [
        (1, "*", ResponseCode.SUCCESS),
        (3, "a", ResponseCode.PULL_RETRY_IMMEDIATELY),
    ]
    for in_flight, tags, code in cases:
        plan = plan_of(10, in_flight=in_flight, tags=tags)
        assert asked(plan) == [(0, 4)]
        assert plan.handle_response(answer(code, 7)) == SettledRange(0, 7, has_messages=code == ResponseCode.SUCCESS)
        assert asked(plan) == [(7, 3)]


def test_a_response_beyond_the_range_settles_all_of_it() -> None:
    plan = plan_of(10, tags="a")
    asked(plan)
    assert plan.handle_response(answer(ResponseCode.PULL_NOT_FOUND, 50)) == SettledRange(0, 10, has_messages=False)
    assert not plan.is_unfinished


def test_an_operators_reset_does_not_affect_the_range() -> None:
    """The puller decides how to handle the reset. The span is pulled again."""
    plan = plan_of(4)
    asked(plan)
    assert plan.handle_response(answer(ResponseCode.PULL_OFFSET_MOVED, 77, "OFFSET_RESET")) == ResetByOperator(77)
    assert asked(plan) == [(0, 4)]


def test_a_failure_repeats_all_pulls_in_flight() -> None:
    plan = plan_of(10)
    asked(plan)
    plan.handle_response(answer(ResponseCode.SUCCESS, 4))
    plan.handle_failure(ProtocolError("no frame"), 0.0)
    assert plan.must_query_route
    assert plan.take_pause_seconds() > plan.take_pause_seconds() == 0
    assert asked(plan) == [(4, 4), (8, 2)]


def test_each_settled_range_restarts_the_patience() -> None:
    """The patience limits the time without any settled offset."""
    plan = plan_of(10)
    for second in (0.0, 50.0, 100.0, 150.0):
        plan.handle_failure(RemotingConnectError("master:1", "away"), second)
        plan.keep_known_replicas(RemotingConnectError("ns:1", "away"))
        asked(plan)
        assert isinstance(plan.handle_response(answer(ResponseCode.SUCCESS, plan.spans[0].low + 1)), SettledRange)
    plan.handle_failure(RemotingConnectError("master:1", "away"), 200.0)
    plan.handle_failure(RemotingConnectError("master:1", "still away"), 261.0)
    with pytest.raises(RemotingConnectError, match="still away"):
        plan.keep_known_replicas(RemotingConnectError("ns:1", "away"))


def test_a_loss_is_not_believed_while_the_route_is_unknown() -> None:
    """Another replica may have become the master."""
    plan = plan_of(4)
    asked(plan)
    moved = answer(ResponseCode.PULL_OFFSET_MOVED, 50)
    assert plan.handle_response(moved) is None
    away = RemotingConnectError("ns:1", "away")
    with pytest.raises(RemotingConnectError) as raised:
        plan.keep_known_replicas(away)
    plan.handle_failure(raised.value, 0.0)
    assert plan.must_query_route


def test_each_loss_needs_a_new_route_and_adjacent_losses_share_one() -> None:
    """Another master may be elected while a range is pulled. A loss across many spans needs one route query."""
    plan = plan_of(20, loss_fails=False)
    master = [Replica(0, ADDRESSES[0])]
    asked(plan)
    assert plan.handle_response(answer(ResponseCode.PULL_OFFSET_MOVED, 8)) is None
    plan.use_replicas(master)
    asked(plan)
    assert plan.handle_response(answer(ResponseCode.PULL_OFFSET_MOVED, 8)) == SettledRange(0, 4, has_messages=False)
    assert plan.handle_response(answer(ResponseCode.PULL_OFFSET_MOVED, 8)) == SettledRange(4, 8, has_messages=False)
    assert plan.handle_response(answer(ResponseCode.SUCCESS, 12)) == SettledRange(8, 12, has_messages=True)
    asked(plan)
    assert plan.handle_response(answer(ResponseCode.PULL_OFFSET_MOVED, 20)) is None
    assert plan.must_query_route
    plan.use_replicas(master)
    asked(plan)
    assert plan.handle_response(answer(ResponseCode.PULL_OFFSET_MOVED, 20)) == SettledRange(12, 16, has_messages=False)
    assert plan.lost_messages == 12


def test_a_master_that_is_new_in_the_route_is_pulled_from_first() -> None:
    """Only the master knows which messages the broker has."""
    master, slave = Replica(0, ADDRESSES[0]), Replica(1, ADDRESSES[1])
    plan = plan_of(4)
    plan.use_replicas([slave])
    plan.handle_failure(RemotingConnectError(slave.address, "away"), 0.0)
    plan.use_replicas([slave, master])
    assert plan.address == master.address
