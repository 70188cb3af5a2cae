"""`cdc`: reasons for messages that are not row changes, and invalid options.

Changes are in tests/handlers/test_cdc.py.
"""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import Any

from rmqd_handlers.cdc.pipeline import Options
from tests.handlers.options import refused_otherwise
from tests.handlers.test_cdc import DEBEZIUM, GIVEN, TIME_MS, canal, debezium, decoder


def reason(message: Any, **options: Any) -> str:
    return decoder(**options).reason(message if isinstance(message, bytes) else json.dumps(message).encode())


def canal_of_id(number: bytes) -> bytes:
    """A message whose key is a number in a notation that our JSON libraries do not write."""
    return json.dumps(canal("INSERT", {"id": None})).encode().replace(b'"id": null', b'"id": ' + number)


BAD: dict[str, tuple[Any, dict[str, Any], str]] = {
    "no JSON": (b"{", {}, "not valid JSON: "),
    "not UTF-8": (b"\xff", {}, "not valid JSON: "),
    "no object": ([1], {}, "the message is not an object"),
    "other type": ({"type": "SHOUT"}, {}, "type is not one of Canal's types; expected INSERT, "
    "UPDATE, DELETE, "),
    "no type": ({"id": 1}, {}, "type is not one of Canal's types"),
    "emptied": (canal("TRUNCATE", isDdl=True, sql="TRUNCATE TABLE orders"), {},
                "shop.orders was emptied (TRUNCATE): this event does not name the rows, so the copy keeps them; "
                "delete them there by hand, and set bad_rows: leave_out to continue"),
    "dropped": (canal("ERASE", isDdl=True), {}, "shop.orders was dropped"),
    "no rows": (canal("INSERT"), {}, "data is not an array of rows"),
    "no row": (canal("INSERT", data=["x"]), {}, "a row of data is not an object"),
    "no time": (canal("INSERT", {"id": "1"}, es=None, ts=None), {}, "es is null, not a whole number"),
    "no key": (canal("INSERT", {"name": "x"}), {}, "the row has no key: id is missing"),
    "no key to delete": (canal("DELETE", {"name": "x"}), {}, "the row has no key: id is missing"),
    "no number": (canal("INSERT", {"id": "x"}), {}, "id: a text of 1 character is not a valid bigint"),
    "too large": (canal("INSERT", {"id": str(2**63)}), {}, "id: a text of 19 characters is not a valid bigint"),
    "endless": (canal_of_id(b"3e200000000"), {},
                "id: a number is not a valid bigint"),
    "an exponent that Python refuses": (canal_of_id(b"1e9999999999999999999"), {}, "not valid JSON: the exponent"),
    "a half": (canal_of_id(b"1.5"), {},
               "id: a number is not a valid bigint"),
    "Python's number": (canal("INSERT", {"id": "1_0"}), {}, "id: a text of 3 characters is not a valid bigint"),
    "Python's decimal": (canal("INSERT", {"id": "1", "amount": "1_0"}), {}, "amount: a text of 3 characters is not a"),
    "Python's double": (canal("INSERT", {"id": "1", "share": "1_0"}), {}, "share: a text of 3 characters is not a "
    "valid"),
    "no finite number": (canal("INSERT", {"id": "1", "share": "nan"}), {}, "share: a text of 3 characters is not a"),
    "infinite": (canal("INSERT", {"id": "1", "share": "1e400"}), {}, "share: a text of 5 characters is not a valid"),
    "digits": (canal("INSERT", {"id": "1", "amount": "1.255"}), {}, "amount: a text of 5 characters has more digits"),
    "too many digits": (canal("INSERT", {"id": "1", "amount": "1e40"}), {},
                        "amount: a text of 4 characters has more digits than decimal(12,2)"),
    "boolean": (canal("INSERT", {"id": "1", "paid": "2"}), {}, "paid: a text of 1 character is not a valid boolean"),
    "day": (canal("INSERT", {"id": "1", "day": "yesterday"}), {}, "day: a text of 9 characters is not a valid date"),
    "time": (canal("INSERT", {"id": "1", "at": "noon"}), {}, "at: a text of 4 characters is not a valid timestamp"),
    "structure": (canal("INSERT", {"id": "1", "share": [1]}), {}, "share: an array is not a valid double"),
    "no op": ({"payload": {"after": {}}}, DEBEZIUM, "op is not one of Debezium's operations; expected "
    "c, u, d, r, t"),
    "no source": ({"op": "c"}, DEBEZIUM, "source is not an object"),
    "truncated": (debezium("t"), DEBEZIUM, "public.orders was emptied (op t): this event does not name the rows"),
    "no before": (debezium("d"), DEBEZIUM, "before is not an object"),
    "no after": (debezium("c"), DEBEZIUM, "after is not an object"),
    "units": (debezium("c", None, {"id": 1, "at": TIME_MS}), DEBEZIUM, "at: a whole number is a time in unknown units"),
    "bytes": (debezium("c", None, {"id": 1, "amount": "BOI="}), DEBEZIUM,
              "amount: a text of 4 characters is not a number; if it is base64, set decimal.handling.mode=string in"),
    "not logged": (debezium("u", None, {"id": 1, "name": "__debezium_unavailable_value"}), DEBEZIUM,
                   "name: the source did not log this large value"),
}  # fmt: skip


