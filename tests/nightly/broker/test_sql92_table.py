"""SQL92 conditions: their results, and the errors of invalid conditions.

The first table has the results of RocketMQ 5.5.0. test_sql92.py compares random conditions with a real broker.
"""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqd.broker.filter.sql_condition import ExpressionError, compile_condition
from tests.nightly.broker.conditions import LITERALS, NAMES, VALUES, WORDS, evaluate


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        # one property, n = "5", s = "it's", d = "5.5", t = "true", huge = more than an int
        ("n = 5", True),
        ("n <> 5", False),
        ("n = '5'", True),
        ("5 = n", True),
        ("n > 4 AND n < 6 AND n >= 5 AND n <= 5", True),
        ("n = 5.0", True),
        ("n = 5L", True),
        ("n = 007", False),  # three integers: the condition ends after n = 0
        ("n > -6", True),
        ("n > +4", True),
        ("-n = 5", None),  # a property is a string, and strings have no negative
        ("d > 5.4", True),
        ("d > 5", "no answer"),  # "5.5" is not an integer
        ("d > 5 OR n = 5", "no answer"),
        ("n = 5 OR d > 5", True),  # the right side is not evaluated
        ("huge = 99999999999", True),
        ("huge > 5", "no answer"),
        ("huge > -2147483648", True),  # the negative of a long is also a long
        ("huge > -2147483647", "no answer"),
        ("n > huge", False),  # two strings are compared as doubles
        ("n < s", "no answer"),
        ("s = 'it''s'", True),
        ("S = 'it''s'", None),
        ("s = 5", "no answer"),
        ("t = TRUE", True),
        ("t = FALSE", False),
        ("TRUE = t", "no answer"),
        ("n = TRUE", False),
        ("(n = 5) = TRUE", True),
        ("(n = 5) = 5", False),
        ("n BETWEEN 5 AND 6", True),
        ("n NOT BETWEEN 5 AND 6", False),
        ("n BETWEEN -6 AND -5", False),
        ("n IN ('4', '5')", True),
        ("n NOT IN ('4', '5')", False),
        ("none IN ('4')", None),
        ("none NOT IN ('4')", None),
        ("none IS NULL", True),
        ("none IS NOT NULL", False),
        ("n IS NULL", False),
        ("n is not null", True),
        ("none = 5", None),
        ("none <> 5", None),
        ("5 = none", False),
        ("5 <> none", True),
        ("none > 5", None),
        ("NOT (none > 5)", None),
        ("none > 5 OR n = 5", True),
        ("none > 5 AND n = 5", None),
        ("none > 5 AND n = 6", False),
        ("NOT n = 5", False),  # (NOT n) = 5: NOT binds closer than =
        ("NOT (n = 5)", False),
        ("n = 6 OR n = 5 AND n = 6", False),
        ("(n = 6 OR n = 5) AND n = 5", True),
        ("s CONTAINS 't'", True),
        ("s NOT CONTAINS 't'", False),
        ("s STARTSWITH 'it'", True),
        ("s NOT STARTSWITH 'it'", False),
        ("s ENDSWITH '''s'", True),
        ("s NOT ENDSWITH 'x'", True),
        ("s CONTAINS ''", False),
        ("s NOT CONTAINS ''", False),
        ("none NOT CONTAINS 'x'", False),
        ("5 CONTAINS '5'", False),
        ("TRUE", True),
        ("NULL", None),
        ("n", False),
        ("none", None),
        ("n = 5 whatever follows", True),
        ("n = 5 /* a * comment **/ AND n = 6", False),
        ("n = 5 -- to the end of the line\nAND n = 6", False),
        ("n = 5 -- to the end of the text AND n = 6", True),
        ("\tn\r\n=\f5", True),
        ("$x = 1 OR _x = 1", None),
        ("trailing = 1.5", True),  # "1.5d"
        ("blank = 1.5", True),  # " 1.5 "
        ("hex = 16.0", True),  # "0x1p4"
        ("hex = 16", "no answer"),
        ("nan > 1e300", True),
        ("nan = nan", True),
        ("zero = -1.0", False),
    ],
)
def test_a_condition_has_the_result_of_rocketmq(condition: str, expected: object) -> None:
    properties = {"n": "5", "s": "it's", "d": "5.5", "t": "true", "huge": "99999999999", "trailing": "1.5d"}
    properties |= {"blank": " 1.5 ", "hex": "0x1p4", "nan": "NaN", "zero": "0"}
    assert evaluate(condition, properties) == expected


