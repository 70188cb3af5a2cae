"""Parses the text of a condition into its tree (`SelectorParser.jj`), with Java's errors."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from rmqd.broker.filter.expressions import (
    And,
    BooleanConstant,
    Condition,
    Constant,
    Equal,
    Expression,
    In,
    Negation,
    Not,
    Or,
    Property,
    PropertyAsCondition,
    SizeComparison,
    TextTest,
)
from rmqd.broker.filter.lexer import ExpressionError, Kind, Lexer, Token, UnexpectedTokenError, unexpected
from rmqd.broker.filter.values import (
    EvaluationError,
    compare,
    double_constant,
    integer_constant,
    plain_text,
    refused,
)

_KEPT: Final = 100  # conditions, as in Java's parser
_BOOLEANS: Final = {Kind.TRUE: True, Kind.FALSE: False, Kind.NULL: None}
_SIZE_KINDS: Final = (Kind.GREATER, Kind.GREATER_EQUAL, Kind.LESS, Kind.LESS_EQUAL)
_NEGATABLE: Final = (Kind.CONTAINS, Kind.STARTSWITH, Kind.ENDSWITH, Kind.BETWEEN, Kind.IN)
_TEXT_KINDS: Final = _NEGATABLE[:3]
_OPERANDS: Final = (*_BOOLEANS, Kind.INTEGER, Kind.DOUBLE, Kind.STRING, Kind.PROPERTY, Kind.OPEN)


@lru_cache(_KEPT)
def compile_condition(text: str) -> Condition:
    """Return the tree of a condition. As in Java, text after it is ignored. Raises ExpressionError."""
    try:
        return _Parser(text).condition()
    except RecursionError:
        raise ExpressionError("java.lang.StackOverflowError") from None


class _Parser:
    """Parses one condition. `_at` collects the kinds of tokens that were tried, because Java's errors list them."""

    def __init__(self, text: str) -> None:
        self._lexer = Lexer(text)
        self._ahead: list[Token] = []
        self._expected: set[Kind] = set()

    def condition(self) -> Condition:
        return _as_condition(self._or())

    def _or(self) -> Expression:
        left = self._and()
        while self._at(Kind.OR):
            self._take()
            right = self._and()
            left = Or(_as_condition(left), _as_condition(right))
        return left

    def _and(self) -> Expression:
        left = self._equality()
        while self._at(Kind.AND):
            self._take()
            right = self._equality()
            left = And(_as_condition(left), _as_condition(right))
        return left

    def _equality(self) -> Expression:
        left = self._comparison()
        while self._at(Kind.IS, Kind.EQUAL, Kind.NOT_EQUAL):
            kind = self._take().kind
            if kind is Kind.IS:
                left = self._is_null(left)
            else:
                equal = _equal(left, self._comparison())
                left = equal if kind is Kind.EQUAL else Not(equal)
        return left

    def _is_null(self, left: Expression) -> Condition:
        negated = self._at(Kind.NOT)
        if negated:
            self._take()
        self._want(Kind.NULL)
        is_null = Equal(left, BooleanConstant(None))
        return Not(is_null) if negated else is_null

    def _comparison(self) -> Expression:
        left = self._unary()
        while self._at(Kind.NOT, *_NEGATABLE, *_SIZE_KINDS):
            if self._at(*_SIZE_KINDS):
                left = _compared(left, self._take().text, self._unary())
                continue
            negated = self._at(Kind.NOT)
            if negated:
                if self._peek(1).kind not in _NEGATABLE:
                    self._expected = {*_NEGATABLE, *_SIZE_KINDS}
                    raise self._error()
                self._take()
            left = self._negatable(left, self._take().kind, negated)
        return left

    def _negatable(self, left: Expression, kind: Kind, negated: bool) -> Condition:
        if kind in _TEXT_KINDS:
            return TextTest(left, kind.strip('"'), self._string(), negated)
        if kind is Kind.BETWEEN:
            low = self._unary()
            self._want(Kind.AND)
            return _between(left, low, self._unary(), negated)
        self._want(Kind.OPEN)
        texts = [self._string()]
        while self._at(Kind.COMMA):
            self._take()
            texts.append(self._string())
        self._want(Kind.CLOSE)
        if not isinstance(left, Property):
            raise refused(f"Expected a property for In expression, got: {left}")
        return In(left, tuple(texts), negated)

    def _unary(self) -> Expression:
        if self._at(Kind.PLUS):
            plus = self._take()
            try:
                return self._unary()
            except UnexpectedTokenError:  # Java looks ahead before it takes the sign, and so reports the sign
                raise unexpected(plus, {*_OPERANDS, Kind.NOT, Kind.MINUS}) from None
        if self._at(Kind.MINUS):
            self._take()
            return Negation(self._unary())
        if self._at(Kind.NOT):
            self._take()
            return Not(_as_condition(self._unary()))
        return self._primary()

    def _primary(self) -> Expression:
        if not self._at(*_OPERANDS):
            raise self._error()
        token = self._take()
        if token.kind in _BOOLEANS:
            return BooleanConstant(_BOOLEANS[token.kind])
        if token.kind is Kind.INTEGER:
            return Constant(integer_constant(token.text))
        if token.kind is Kind.DOUBLE:
            return Constant(double_constant(token.text))
        if token.kind is Kind.STRING:
            return Constant(_unquoted(token))
        if token.kind is Kind.PROPERTY:
            return Property(token.text)
        inner = self._or()
        self._want(Kind.CLOSE)
        return inner

    def _string(self) -> str:
        return _unquoted(self._want(Kind.STRING))

    def _at(self, *kinds: Kind) -> bool:
        if self._peek().kind in kinds:
            return True
        self._expected.update(kinds)
        return False

    def _want(self, kind: Kind) -> Token:
        if not self._at(kind):
            raise self._error()
        return self._take()

    def _take(self) -> Token:
        self._expected.clear()
        self._peek()
        return self._ahead.pop(0)

    def _peek(self, index: int = 0) -> Token:
        while len(self._ahead) <= index:
            self._ahead.append(self._lexer.next())
        return self._ahead[index]

    def _error(self) -> UnexpectedTokenError:
        return unexpected(self._peek(), self._expected)


