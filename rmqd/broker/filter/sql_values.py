"""Values and their comparison as in Java (`ComparisonExpression.java`).

A property is a string; a constant is a string, a number or a boolean. When a string is compared with a number, it is
parsed as that kind of number: "5.5" is not an integer. If parsing fails, the message does not pass the filter.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Any, Final

from rmqd.broker.filter.sql_lexer import ExpressionError

Value = str | int | float | bool | None

_RUNTIME: Final = "java.lang.RuntimeException"
_BOOLEAN_FIRST: Final = (
    "java.lang.ClassCastException: class java.lang.Boolean cannot be cast to class java.lang.String "
    "(java.lang.Boolean and java.lang.String are in module java.base of loader 'bootstrap')"
)
_INT_MIN, _INT_MAX = -(2**31), 2**31 - 1
_LONG_MIN, _LONG_MAX = -(2**63), 2**63 - 1
_MAX_DOUBLE: Final = "1.7976931348623157E308"
_MIN_DOUBLE: Final = "4.9E-324"
_MAX_DIGITS: Final = 1000  # Python parses at most a few thousand digits
_INTEGER: Final = re.compile(rf"[+-]?\d{{1,{_MAX_DIGITS}}}")
_DOUBLE: Final = re.compile(r"[+-]?(?:NaN|Infinity|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?[fFdD]?)", re.ASCII)
_HEX_DOUBLE: Final = re.compile(
    r"[+-]?0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?\d+[fFdD]?", re.ASCII
)
_CONTROLS: Final = "".join(map(chr, range(33)))  # the characters that Java's `trim` removes


class Long(int):
    """An integer in a condition that exceeds Java's int. Its negative is a Long, too."""


class EvaluationError(Exception):
    """A condition cannot be evaluated for a message. Java throws this text, and the message does not pass."""


def refused(text: str) -> ExpressionError:
    """Return the error about a condition with correct syntax that Java rejects."""
    return ExpressionError(f"{_RUNTIME}: {text}")


def integer_constant(text: str) -> int:
    """Parse an integer of a condition."""
    digits = text.rstrip("lL")
    if len(digits) > _MAX_DIGITS or int(digits) > _LONG_MAX:
        raise ExpressionError(f'java.lang.NumberFormatException: For input string: "{digits}"')
    value = int(digits)
    return value if value <= _INT_MAX else Long(value)


def negative(value: float) -> float:
    """Return the negative of a number, of the same kind."""
    return Long(-value) if isinstance(value, Long) else -value


def double_constant(text: str) -> float:
    """Parse a number with a point or an exponent. Zero is rejected, because it is below Java's Double.MIN_VALUE."""
    value = float(text)
    if math.isinf(value):
        raise refused(f"{text} is greater than {_MAX_DOUBLE}")
    if value == 0:
        raise refused(f"{text} is less than {_MIN_DOUBLE}")
    return value


def compare(left: str | float | bool, right: str | float | bool) -> int:
    """Compare two values. The result is below, equal to or above zero. Values are converted as in Java.

    Raises EvaluationError.
    """
    if isinstance(left, str):
        if not isinstance(right, str):
            left = _as_kind_of(right, left)
    elif isinstance(left, bool):
        if isinstance(right, str):
            raise EvaluationError(_BOOLEAN_FIRST)
        if not isinstance(right, bool):
            return -1
    elif isinstance(right, bool):
        return -1
    elif isinstance(right, str):
        right = _as_kind_of(left, right)
    return _order(left, right)


def compare_by_size(left: str | float | bool, right: str | float | bool) -> int:
    """Compare two values for <, >, <= and >=. Two strings are compared as numbers."""
    if isinstance(left, str) and isinstance(right, str):
        return _order(_double(left), _double(right))
    return compare(left, right)


def java_text(value: Value) -> str:
    """Return a constant as Java's errors show it."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return plain_text(value)


def plain_text(value: Value) -> str:
    """Return a value as Java's `String.valueOf` writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, float) or 1e-3 <= abs(value) < 1e7:
        return str(value)
    _, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    first, *others = map(str, digits)
    return f"{'-' if value < 0 else ''}{first}.{''.join(others) or '0'}E{len(others) + int(exponent)}"


def _as_kind_of(model: float | bool, text: str) -> float | bool:
    if isinstance(model, bool):
        return text.lower() == "true"
    if isinstance(model, float):
        return _double(text)
    low, high = (_LONG_MIN, _LONG_MAX) if isinstance(model, Long) else (_INT_MIN, _INT_MAX)
    if _INTEGER.fullmatch(text):
        value = int(text)
        if low <= value <= high:
            return value
    raise _no_number(text)


def _double(text: str) -> float:
    stripped = text.strip(_CONTROLS)
    if _DOUBLE.fullmatch(stripped):
        return float(stripped.rstrip("fFdD"))
    if _HEX_DOUBLE.fullmatch(stripped):
        return float.fromhex(stripped.rstrip("fFdD"))
    raise (
        _no_number(text) if stripped else EvaluationError(f"{_RUNTIME}: java.lang.NumberFormatException: empty String")
    )


def _no_number(text: str) -> EvaluationError:
    return EvaluationError(f'{_RUNTIME}: java.lang.NumberFormatException: For input string: "{text}"')


def _order(left: Any, right: Any) -> int:
    """Compare two values of one kind. As in Java, NaN is the largest double, and minus zero is less than zero."""
    if isinstance(left, float) or isinstance(right, float):
        left, right = _place(left), _place(right)
    return int(left > right) - int(left < right)


def _place(value: float) -> tuple[bool, float, float]:
    return (True, 0.0, 0.0) if math.isnan(value) else (False, value, math.copysign(1, value))
