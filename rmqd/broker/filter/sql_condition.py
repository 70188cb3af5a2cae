"""SQL92 conditions on properties: a parser that returns a function, and the comparison of values as in Java.

The language is defined by `SelectorParser.jj`. This module accepts the same conditions as RocketMQ's broker, with the
same results. A property is a string; a constant is a string, a number or a boolean. A property that is compared with an
integer is parsed as an integer. So a message whose property is "5.5" does not pass. None stands for SQL's "unknown".
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple

_MAX_CONDITIONS: Final = 100  # limit of the cache, as in Java's parser
_MAX_DIGITS: Final = 1000  # `int` raises ValueError for more than a few thousand digits
_INT: Final = -(2**31), 2**31 - 1
_LONG: Final = -(2**63), 2**63 - 1
# `--` starts a comment only if a line break ends it. Otherwise `--` is two minus signs.
_BLANK: Final = re.compile(r"(?:[ \t\n\r\f]|--[^\n\r]*[\n\r]|/\*[^*]*\*(?:\*|[^*/][^*]*\*)*/)*")
_TOKEN: Final = re.compile(
    r"(?P<double>(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+)"
    r"|(?P<integer>0|[1-9][0-9]*[lL]?)"
    r"|(?P<string>'(?:''|[^'])*')"
    r"|(?P<property>[a-zA-Z_$][a-zA-Z0-9_$]*)"
    r"|(?P<symbol><>|<=|>=|[=<>(),+-])"
)
_WORDS: Final = frozenset("NOT AND OR BETWEEN IN TRUE FALSE NULL IS CONTAINS STARTSWITH ENDSWITH".split())
_INTEGER: Final = re.compile(rf"[+-]?\d{{1,{_MAX_DIGITS}}}")
_DOUBLE: Final = re.compile(r"[+-]?(?:NaN|Infinity|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?[fFdD]?)", re.ASCII)
_HEX_DOUBLE: Final = re.compile(
    r"[+-]?0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?\d+[fFdD]?", re.ASCII
)
_CONTROLS: Final = "".join(map(chr, range(33)))  # the characters that Java's `trim` removes

Value = str | int | float | bool | None
Properties = Mapping[str, str]
Condition = Callable[[Properties], bool | None]


class ExpressionError(Exception):
    """A condition is invalid."""


class EvaluationError(Exception):
    """A condition cannot be evaluated for a message. The message then does not pass the filter."""


class Long(int):
    """An integer constant that is too large for Java's int. The negative of a Long is also a Long."""


class Operand(NamedTuple):
    """An operand of a condition. `value` is set for a constant. TRUE, FALSE and NULL are of kind "boolean"."""

    kind: Literal["condition", "boolean", "constant", "property", "negative"]
    evaluate: Callable[[Properties], Any]
    value: Value = None


@lru_cache(_MAX_CONDITIONS)
def compile_condition(text: str) -> Condition:
    """Parse a condition. As in Java, text after a complete condition is ignored. Raises ExpressionError."""
    try:
        return _as_condition(_Parser(text).alternatives())
    except RecursionError:
        raise ExpressionError("the condition is nested too deeply") from None