def _unquoted(token: Token) -> str:
    return token.text[1:-1].replace("''", "'")


def _as_condition(value: Expression) -> Condition:
    if isinstance(value, Condition):
        return value
    if isinstance(value, Property):
        return PropertyAsCondition(value)
    raise ExpressionError(
        "org.apache.rocketmq.filter.parser.ParseException: Expression will not result in a boolean value: " + str(value)
    )


def _equal(left: Expression, right: Expression) -> Condition:
    for side in (left, right):
        if side == BooleanConstant(None):
            raise refused(f"'{side}' cannot be compared.")
    if isinstance(left, BooleanConstant) and isinstance(right, Constant):
        raise refused(f"'{left}' cannot be compared with '{right}'")
    return Equal(left, right)


def _compared(left: Expression, symbol: str, right: Expression) -> Condition:
    for side in (left, right):
        if isinstance(side, Condition) or (isinstance(side, Constant) and isinstance(side.value, str)):
            raise refused(f"Value '{side}' cannot be compared.")
    return SizeComparison(left, symbol, right)


def _between(value: Expression, low: Expression, high: Expression, negated: bool) -> Condition:
    if negated:
        return Or(_compared(value, "<", low), _compared(value, ">", high))
    if isinstance(low, Constant | BooleanConstant) and isinstance(high, Constant | BooleanConstant):
        if low.value is None or high.value is None:
            raise refused("Illegal values of between, values can not be null!")
        try:
            order = compare(high.value, low.value)
        except EvaluationError as error:
            raise ExpressionError(str(error)) from error
        if order < 0:
            raise refused(
                f"Illegal values of between, left value({plain_text(low.value)}) must less than or equal to right "
                f"value({plain_text(high.value)})"
            )
    return And(_compared(value, ">=", low), _compared(value, "<=", high))
