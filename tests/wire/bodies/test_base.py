"""The JSON that results from the fields, types and annotations of a body's class."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field
from threading import Barrier
from typing import Annotated, Any, ClassVar

import pytest

from rmqd.errors import ProtocolError
from rmqd.wire.bodies.json_body import Body, QueueId, Topic, WireOptions
from rmqd.wire.fields import WireName
from rmqd.wire.message_queue import MessageQueue

QUEUE = MessageQueue("T", "b", 3)


class Part(Body, called="a part"):
    """A body inside another body."""

    size: int
    rate: float = 0.0


class Whole(Body, kw_only=True):
    """A body with one field of every kind."""

    constants: ClassVar[Mapping[str, Any]] = {"middle": {}}

    group_name: str
    other_name: Annotated[str, WireName("z")] = "default"
    ended: Annotated[str | None, WireOptions(last=True)] = None
    model: Annotated[str, WireOptions(absent="")] = "AVG"
    is_on: bool = True
    part: Part | None = None
    parts: tuple[Part, ...]
    tags: frozenset[str] = frozenset()
    by_topic: Mapping[Topic, Part] = field(default_factory=dict)
    lists: dict[Topic, tuple[str, ...]] = field(default_factory=dict)
    offsets: dict[MessageQueue, int]
    ids: dict[QueueId, QueueId] = field(default_factory=dict)
    producers: Annotated[tuple[str, ...], WireOptions(read=lambda value, what: tuple(value), write="".join)] = ()


FULL = Whole(
    group_name="g",
    ended="e",
    part=Part(1, 0.5),
    parts=(Part(2),),
    tags=frozenset({"b", "a"}),
    by_topic={"T": Part(3)},
    lists={"T": ("x",)},
    offsets={QUEUE: 7},
    ids={0: 1},
    producers=("p", "q"),
)
FULL_JSON = (
    b'{"byTopic":{"T":{"rate":0.0,"size":3}},"groupName":"g","ids":{"0":1},"isOn":true,"lists":{"T":["x"]},"middle":{},'
    b'"model":"AVG","offsets":{{"brokerName":"b","queueId":3,"topic":"T"}:7},"part":{"rate":0.5,"size":1},'
    b'"parts":[{"rate":0.0,"size":2}],"producers":"pq","tags":["a","b"],"z":"default","ended":"e"}'
)


def test_fields_are_sorted_by_name_except_those_marked_as_last() -> None:
    assert FULL.to_json() == FULL_JSON
    assert Whole.from_json(FULL_JSON) == FULL


def test_none_is_not_written() -> None:
    bare = Whole(group_name="g", parts=(), offsets={})
    assert bare.to_json() == (
        b'{"byTopic":{},"groupName":"g","ids":{},"isOn":true,"lists":{},"middle":{},"model":"AVG","offsets":{},'
        b'"parts":[],"producers":"","tags":[],"z":"default"}'
    )


@pytest.mark.parametrize("nulls", [b"", b',"parts":null,"offsets":null,"z":null,"model":null,"isOn":null,"part":null'])
def test_a_missing_or_null_field_has_its_default(nulls: bytes) -> None:
    """Collections without a default are empty, and `absent` overrides the default of the class."""
    assert Whole.from_json(b'{"groupName":"g","unknown":[1]' + nulls + b"}") == Whole(
        group_name="g", parts=(), offsets={}, model=""
    )


def test_integers_and_keys_may_be_strings() -> None:
    key = rb'"{\"topic\":\"T\",\"brokerName\":\"b\",\"queueId\":\"3\"}"'
    body = b'{"groupName":"g","part":{"size":"5"},"ids":{1:"2"},"offsets":{' + key + b':"7"}}'
    read = Whole.from_json(body)
    assert (read.part, read.ids, read.offsets) == (Part(5), {1: 2}, {QUEUE: 7})


WRONG_FIELDS = [
    (b'"x":1', "groupName must be a string, not None"),
    (b'"groupName":1', "groupName must be a string, not 1"),
    (b'"groupName":"g","z":2', "z must be a string, not 2"),
    (b'"groupName":"g","isOn":"true"', "isOn must be true or false, not 'true'"),
    (b'"groupName":"g","part":[]', r"a part must be an object, not \[\]"),
    (b'"groupName":"g","part":{}', "size must be an integer of 64 bits, not None"),
    (b'"groupName":"g","part":{"size":1,"rate":null}', "rate must be a number, not None"),
    (b'"groupName":"g","parts":[7]', "a part must be an object, not 7"),
    (b'"groupName":"g","parts":{}', "parts must be a list, not {}"),
    (b'"groupName":"g","tags":[1]', "tags must be a string, not 1"),
    (b'"groupName":"g","byTopic":{1:{}}', "a topic must be a string, not 1"),
    (b'"groupName":"g","lists":{"T":7}', "T must be a list, not 7"),
    (b'"groupName":"g","ids":{"1":true}', "a queue id must be an integer of 64 bits, not True"),
    (b'"groupName":"g","offsets":{"{}":1}', "topic must be a string, not None"),
]


def test_an_error_names_the_field_and_shows_its_value(subtests: pytest.Subtests) -> None:
    for fields, text in WRONG_FIELDS:
        with subtests.test(fields=fields), pytest.raises(ProtocolError, match=f"^{text}$"):
            Whole.from_json(b"{" + fields + b"}")


def test_threads_may_create_the_first_objects_of_a_class_at_once() -> None:
    """The methods of a class are made when its first object is created."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            for _ in range(20):

                class Fresh(Body):
                    names: tuple[str, ...] = field(default_factory=tuple)
                    size: int = 0

                together = Barrier(4)
                made = [*threads.map(lambda size: (together.wait(), Fresh(size=size))[1], range(4))]  # noqa: B023
                assert made == [Fresh((), size) for size in range(4)]
    finally:
        sys.setswitchinterval(interval)
