"""Problems of failing handlers, and the rates of recent results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count

import pytest

from rmqd.consumer.canary import CANARY_VARIANT, Canary
from rmqd.consumer.consumer_options import CanaryOptions
from rmqd.consumer.health.group_status import MIN_ATTEMPTS, MIN_FAILING_SECONDS, POLL_SECONDS, RecentAttempts
from rmqd.consumer.stats.counters import TopicStats
from tests.clock import ManualClock
from tests.consumer.blocks import block_of
from tests.consumer.groups import GROUP, group_options, handler_of

MESSAGES = [block_of([0], properties={"UNIQ_KEY": f"M{number}"}).messages[0] for number in range(7)]


class Group:
    """A group whose counters a test changes, polled every two seconds."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.stats = TopicStats("orders", is_retry=False)
        self.results = RecentAttempts(self.clock)
        self.numbers = count(1)

    def goes_on(self, seconds: float, step: Callable[[], None] = lambda: None) -> None:
        for _ in range(round(seconds / POLL_SECONDS)):
            self.clock.turn(POLL_SECONDS)
            step()
            self.results.poll(self.stats.snapshots())

    def succeeds(self, times: int = 10) -> None:
        self.stats.acked += times

    def fails(self, times: int = 10, of_one: bool = False) -> None:
        for _ in range(times):
            message = MESSAGES[0 if of_one else next(self.numbers) % len(MESSAGES)]
            self.stats.count_exception(KeyError("city"), "KeyError('city')", message, self.clock.wall())
            self.stats.count("retried")

    def mixed(self, succeeded: int, failed: int) -> None:
        self.succeeds(succeeded)
        self.fails(failed)

    @property
    def cause(self) -> str:
        return "" if self.results.problem is None else self.results.problem.cause


@pytest.fixture
def group() -> Group:
    return Group()


def test_a_handler_that_always_fails_is_a_problem_until_it_succeeds(group: Group) -> None:
    """The handler may have worked before. The evidence has its last error."""
    group.goes_on(600, group.succeeds)
    assert group.cause == ""
    group.goes_on(MIN_FAILING_SECONDS + 2 * POLL_SECONDS, group.fails)
    assert group.cause == "failing_handler"
    assert group.results.problem is not None
    assert "KeyError('city')" in group.results.problem.evidence
    group.goes_on(3600)
    assert group.cause == "failing_handler", "nothing has shown that it works"
    group.goes_on(POLL_SECONDS, group.succeeds)
    assert group.cause == ""


def test_one_message_that_always_fails_is_a_poison_message(group: Group) -> None:
    """On an idle topic nothing else shows that the handler is broken. The next step names the message."""
    for _ in range(5):
        group.goes_on(POLL_SECONDS, lambda: group.fails(1, of_one=True))
        group.goes_on(60)
    assert group.results.problem is not None
    assert (group.cause, MESSAGES[0].msg_id in group.results.problem.next) == ("poison_message", True)
    assert "all 5 failed attempts were at message" in group.results.problem.evidence
    group.goes_on(POLL_SECONDS, lambda: group.fails(1))
    assert group.cause == "failing_handler"


def test_a_failing_canary_is_not_a_problem_of_the_handler(group: Group) -> None:
    """Failures in half of its attempts are enough. An operator ends the problem by stopping the canary."""
    options = group_options(canary=CanaryOptions(0.3, "keys", "live"))
    canary = Canary(handler_of(print), options, group.clock)
    of_canary, group.stats = RecentAttempts(group.clock, GROUP, canary), TopicStats("orders", False, CANARY_VARIANT)
    for _ in range(30):
        group.goes_on(POLL_SECONDS, lambda: group.mixed(1, 2))
        of_canary.poll(group.stats.snapshots())
    assert of_canary.problem is not None
    assert group.cause == ""
    assert of_canary.problem.evidence.startswith("the canary testing gets 30% of the messages, and 60 of its attempts")
    assert f"`rmqd canary {GROUP} --stop`" in of_canary.problem.next
    canary.apply_options(replace(options, canary=CanaryOptions(0.0, "keys", "live")))
    assert of_canary.problem is None


def test_a_short_failure_is_not_a_problem(group: Group) -> None:
    """A server may be restarting."""
    group.goes_on(MIN_FAILING_SECONDS - 2 * POLL_SECONDS, group.fails)
    group.goes_on(POLL_SECONDS, group.succeeds)
    group.goes_on(MIN_FAILING_SECONDS, group.fails)
    assert group.cause == ""


def test_a_handler_that_fails_a_third_of_its_attempts_is_not_a_problem(group: Group) -> None:
    """Its messages are retried, and the group makes progress."""
    group.goes_on(600, lambda: group.mixed(20, 10))
    assert group.cause == ""


def test_three_failed_attempts_are_a_problem_even_on_a_quiet_topic(group: Group) -> None:
    """Two failures may be of one message. On a quiet topic the third may follow a minute later."""
    for _ in range(MIN_ATTEMPTS - 1):
        group.goes_on(POLL_SECONDS, lambda: group.fails(1))
        group.goes_on(60)
    assert group.cause == ""
    group.goes_on(POLL_SECONDS, lambda: group.fails(1))
    assert group.cause == "failing_handler"


def test_an_attempt_counts_once_although_its_message_is_settled_later(group: Group) -> None:
    """The error is counted when the handler raises, and the result when the broker has the retry."""
    error = KeyError("city")
    for number in range(1, MIN_ATTEMPTS + 1):
        assert group.cause == "", number
        group.goes_on(POLL_SECONDS, lambda: group.stats.count_exception(error, "text", MESSAGES[0], group.clock.wall()))
        group.goes_on(POLL_SECONDS, lambda: group.stats.count("retried"))
        group.goes_on(60)
    assert group.results.problem is not None
    assert f"all {MIN_ATTEMPTS} failed attempts were at message" in group.results.problem.evidence


def test_rates_cover_the_last_minute(group: Group) -> None:
    """Attempts, failed calls and retries per second."""
    group.goes_on(600, lambda: group.succeeds(20))
    group.goes_on(60, lambda: group.mixed(20, 4))
    rates = group.results.rates(group.stats.snapshots())
    assert rates["handled"] == pytest.approx(12, abs=1)
    assert rates["failed"] == pytest.approx(2, abs=0.2)
    assert rates["retried"] == pytest.approx(2, abs=0.2)
    assert rates["dead_lettered"] == 0
    group.goes_on(120)
    assert group.results.rates(group.stats.snapshots())["handled"] == 0
