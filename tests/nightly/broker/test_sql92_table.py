"""SQL92 conditions: what they mean for which properties, and what is said of those that are none.

The tables are answers of RocketMQ 5.5.0. test_sql92.py compares random conditions with a real broker.
"""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqd.broker.filter.sql_lexer import ExpressionError
from rmqd.broker.filter.sql_parser import compile_condition
from rmqd.broker.filter.sql_values import plain_text
from tests.nightly.broker.conditions import LITERALS, NAMES, VALUES, WORDS, evaluate

PARSE = "org.apache.rocketmq.filter.parser.ParseException: "
LEXICAL = "org.apache.rocketmq.filter.parser.TokenMgrError: Lexical error at line "
RUNTIME = "java.lang.RuntimeException: "

OPERANDS = """
Was expecting one of:
    "NOT" ...
    "TRUE" ...
    "FALSE" ...
    "NULL" ...
    <DECIMAL_LITERAL> ...
    <FLOATING_POINT_LITERAL> ...
    <STRING_LITERAL> ...
    <ID> ...
    "(" ...
    "-" ...
    "+" ...
    """
OPERANDS_WITHOUT_PLUS = OPERANDS.replace('    "+" ...\n', "")


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
        ("n = 007", False),  # three integers: 0, and what is never looked at
        ("n > -6", True),
        ("n > +4", True),
        ("-n = 5", None),  # a property is a string, which has no negative
        ("d > 5.4", True),
        ("d > 5", "no answer"),  # "5.5" is no integer
        ("d > 5 OR n = 5", "no answer"),
        ("n = 5 OR d > 5", True),  # the right side is not asked
        ("huge = 99999999999", True),
        ("huge > 5", "no answer"),
        ("huge > -2147483648", True),  # the negative of a long is one, too
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
def test_a_condition(condition: str, expected: object) -> None:
    properties = {"n": "5", "s": "it's", "d": "5.5", "t": "true", "huge": "99999999999", "trailing": "1.5d"}
    properties |= {"blank": " 1.5 ", "hex": "0x1p4", "nan": "NaN", "zero": "0"}
    assert evaluate(condition, properties) == expected


@pytest.mark.parametrize(
    ("condition", "remark"),
    [
        ("a >", f'{PARSE}Encountered "<EOF>" at line 1, column 3.{OPERANDS}'),
        ("a = ", f'{PARSE}Encountered "<EOF>" at line 1, column 4.{OPERANDS}'),
        ("", f'{PARSE}Encountered "<EOF>" at line 0, column 0.{OPERANDS}'),
        ("a\n=\n>", f'{PARSE}Encountered " ">" "> "" at line 3, column 1.{OPERANDS}'),
        (
            "a IN (1)",
            f'{PARSE}Encountered " <DECIMAL_LITERAL> "1 "" at line 1, column 7.\nWas expecting:\n'
            "    <STRING_LITERAL> ...\n    ",
        ),
        (
            "a IS 5",
            f'{PARSE}Encountered " <DECIMAL_LITERAL> "5 "" at line 1, column 6.\nWas expecting one of:\n'
            '    "NOT" ...\n    "NULL" ...\n    ',
        ),
        (
            "a NOT 5",
            f'{PARSE}Encountered " "NOT" "NOT "" at line 1, column 3.\nWas expecting one of:\n    "BETWEEN" ...\n'
            '    "IN" ...\n    "CONTAINS" ...\n    "STARTSWITH" ...\n    "ENDSWITH" ...\n    ">" ...\n    ">=" ...\n'
            '    "<" ...\n    "<=" ...\n    ',
        ),
        (
            "a BETWEEN 1 OR 2",
            f'{PARSE}Encountered " "OR" "OR "" at line 1, column 13.\nWas expecting:\n    "AND" ...\n    ',
        ),
        (
            "a = + ) b",
            f'{PARSE}Encountered " "+" "+ "" at line 1, column 5.{OPERANDS_WITHOUT_PLUS}',
        ),
        ("'x'", f"{PARSE}Expression will not result in a boolean value: 'x'"),
        ("NOT 5", f"{PARSE}Expression will not result in a boolean value: 5"),
        ("-1.5", f"{PARSE}Expression will not result in a boolean value: (- 1.5)"),
        ("a = 'x", LEXICAL + '1, column 7.  Encountered: <EOF> after : "\\\'x"'),
        ("a # 1", LEXICAL + '1, column 3.  Encountered: "#" (35), after : ""'),
        ("a.b = 1", LEXICAL + '1, column 3.  Encountered: "b" (98), after : "."'),
        ("a = 1 .", LEXICAL + '1, column 8.  Encountered: <EOF> after : ""'),
        ("a > 'x'", f"{RUNTIME}Value ''x'' cannot be compared."),
        ("TRUE > 1", f"{RUNTIME}Value 'TRUE' cannot be compared."),
        ("a = NULL", f"{RUNTIME}'NULL' cannot be compared."),
        ("TRUE = 5", f"{RUNTIME}'TRUE' cannot be compared with '5'"),
        ("5 IN ('a')", f"{RUNTIME}Expected a property for In expression, got: 5"),
        (
            "a BETWEEN 5 AND 1",
            f"{RUNTIME}Illegal values of between, left value(5) must less than or equal to right value(1)",
        ),
        ("a BETWEEN NULL AND 5", f"{RUNTIME}Illegal values of between, values can not be null!"),
        ("a BETWEEN 'a' AND 5", f'{RUNTIME}java.lang.NumberFormatException: For input string: "a"'),
        ("a BETWEEN '' AND 5.0", f"{RUNTIME}java.lang.NumberFormatException: empty String"),
        (
            "a BETWEEN 'a' AND TRUE",
            "java.lang.ClassCastException: class java.lang.Boolean cannot be cast to class java.lang.String "
            "(java.lang.Boolean and java.lang.String are in module java.base of loader 'bootstrap')",
        ),
        ("99999999999999999999 = a", 'java.lang.NumberFormatException: For input string: "99999999999999999999"'),
        ("0.0 < a", f"{RUNTIME}0.0 is less than 4.9E-324"),
        ("1e999 = a", f"{RUNTIME}1e999 is greater than 1.7976931348623157E308"),
    ],
)
def test_what_is_said_of_a_condition_that_is_none(condition: str, remark: str) -> None:
    with pytest.raises(ExpressionError) as error:
        compile_condition(condition)
    assert str(error.value) == remark


def test_a_condition_too_deep_is_refused() -> None:
    with pytest.raises(ExpressionError, match="StackOverflowError"):
        compile_condition("(" * 100_000)


@pytest.mark.parametrize(
    ("value", "text"),
    [(1e10, "1.0E10"), (1.25e-7, "1.25E-7"), (1234567.5, "1234567.5"), (0.001, "0.001"), (5, "5"), (True, "true")],
)
def test_numbers_are_shown_as_java_shows_them(value: float, text: str) -> None:
    assert plain_text(value) == text


@pytest.mark.slow
@settings(deadline=None)
@given(st.lists(st.sampled_from([*WORDS, *LITERALS, *NAMES, "é", "\x00", '"']), max_size=12), st.data())
def test_nothing_but_refusals_comes_of_what_anybody_may_send(words: list[str], data: st.DataObject) -> None:
    separator = data.draw(st.sampled_from(["", " ", "\t\n"]))
    properties = data.draw(st.dictionaries(st.sampled_from(NAMES), st.one_of(st.sampled_from(VALUES), st.text())))
    with contextlib.suppress(ExpressionError):
        assert evaluate(separator.join(words), properties) in (True, False, None, "no answer")