class _Parser:
    """A parser of one condition. `_kind` is the next token's group in _TOKEN, keyword or symbol; empty at the end."""

    def __init__(self, text: str) -> None:
        self._whole, self._at, self._start = text, 0, 0
        self._kind = self._text = ""
        self._take()

    def alternatives(self) -> Operand:
        left = self._conjunction()
        while self._is("OR"):
            left = _or(_as_condition(left), _as_condition(self._conjunction()))
        return left

    def _conjunction(self) -> Operand:
        left = self._equality()
        while self._is("AND"):
            left = _and(_as_condition(left), _as_condition(self._equality()))
        return left

    def _equality(self) -> Operand:
        left = self._comparison()
        while self._kind in ("IS", "=", "<>"):
            kind = self._take()[0]
            negated = kind == "<>" or (kind == "IS" and self._is("NOT"))
            if kind == "IS":
                self._want("NULL")
                equal = _equal(left, _constant(None))
            else:
                right = self._comparison()
                if any(side.kind == "boolean" and side.value is None for side in (left, right)):
                    raise ExpressionError("NULL cannot be compared; expected IS NULL")
                if left.kind == "boolean" and right.kind == "constant":
                    raise ExpressionError("a boolean cannot be compared with another constant")
                equal = _equal(left, right)
            left = _not(equal.evaluate) if negated else equal
        return left

    def _comparison(self) -> Operand:
        left = self._unary()
        while True:
            if self._kind in _SIZES:
                left = _compared(left, self._take()[0], self._unary())
                continue
            negated = self._is("NOT")
            if self._kind in _TEXT_TESTS:
                left = _text_test(left, self._take()[0], self._want("string"), negated)
            elif self._is("BETWEEN"):
                low = self._unary()
                self._want("AND")
                left = _between(left, low, self._unary(), negated)
            elif self._is("IN"):
                left = _in(left, self._texts(), negated)
            elif negated:
                raise self._error("BETWEEN, IN, CONTAINS, STARTSWITH or ENDSWITH")
            else:
                return left

    def _texts(self) -> list[str]:
        self._want("(")
        texts = [self._want("string")]
        while self._is(","):
            texts.append(self._want("string"))
        self._want(")")
        return texts

    def _unary(self) -> Operand:
        if self._is("+"):
            return self._unary()
        if self._is("-"):
            return _negative(self._unary())
        if self._is("NOT"):
            return _not(_as_condition(self._unary()))
        kind, text = self._kind, self._text
        if kind not in ("TRUE", "FALSE", "NULL", "integer", "double", "string", "property", "("):
            raise self._error("a value")
        self._take()
        if kind == "(":
            inner = self.alternatives()
            self._want(")")
            return inner
        if kind == "property":
            return Operand("property", lambda properties: properties.get(text))
        if kind in ("TRUE", "FALSE", "NULL"):
            return _constant({"TRUE": True, "FALSE": False, "NULL": None}[kind])
        return _constant(_integer(text) if kind == "integer" else _finite(text) if kind == "double" else _plain(text))

    def _is(self, kind: str) -> bool:
        """Consume the next token if it is of this kind. Returns whether the token was consumed."""
        if self._kind != kind:
            return False
        self._take()
        return True

    def _want(self, kind: str) -> str:
        if self._kind != kind:
            raise self._error("a string" if kind == "string" else kind)
        return _plain(self._take()[1])

    def _take(self) -> tuple[str, str]:
        """Return the kind and text of the next token, and read the following token."""
        taken = self._kind, self._text
        blank = _BLANK.match(self._whole, self._at)
        self._start = self._at if blank is None else blank.end()
        self._kind, self._text = "", ""
        if self._start < len(self._whole):
            found = _TOKEN.match(self._whole, self._start)
            if found is None:
                raise self._error("a word, a value or an operator")
            self._at, self._kind, self._text = found.end(), found.lastgroup or "", found.group()
            if self._kind == "symbol" or self._text.upper() in _WORDS:
                self._kind = self._text.upper()
        return taken

    def _error(self, expected: str) -> ExpressionError:
        found = (
            repr(self._text or self._whole[self._start : self._start + 1]) if self._start < len(self._whole) else "end"
        )
        return ExpressionError(f"the condition is wrong at character {self._start + 1}: {found}; expected {expected}")


def _plain(text: str) -> str:
    return text[1:-1].replace("''", "'")


def _as_condition(operand: Operand) -> Condition:
    if operand.kind in ("condition", "boolean"):
        return operand.evaluate
    if operand.kind == "property":  # never true, because its value is a string
        return lambda properties: None if operand.evaluate(properties) is None else False
    raise ExpressionError("a value is not a condition; expected a comparison such as a > 5")


def _constant(value: Value) -> Operand:
    kind: Literal["boolean", "constant"] = "boolean" if value is None or isinstance(value, bool) else "constant"
    return Operand(kind, lambda _: value, value)


def _negative(operand: Operand) -> Operand:
    def evaluate(properties: Properties) -> Value:
        value = operand.evaluate(properties)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None  # only numbers can be negated; the value of a property is a string
        return Long(-value) if isinstance(value, Long) else -value

    return Operand("negative", evaluate)


def _not(condition: Condition) -> Operand:
    def evaluate(properties: Properties) -> bool | None:
        value = condition(properties)
        return None if value is None else not value

    return Operand("condition", evaluate)


def _and(left: Condition, right: Condition) -> Operand:
    def evaluate(properties: Properties) -> bool | None:
        if (first := left(properties)) is False or (second := right(properties)) is False:
            return False
        return None if first is None or second is None else True

    return Operand("condition", evaluate)


def _or(left: Condition, right: Condition) -> Operand:
    def evaluate(properties: Properties) -> bool | None:
        if (first := left(properties)) or (second := right(properties)):
            return True
        return None if first is None or second is None else False

    return Operand("condition", evaluate)


def _equal(left: Operand, right: Operand) -> Operand:
    """Compare by = or IS NULL. As in Java, unknown if only the left side is unknown, false if only the right is."""

    def evaluate(properties: Properties) -> bool | None:
        first, second = left.evaluate(properties), right.evaluate(properties)
        if first is None:
            return True if second is None else None
        return second is not None and _compare(first, second) == 0

    return Operand("condition", evaluate)


