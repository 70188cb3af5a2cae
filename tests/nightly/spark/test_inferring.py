"""The schema that is inferred from bodies. Pure."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rmqd.spark.values.column_kinds import parse_schema
from rmqd.spark.values.fitting import MAX_INFERRED_FIELDS, TooManyFieldsError, converter_to, infer_json_kind

INFERRED: dict[str, tuple[list[Any], str]] = {
    "plain": (
        [{"id": 1, "paid": True, "name": "x", "share": 0.5}],
        "id bigint, paid boolean, name string, share double",
    ),
    "numbers": ([{"n": 1}, {"n": 1.5}, {"n": 2}], "n double"),
    "large": ([{"n": 2**63}], "n string"),
    "several kinds": ([{"n": 1}, {"n": "1"}, {"n": None}], "n string"),
    "null alone": ([{"n": None}], "n string"),
    "null first": ([{"n": None}, {"n": 1}], "n bigint"),
    "fields come": ([{"a": 1}, {"b": 2}], "a bigint, b bigint"),
    "array": ([{"a": []}, {"a": [1, None]}, {"a": [2.5]}], "a array<double>"),
    "empty array": ([{"a": []}], "a array<string>"),
    "mixed array": ([{"a": [1, {}]}], "a array<string>"),
    "struct": ([{"a": {"x": 1}}, {"a": {"y": [{"z": None}]}}], "a struct<x:bigint,y:array<struct<z:string>>>"),
    "empty struct": ([{"a": {}}], "a map<string,string>"),
    "struct or text": ([{"a": {"x": 1}}, {"a": "none"}], "a string"),
    "quoted": ([{"first name": 1, "a`b:": 2}], "`first name` bigint, `a``b:` bigint"),
    "names alike": ([{"id": 1, "ID": "x", "": 2}], "id bigint"),
}


@pytest.mark.parametrize(("documents", "ddl"), INFERRED.values(), ids=INFERRED)
def test_an_inferred_schema_fits_all_bodies(documents: list[Any], ddl: str) -> None:
    """Parsing it returns the same schema."""
    kind, told = infer_json_kind(json.dumps(document).encode() for document in documents)
    assert kind is not None
    assert (kind.fields_ddl, told) == (ddl, len(documents))
    assert parse_schema(ddl) == kind
    for document in documents:
        converter_to(kind)(document)


def test_bodies_that_are_not_objects_are_ignored() -> None:
    assert infer_json_kind([b"", b"{", b"[1]", b"1", b"null", b"\xff", b'{"a": NaN}', b"{}"]) == (None, 0)
    kind, told = infer_json_kind([b"[", b'{"a": 1}'])
    assert kind is not None
    assert (kind.fields_ddl, told) == ("a bigint", 1)


@pytest.mark.parametrize("levels", [101, 450, 2_000, 100_000])
@pytest.mark.parametrize(("begin", "end"), [(b"[", b"]"), (b'{"a":', b"}")], ids=["arrays", "objects"])
def test_bodies_that_are_too_deep_are_ignored(levels: int, begin: bytes, end: bytes) -> None:
    deep = b'{"a":' + begin * levels + b"1" + end * levels + b"}"
    kind, told = infer_json_kind([b'{"id":1}', deep, b'{"id":2}'])
    assert kind is not None
    assert (kind.fields_ddl, told) == ("id bigint", 2)


def test_too_many_field_names_are_refused() -> None:
    """Such names are data, and would become ever more columns. Reading stops at once."""
    just = {f"k{number}": 1 for number in range(MAX_INFERRED_FIELDS - 1)}  # one more field contains them
    kind, _ = infer_json_kind([json.dumps({"a": just}).encode()])
    assert kind is not None
    bodies = (json.dumps({"a": {f"k{number}": 1}}).encode() for number in range(10 * MAX_INFERRED_FIELDS))
    with pytest.raises(TooManyFieldsError, match="bodies have more than 2,000 fields"):
        infer_json_kind(bodies)
    assert len(list(bodies)) == 9 * MAX_INFERRED_FIELDS
    with pytest.raises(TooManyFieldsError):
        infer_json_kind([json.dumps({"a": [{f"k{number}": 1} for number in range(2 * MAX_INFERRED_FIELDS)]}).encode()])


def test_a_deep_schema_can_be_parsed_again() -> None:
    kind, told = infer_json_kind([b'{"a":' * 95 + b"1" + b"}" * 95])
    assert kind is not None
    assert told == 1
    assert parse_schema(kind.fields_ddl) == kind
