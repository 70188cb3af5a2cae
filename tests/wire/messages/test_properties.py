"""The properties string."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqd.errors import InvalidMessageError, ProtocolError
from rmqd.wire.messages.properties import format_properties, parse_properties

WORD = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1)


@given(st.dictionaries(WORD, WORD))
def test_round_trip(properties: dict[str, str]) -> None:
    text = format_properties(properties)
    assert parse_properties(text) == parse_properties(text.encode()) == properties


READ = [
    ("", {}),
    ("a\x01b\x02", {"a": "b"}),
    ("a\x01b", {"a": "b"}),
    ("a\x01b\x02\x02\x02c\x01d\x02", {"a": "b", "c": "d"}),
    ("a\x01\x02\x01b\x02c\x02", {}),
    ("a\x01b\x01c\x02", {"a": "b\x01c"}),
    ("a\x01b\x02a\x01c\x02", {"a": "c"}),
]


def test_properties_are_read_as_in_java(subtests: pytest.Subtests) -> None:
    """A missing separator at the end is valid. Entries without name or value are dropped."""
    for text, expected in READ:
        with subtests.test(text=text):
            assert parse_properties(text) == expected


def test_empty_values_are_not_written() -> None:
    assert format_properties({"a": "", "b": "c"}) == "b\x01c\x02"


def test_names_and_values_with_separators_are_refused(subtests: pytest.Subtests) -> None:
    for properties in ({"": "x"}, {"a\x01": "x"}, {"a": "x\x02"}, {"a": "x\x01"}):
        with subtests.test(properties=properties), pytest.raises(InvalidMessageError, match="property"):
            format_properties(properties)


def test_properties_that_are_not_utf8_are_protocol_errors() -> None:
    with pytest.raises(ProtocolError):
        parse_properties(b"a\x01\xff\x02")
