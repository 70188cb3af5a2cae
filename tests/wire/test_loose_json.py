"""fastjson's dialect of JSON."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqd.errors import ProtocolError
from rmqd.wire.loose_json import MAX_DEPTH, ObjectKey, dumps, loads
from tests.wire.golden_frames import command

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
OBJECT_KEYS = st.dictionaries(st.text(), SCALARS, max_size=3).map(ObjectKey.of)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text() | OBJECT_KEYS, inner, max_size=4),
    max_leaves=20,
)


@given(VALUES)
def test_round_trip(value: object) -> None:
    assert loads(dumps(value)) == value


@given(VALUES)
def test_strict_json_is_read_as_the_json_module_reads_it(value: object) -> None:
    text = dumps(value)
    try:
        strict = json.loads(text)
    except ValueError:
        return
    assert loads(text) == strict


WRITTEN = [
    ('{0:"a"}', {0: "a"}),
    ('{-1:"a",1.5:2}', {-1: "a", 1.5: 2}),
    ("{true:1,null:2}", {True: 1, None: 2}),
    ('{{"b":1,"a":"x"}:5}', {ObjectKey.of({"a": "x", "b": 1}): 5}),
    ('{ { "a" : 1 } : [ { 2 : {} } ] }', {ObjectKey.of({"a": 1}): [{2: {}}]}),
    ("{{}:1}", {ObjectKey(): 1}),
    ("{0:[]}", {0: []}),
    ('{1:"\\u00e4\\n","x":1e3}', {1: "ä\n", "x": 1000.0}),
    ("{0:1,0:2}", {0: 2}),
    (
        '{{"q":1}:{"a":2},{"q":1}:{"a":3} , { "q":2 }:{}}',
        {ObjectKey.of({"q": 1}): {"a": 3}, ObjectKey.of({"q": 2}): {}},
    ),
    (
        '{{"q":1}:{"a":2},{"q":"}\\""}:{"a":[]}}',
        {ObjectKey.of({"q": 1}): {"a": 2}, ObjectKey.of({"q": '}"'}): {"a": []}},
    ),
    ('{{"q":"{"}:-1,{"q":2}:{0:1}}', {ObjectKey.of({"q": "{"}): -1, ObjectKey.of({"q": 2}): {0: 1}}),
]


def test_fastjson_output_is_read(subtests: pytest.Subtests) -> None:
    for text, expected in WRITTEN:
        with subtests.test(text=text):
            assert loads(text) == expected


def test_object_key_can_be_converted_to_a_dict() -> None:
    (key,) = loads('{{"queueId":0,"topic":"T"}:1}')
    assert dict(key) == {"topic": "T", "queueId": 0}


def test_object_keys_are_written_as_java_needs_them() -> None:
    """They are written as objects. For a string that contains JSON, Java would raise an exception."""
    recorded = command("push_consumer_status_221_reply").body
    assert dumps(loads(recorded)) == recorded


REFUSED = [
    "",
    " ",
    "{",
    "{0",
    "{0:",
    "{0:1",
    "{0:1,",
    "{0:1,}",
    "{,}",
    "{0 1}",
    "{0:1}}",
    "{0:1} x",
    "[0:1]",
    "{a:1}",
    "{'a':1}",
    "{[1]:2}",
    '{{"a":[1]}:2}',
    '{{"a":{}}:2}',
    '{0:"',
    '{0:"\n"}',
    "{0:01x}",
    "{0:NaN}",
    "{0:-}",
    "NaN",
    "[Infinity]",
    "{0:" + "9" * 5000 + "}",
    '"\\ud800"',
    '{0:"\\ud800"}',
    '{"\\udc00":0}',
    "tru",
    "{0:tru}",
    "\ufeff{}",
]


def test_anything_else_is_a_protocol_error(subtests: pytest.Subtests) -> None:
    for text in REFUSED:
        with subtests.test(text=text), pytest.raises(ProtocolError):
            loads(text)


def test_number_keys_are_written_with_or_without_quotes() -> None:
    value = {1: {2: [{3: "x"}]}, "k": True}
    assert dumps(value) == b'{"1":{"2":[{"3":"x"}]},"k":true}'
    assert dumps(value, bare_keys=True) == b'{1:{2:[{3:"x"}]},"k":true}'
    assert loads(dumps(value, bare_keys=True)) == value


def test_bytes_that_are_not_utf8_are_protocol_errors() -> None:
    with pytest.raises(ProtocolError):
        loads(b'{"a":"\xff"}')


def test_nesting_is_bounded(subtests: pytest.Subtests) -> None:
    for opening in ("[", '{"a":', "{0:", "{", '[{"a":'):
        with subtests.test(opening=opening):
            for depth in (MAX_DEPTH + 1, 2000, 200_000):
                with pytest.raises(ProtocolError):
                    loads(opening * depth)


def test_the_deepest_allowed_nesting_is_read_in_both_dialects() -> None:
    text = "[" * MAX_DEPTH + "]" * MAX_DEPTH
    assert dumps(loads(text)).decode() == text
    loose = "{0:" * MAX_DEPTH + "1" + "}" * MAX_DEPTH
    assert 0 in loads(loose)
    for deeper in (f"[{text}]", f"{{0:{loose}}}"):
        with pytest.raises(ProtocolError, match="deeper"):
            loads(deeper)


def test_many_values_side_by_side_do_not_count_as_nesting() -> None:
    assert len(loads("[" + ",".join(["[]"] * 1000) + "]")) == 1000


@given(st.text(alphabet='{}[]:,"0159-.eEtrufalsn\\ ', max_size=40))
def test_any_text_is_read_or_a_protocol_error(text: str) -> None:
    with contextlib.suppress(ProtocolError):
        loads(text)
