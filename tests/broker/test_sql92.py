"""SQL92 conditions: what they mean for which properties, and what is said of those that are none.

The tables are answers of RocketMQ 5.5.0; beside it, conditions are made up and asked of both.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqd.broker.filter.lexer import ExpressionError
from rmqd.broker.filter.parser import compile_condition
from rmqd.broker.filter.values import EvaluationError, plain_text
from rmqd.wire.bodies.heartbeat import CheckClientRequestBody, SubscriptionData
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.decode import decode_messages
from rmqd.wire.messages.message import Message
from rmqd.wire.messages.properties import format_properties
from tests.rocketmq import RealCluster, rpc

CONDITIONS = int(os.environ.get("RMQD_TEST_CONDITIONS", "600"))
SEED = int(os.environ.get("RMQD_TEST_SEED", "92"))
PULL, CHECK = 11, 46
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


def evaluate(condition: str, properties: dict[str, str]) -> object:
    """What a condition gives; "no answer" where Java throws."""
    try:
        return compile_condition(condition).evaluate(properties)
    except EvaluationError:
        return "no answer"


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


class Inventor:
    """Makes up conditions, most of them right."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def properties(self) -> dict[str, str]:
        """Some properties with odd values."""
        names = [name for name in NAMES if self.random.random() < 0.7]
        return {name: self.random.choice(VALUES) for name in names}

    def condition(self) -> str:
        """One condition; every fifth with a word too many, too few or out of place."""
        words = list(self._condition(self.random.randint(0, 3)))
        if self.random.random() < 0.2:
            at = self.random.randrange(len(words))
            words[at : at + self.random.randint(0, 1)] = self.random.choices(WORDS, k=self.random.randint(0, 1))
        return " ".join(words)

    def _condition(self, depth: int) -> Iterator[str]:
        kind = self.random.randrange(10)
        if depth and kind < 6:
            if kind == 0:
                yield "NOT"
            if self.random.random() < 0.5:
                yield from ("(", *self._condition(depth - 1), ")")
            else:
                yield from self._condition(depth - 1)
            if kind > 1:
                yield self.random.choice(("AND", "OR", "and", "Or"))
                yield from self._condition(depth - 1)
            return
        yield from self._simple(kind)

    def _simple(self, kind: int) -> Iterator[str]:
        choose, maybe_not = self.random.choice, self.random.choice((["NOT"], []))
        if kind < 5:
            yield from self._operand()
            yield choose(("=", "<>", "<", ">", "<=", ">="))
            yield from self._operand()
        elif kind < 6:
            yield from (*self._operand(), "IS", *maybe_not, "NULL")
        elif kind < 7:
            yield from (*self._operand(), *maybe_not, "BETWEEN", *self._operand(), "AND", *self._operand())
        elif kind < 8:
            texts = ", ".join(repr(choose(VALUES)).replace('"', "'") for _ in range(self.random.randint(1, 4)))
            yield from (choose(NAMES), *maybe_not, "IN", "(", texts, ")")
        elif kind < 9:
            yield from (*self._operand(), *maybe_not, choose(("CONTAINS", "STARTSWITH", "endswith")))
            yield choose(("'a'", "'1'", "''", "'bc'", "''''", "'é'"))
        else:
            yield from self._operand()

    def _operand(self) -> Iterator[str]:
        if self.random.random() < 0.1:
            yield self.random.choice("+-")
        yield self.random.choice(NAMES if self.random.random() < 0.6 else LITERALS)


def test_the_real_broker_has_the_same_opinion(rocketmq: RealCluster, topic: str) -> None:
    inventor = Inventor(SEED)
    host, port = rocketmq.broker.address.rsplit(":", 1)
    wrong = matched = 0
    with socket.create_connection((host, int(port)), timeout=10) as link:
        for number in range(32):  # what one reply brings
            store(link, topic, number, inventor.properties())
        everything = pulled(link, topic, "TRUE")
        assert len(everything) == 32
        for _ in range(CONDITIONS):
            condition = inventor.condition()
            remark = refusal(condition)
            assert remark == real_refusal(link, topic, condition), condition
            if remark is not None:
                wrong += 1
                continue
            wanted = {body for body, message in everything.items() if evaluate(condition, message.properties) is True}
            matched += bool(wanted)
            assert pulled(link, topic, condition).keys() == wanted, condition
    assert min(wrong, matched) > CONDITIONS / 10  # or the inventor has become dull
    print(f"{CONDITIONS} conditions, {wrong} wrong, {matched} with messages; seed {SEED}")  # noqa: T201 - for `-s`


def refusal(condition: str) -> str | None:
    try:
        compile_condition(condition)
    except ExpressionError as error:
        return without_cast(str(error))
    return None


def real_refusal(link: socket.socket, topic: str, condition: str) -> str | None:
    subscription = SubscriptionData(topic, condition, expression_type="SQL92")
    body = CheckClientRequestBody("client", "g", subscription).to_json()
    answer = rpc.exchange(link, CHECK, {}, body=body, accepted=(0, 23))
    return None if answer.code == 0 else without_cast(answer.remark or "")


def without_cast(remark: str) -> str:
    """Without what a wrong cast says of itself: a JVM that has compiled the code leaves it out."""
    return remark.partition(": class java")[0]


def store(link: socket.socket, topic: str, number: int, properties: dict[str, str]) -> None:
    fields: dict[str, Any] = dict.fromkeys(("queueId", "sysFlag", "bornTimestamp", "flag", "reconsumeTimes"), 0)
    fields |= {"producerGroup": "p", "topic": topic, "defaultTopic": "TBW102", "defaultTopicQueueNums": 4}
    fields["properties"] = format_properties(properties)
    rpc.exchange(link, rpc.SEND_MESSAGE, fields, body=b"%d" % number, accepted=rpc.STORED)


def pulled(link: socket.socket, topic: str, condition: str) -> dict[bytes, Message]:
    """The messages of queue 0 that the broker finds, by their bodies."""
    fields: dict[str, Any] = dict.fromkeys(("queueId", "queueOffset", "commitOffset", "suspendTimeoutMillis"), 0)
    fields |= {"consumerGroup": "g", "topic": topic, "maxMsgNums": 32, "sysFlag": 4, "subVersion": 0}
    fields |= {"subscription": condition, "expressionType": "SQL92"}
    answer = rpc.exchange(link, PULL, fields, accepted=(0, 20))
    return {message.body: message for message in decode_messages(answer.body, MessageQueue(topic, "b", 0)).messages}


@pytest.mark.slow
@settings(deadline=None)
@given(st.lists(st.sampled_from([*WORDS, *LITERALS, *NAMES, "é", "\x00", '"']), max_size=12), st.data())
def test_nothing_but_refusals_comes_of_what_anybody_may_send(words: list[str], data: st.DataObject) -> None:
    separator = data.draw(st.sampled_from(["", " ", "\t\n"]))
    properties = data.draw(st.dictionaries(st.sampled_from(NAMES), st.one_of(st.sampled_from(VALUES), st.text())))
    with contextlib.suppress(ExpressionError):
        assert evaluate(separator.join(words), properties) in (True, False, None, "no answer")