@pytest.mark.parametrize(
    ("condition", "text"),
    [
        ("a >", "the condition is wrong at character 4: end; expected a value"),
        ("", "the condition is wrong at character 1: end; expected a value"),
        ("a\n=\n>", "the condition is wrong at character 5: '>'; expected a value"),
        ("a IN (1)", "the condition is wrong at character 7: '1'; expected a string"),
        ("a IS 5", "the condition is wrong at character 6: '5'; expected NULL"),
        (
            "a NOT 5",
            "the condition is wrong at character 7: '5'; expected BETWEEN, IN, CONTAINS, STARTSWITH or ENDSWITH",
        ),
        ("a BETWEEN 1 OR 2", "the condition is wrong at character 13: 'OR'; expected AND"),
        ("a = + ) b", "the condition is wrong at character 7: ')'; expected a value"),
        ("a = 'x", 'the condition is wrong at character 5: "\'"; expected a word, a value or an operator'),
        ("a # 1", "the condition is wrong at character 3: '#'; expected a word, a value or an operator"),
        ("a = 1 .", "the condition is wrong at character 7: '.'; expected a word, a value or an operator"),
        ("'x'", "a value is not a condition; expected a comparison such as a > 5"),
        ("NOT 5", "a value is not a condition; expected a comparison such as a > 5"),
        ("a > 'x'", "a string or a boolean cannot be compared by >; expected a number or property"),
        ("TRUE > 1", "a string or a boolean cannot be compared by >; expected a number or property"),
        ("a = NULL", "NULL cannot be compared; expected IS NULL"),
        ("TRUE = 5", "a boolean cannot be compared with another constant"),
        ("5 IN ('a')", "IN needs a property on its left side"),
        ("a BETWEEN 5 AND 1", "the first bound of BETWEEN is above the second"),
        ("a BETWEEN NULL AND 5", "NULL cannot be a bound of BETWEEN"),
        ("a BETWEEN 'a' AND 5", "'a' is not an integer"),
        ("a BETWEEN 'a' AND TRUE", "a boolean cannot be compared with a string"),
        ("99999999999999999999 = a", "99999999999999999999 is too large"),
        ("0.0 < a", "0.0 is not in the range of a double"),
        ("1e999 = a", "1e999 is not in the range of a double"),
    ],
)
def test_an_invalid_condition_is_rejected(condition: str, text: str) -> None:
    with pytest.raises(ExpressionError) as error:
        compile_condition(condition)
    assert str(error.value) == text


def test_a_condition_with_too_many_levels_is_rejected() -> None:
    with pytest.raises(ExpressionError, match="nested too deeply"):
        compile_condition("(" * 100_000)


@pytest.mark.slow
@settings(deadline=None)
@given(st.lists(st.sampled_from([*WORDS, *LITERALS, *NAMES, "é", "\x00", '"']), max_size=12), st.data())
def test_random_conditions_raise_only_expression_errors(words: list[str], data: st.DataObject) -> None:
    separator = data.draw(st.sampled_from(["", " ", "\t\n"]))
    properties = data.draw(st.dictionaries(st.sampled_from(NAMES), st.one_of(st.sampled_from(VALUES), st.text())))
    with contextlib.suppress(ExpressionError):
        assert evaluate(separator.join(words), properties) in (True, False, None, "no answer")
