"""Comparison of the embedded broker with the real broker: all responses, field by field."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.nightly.comparison.bodies import decoded
from tests.nightly.comparison.differences import ACCEPTED, Accepted, Difference, compared, gone, open_ones
from tests.nightly.comparison.rules import flattened, generalised
from tests.nightly.comparison.script import STEPS
from tests.nightly.comparison.traffic import BROKER, NAME_SERVER, NO_ANSWER, Drive
from tests.rocketmq import ClusterSpec, RealCluster, release
from tests.rocketmq.fixtures import fresh_name


def test_both_brokers_answer_the_same(rocketmq: RealCluster, tmp_path: Path) -> None:
    """All differences between the responses must be accepted, and all accepted differences must occur."""
    if rocketmq.spec.version != release.DEFAULT:
        pytest.skip(f"the embedded broker is compared with RocketMQ {release.DEFAULT}")
    mark, now_ms = fresh_name("same", "m"), int(time.time() * 1000)
    embedded_spec = ClusterSpec(version=release.EMBEDDED)
    with (
        RealCluster.start(embedded_spec, tmp_path / "embedded") as embedded,
        ThreadPoolExecutor(2) as both,
    ):
        addresses = [{BROKER: side.broker.address, NAME_SERVER: side.nameserver} for side in (rocketmq, embedded)]
        runs = [both.submit(Drive(one, mark, now_ms).run, STEPS) for one in addresses]
        real, ours = (run.result() for run in runs)
    found = compared(real, ours, (addresses[0], addresses[1]))

    unanswered = [what for what, frame in real.items() if NO_ANSWER in frame]
    assert not unanswered, "the real broker responds to every request; otherwise the script is wrong"
    left = open_ones(found)
    assert not left, "\n".join(["what differs, and is not accepted:", *map(str, left)])
    assert not gone(found), f"accepted differences that no longer occur: {gone(found)}"


def test_step_names_are_unique() -> None:
    """Responses are compared, and differences accepted, by the name of the step."""
    names = [step.what for step in STEPS]

    assert sorted(names) == sorted(set(names))


def test_a_value_that_differs_is_found() -> None:
    """Missing and additional values are differences too."""
    real = {"step": {"code": 0, "fields": {"a": "1", "b": "2"}, "body": [{"c": 1}]}}
    embedded = {"step": {"code": 0, "fields": {"a": "1", "d": "2"}, "body": [{"c": 2}]}}

    found = compared(real, embedded, ({}, {}))

    assert {(one.path, one.real, one.embedded) for one in found} == {
        ("fields.b", "2", "(nothing)"),
        ("fields.d", "(nothing)", "2"),
        ("body[0].c", 1, 2),
    }


def test_accepted_differences_that_no_longer_occur_are_found() -> None:
    """This keeps the list of accepted differences current."""
    accepted = [Accepted("step", "remark", "its words are Python's"), Accepted("other", "*", "gone")]
    found = [Difference("step", "remark", "a", "b"), Difference("step", "code", 1, 2)]

    assert open_ones(found, accepted) == found[1:]
    assert gone(found, accepted) == accepted[1:]


@pytest.mark.parametrize(
    ("value", "general"),
    [
        (1795280165554, "<time>"),
        ({"time": "1795280165554", "far": 4000000000000, "n": 5}, {"time": "<time>", "far": 4000000000000, "n": 5}),
        ("at 127.0.0.1:1234 and 127.0.0.1:5678", "at <broker> and <client>"),
        ({"msgId": "7F00000100006FB900000000000000D5"}, {"msgId": "<id>"}),
        ({"commitLogOffset": 77, "queueOffset": 77}, {"commitLogOffset": "<of the broker>", "queueOffset": 77}),
        ([3, 1, 2], [1, 2, 3]),
    ],
)
def test_only_values_that_cannot_be_equal_are_generalised(value: Any, general: Any) -> None:
    """These are times, ids, addresses, positions in the commit log and the order of lists."""
    assert generalised(value, {"broker": "127.0.0.1:1234"}) == general


def test_the_format_of_a_body_is_detected() -> None:
    """The keys in Java's loose JSON may be numbers and objects."""
    assert decoded(b"") is None
    assert decoded(b'{"a":{0:"b"}}') == {"bare keys": True, "a": {"0": "b"}}
    assert decoded(b'{"t":{{"q":1,"b":"x"}:{"o":5}}}') == {"bare keys": True, "t": {'{"b": "x", "q": 1}': {"o": 5}}}
    assert decoded(b"a=b\nc=d=e\n") == {"a": "b", "c": "d=e"}
    assert flattened({"a": [{"b": 1}], "c": {}}) == {"a[0].b": 1, "c": {}}


def test_every_accepted_difference_has_a_reason() -> None:
    """The texts are shown in a table of docs/proof/conformance.md, so they must not contain `|`."""
    for one in ACCEPTED:
        assert one.why
        assert "|" not in one.why + one.what + one.path
