"""SQL92 conditions: values and words for building them, and their evaluation."""

from __future__ import annotations

from rmqd.broker.filter.sql_condition import EvaluationError, compile_condition

VALUES = [
    *"0 1 -1 +1 5 05 1.0 1.5 -1.5 1e3 1d 1F .5 5. 0x10 0x1p4 abc ABC a true TRUE false yes NaN Infinity -0".split(),
    *"2147483647 2147483648 -2147483648 99999999999 9223372036854775807 9223372036854775808 1_000 12abc é".split(),
    *(" 1", "1 ", "a b", "'", "''", "it's", "-0.0"),
]
NAMES = ("a", "b", "c", "d", "TAGS", "A")
LITERALS = (
    "0 1 5 5L 10l 007 0L 2147483647 2147483648 99999999999 9223372036854775808 1.0 1.5 .5 5. 1e3 1E-3 1e400 0.0 "
    "'abc' 'a' '1' '1.5' 'it''s' '' 'é' TRUE false NULL true"
).split()
WORDS = "NOT AND OR BETWEEN IN IS NULL CONTAINS ( ) , = <> < > <= >= + - -- /* */ ' . # \n".split(" ")


def evaluate(condition: str, properties: dict[str, str]) -> object:
    """Return the value of a condition; "no answer" if Java throws an exception."""
    try:
        return compile_condition(condition)(properties)
    except EvaluationError:
        return "no answer"