def test_each_message_that_is_not_a_change_has_a_reason() -> None:
    told = {name: reason(message, **options) for name, (message, options, _) in BAD.items()}
    assert {name: text for name, text in told.items() if not text.startswith(BAD[name][2])} == {}


def test_a_reason_contains_no_values_of_the_body() -> None:
    """Reasons are logged, so they contain no value of a column or of another field."""
    secret = "4111-1111-1111-1111"
    whole = int(secret.replace("-", ""))
    number = Decimal("4111.1111111111111111")
    for column in ("id", "amount", "paid", "share", "day", "at"):
        for value in (secret, [secret], {secret: secret}):
            told = reason(debezium("c", None, {"id": 1, column: value}), **DEBEZIUM)
            assert told.startswith(f"{column}: "), told
            assert "4111" not in told
    for message, options in (
        (canal(secret), {}),
        (canal("INSERT", {"id": "1"}, es=secret), {}),
        (canal("TRUNCATE", sql=secret), {}),
        (debezium(secret), DEBEZIUM),
        (debezium("c", None, {"id": 1}, ts_ms=secret), DEBEZIUM),
        (debezium("c", None, {"id": 1, "amount": str(number)}), DEBEZIUM),
        (debezium("c", None, {"id": 1, "at": whole}), DEBEZIUM),
        (f'{{"{secret}'.encode(), {}),
    ):
        told = reason(message, **options)
        assert told
        assert "4111" not in told


def test_a_change_has_no_reason() -> None:
    assert reason(canal("INSERT", {"id": "1"})) == ""


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no tables": ({"tables": []}, "at least 1 item"),
    "no database": ({"tables": ["shop.orders", "orders"]}, "'orders' matches no table, because it has no database"),
    "no column": ({"schema": "id"}, "'id' is not a column; expected a name and one of tinyint, "),
    "no columns": ({"schema": " "}, "no columns; expected"),
    "no type": ({"schema": "id array"}, "id: array is not a valid type; expected tinyint, "),
    "twice": ({"schema": "id int, ID int"}, "duplicate column ID"),
    "decimal": ({"schema": "id decimal(39,2)"}, "id has too many digits; expected at most 38"),
    "taken": ({"schema": "id int, _deleted boolean"}, "_deleted: reserved for a column that every row has"),
    "key": ({"keys": ["no"]}, "keys: no is not in schema, which has id, name"),
    "position": ({"order": "position"}, "order: position is not possible with canal"),
    "unit": ({"time_unit": "milliseconds"}, "time_unit is not possible with canal"),
}


def test_invalid_options_are_refused() -> None:
    wrong = [(options, "(?s)" + re.escape(expected)) for options, expected in REFUSED.values()]
    assert refused_otherwise(Options, wrong, **GIVEN) == []