_SIZES: Final[Mapping[str, Callable[[int], bool]]] = {
    ">": lambda order: order > 0,
    ">=": lambda order: order >= 0,
    "<": lambda order: order < 0,
    "<=": lambda order: order <= 0,
}


def _compared(left: Operand, symbol: str, right: Operand) -> Operand:
    for side in (left, right):
        if side.kind in ("condition", "boolean") or isinstance(side.value, str):
            raise ExpressionError(
                f"a string or a boolean cannot be compared by {symbol}; expected a number or property"
            )

    def evaluate(properties: Properties) -> bool | None:
        first = left.evaluate(properties)
        second = None if first is None else right.evaluate(properties)
        if first is None or second is None:
            return None
        if isinstance(first, str) and isinstance(second, str):
            first, second = _double(first), _double(second)
        return _SIZES[symbol](_compare(first, second))

    return Operand("condition", evaluate)


def _between(operand: Operand, low: Operand, high: Operand, negated: bool) -> Operand:
    if negated:
        return _or(_compared(operand, "<", low).evaluate, _compared(operand, ">", high).evaluate)
    if {low.kind, high.kind} <= {"constant", "boolean"}:
        if low.value is None or high.value is None:
            raise ExpressionError("NULL cannot be a bound of BETWEEN")
        try:
            order = _compare(high.value, low.value)
        except EvaluationError as error:
            raise ExpressionError(str(error)) from error
        if order < 0:
            raise ExpressionError("the first bound of BETWEEN is above the second")
    return _and(_compared(operand, ">=", low).evaluate, _compared(operand, "<=", high).evaluate)


def _in(operand: Operand, texts: list[str], negated: bool) -> Operand:
    if operand.kind != "property":
        raise ExpressionError("IN needs a property on its left side")

    def evaluate(properties: Properties) -> bool | None:
        value = operand.evaluate(properties)
        return None if value is None else (value in texts) is not negated

    return Operand("condition", evaluate)


_TEXT_TESTS: Final[Mapping[str, Callable[[str, str], bool]]] = {
    "CONTAINS": lambda value, part: part in value,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}


def _text_test(operand: Operand, test: str, part: str, negated: bool) -> Operand:
    """Return a test such as CONTAINS. Even if negated, it is false if the value is not a string or `part` is empty."""

    def evaluate(properties: Properties) -> bool:
        value = operand.evaluate(properties)
        return bool(part) and isinstance(value, str) and _TEXT_TESTS[test](value, part) is not negated

    return Operand("condition", evaluate)


def _integer(text: str) -> int:
    digits = text.rstrip("lL")
    if len(digits) > _MAX_DIGITS or int(digits) > _LONG[1]:
        raise ExpressionError(f"{digits:.80} is too large")
    value = int(digits)
    return value if value <= _INT[1] else Long(value)


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value) or value == 0:  # Java refuses zero, because it is below its Double.MIN_VALUE
        raise ExpressionError(f"{text:.80} is not in the range of a double")
    return value


def _compare(left: str | float | bool, right: str | float | bool) -> int:
    """Compare two values as in Java. Returns a number below, equal to or above zero. Raises EvaluationError."""
    if isinstance(left, str):
        if not isinstance(right, str):
            left = _as_kind_of(right, left)
    elif isinstance(left, bool):
        if isinstance(right, str):
            raise EvaluationError("a boolean cannot be compared with a string")
        if not isinstance(right, bool):
            return -1
    elif isinstance(right, bool):
        return -1
    elif isinstance(right, str):
        right = _as_kind_of(left, right)
    return _order(left, right)


def _as_kind_of(model: float | bool, text: str) -> float | bool:
    if isinstance(model, bool):
        return text.lower() == "true"
    if isinstance(model, float):
        return _double(text)
    low, high = _LONG if isinstance(model, Long) else _INT
    if _INTEGER.fullmatch(text) and low <= int(text) <= high:
        return int(text)
    raise EvaluationError(f"{text!r:.80} is not an integer")


def _double(text: str) -> float:
    stripped = text.strip(_CONTROLS)
    if _DOUBLE.fullmatch(stripped):
        return float(stripped.rstrip("fFdD"))
    if _HEX_DOUBLE.fullmatch(stripped):
        return float.fromhex(stripped.rstrip("fFdD"))
    raise EvaluationError(f"{text!r:.80} is not a number")


def _order(left: Any, right: Any) -> int:
    """Compare two values of one kind. As in Java, NaN is the largest double, and minus zero is less than zero."""
    if isinstance(left, float) or isinstance(right, float):
        left, right = _place(left), _place(right)
    return int(left > right) - int(left < right)


def _place(value: float) -> tuple[bool, float, float]:
    return (True, 0.0, 0.0) if math.isnan(value) else (False, value, math.copysign(1, value))
