"""Parses the text of a condition into its tree (`SelectorParser.jj`), with Java's errors, and filters messages by it.

The real broker stores "filter data" of each group and topic next to the subscriptions, and a pull may find one older
than the other (FILTER_DATA_NOT_LATEST). Here a filter is derived from the subscription, so this cannot happen. Java:
`ExpressionMessageFilter`, `FilterAPI`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from rmqd.broker.filter.sql_expressions import (
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
from rmqd.broker.filter.sql_lexer import ExpressionError, Lexer, Token, TokenKind, UnexpectedTokenError, unexpected
from rmqd.broker.filter.sql_values import (
    EvaluationError,
    compare,
    double_constant,
    integer_constant,
    plain_text,
    refused,
)
from rmqd.broker.store.queue_store import MessageFilter
from rmqd.errors import InvalidNameError
from rmqd.wire.bodies.heartbeat_data import (
    EXPRESSION_SQL92,
    EXPRESSION_TAG,
    SUBSCRIPTION_ALL,
    SubscriptionData,
    java_hash,
)
from rmqd.wire.messages.decode import stored_properties

_KEPT: Final = 100  # limit of cached conditions, as in Java's parser
_BOOLEANS: Final = {TokenKind.TRUE: True, TokenKind.FALSE: False, TokenKind.NULL: None}
_SIZE_KINDS: Final = (TokenKind.GREATER, TokenKind.GREATER_EQUAL, TokenKind.LESS, TokenKind.LESS_EQUAL)
_NEGATABLE: Final = (TokenKind.CONTAINS, TokenKind.STARTSWITH, TokenKind.ENDSWITH, TokenKind.BETWEEN, TokenKind.IN)
_TEXT_KINDS: Final = _NEGATABLE[:3]
_OPERANDS: Final = (
    *_BOOLEANS,
    TokenKind.INTEGER,
    TokenKind.DOUBLE,
    TokenKind.STRING,
    TokenKind.PROPERTY,
    TokenKind.OPEN,
)


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
        self._expected: set[TokenKind] = set()

    def condition(self) -> Condition:
        return _as_condition(self._or())

    def _or(self) -> Expression:
        left = self._and()
        while self._at(TokenKind.OR):
            self._take()
            right = self._and()
            left = Or(_as_condition(left), _as_condition(right))
        return left

    def _and(self) -> Expression:
        left = self._equality()
        while self._at(TokenKind.AND):
            self._take()
            right = self._equality()
            left = And(_as_condition(left), _as_condition(right))
        return left

    def _equality(self) -> Expression:
        left = self._comparison()
        while self._at(TokenKind.IS, TokenKind.EQUAL, TokenKind.NOT_EQUAL):
            kind = self._take().kind
            if kind is TokenKind.IS:
                left = self._is_null(left)
            else:
                equal = _equal(left, self._comparison())
                left = equal if kind is TokenKind.EQUAL else Not(equal)
        return left

    def _is_null(self, left: Expression) -> Condition:
        negated = self._at(TokenKind.NOT)
        if negated:
            self._take()
        self._want(TokenKind.NULL)
        is_null = Equal(left, BooleanConstant(None))
        return Not(is_null) if negated else is_null

    def _comparison(self) -> Expression:
        left = self._unary()
        while self._at(TokenKind.NOT, *_NEGATABLE, *_SIZE_KINDS):
            if self._at(*_SIZE_KINDS):
                left = _compared(left, self._take().text, self._unary())
                continue
            negated = self._at(TokenKind.NOT)
            if negated:
                if self._peek(1).kind not in _NEGATABLE:
                    self._expected = {*_NEGATABLE, *_SIZE_KINDS}
                    raise self._error()
                self._take()
            left = self._negatable(left, self._take().kind, negated)
        return left

    def _negatable(self, left: Expression, kind: TokenKind, negated: bool) -> Condition:
        if kind in _TEXT_KINDS:
            return TextTest(left, kind.strip('"'), self._string(), negated)
        if kind is TokenKind.BETWEEN:
            low = self._unary()
            self._want(TokenKind.AND)
            return _between(left, low, self._unary(), negated)
        self._want(TokenKind.OPEN)
        texts = [self._string()]
        while self._at(TokenKind.COMMA):
            self._take()
            texts.append(self._string())
        self._want(TokenKind.CLOSE)
        if not isinstance(left, Property):
            raise refused(f"Expected a property for In expression, got: {left}")
        return In(left, tuple(texts), negated)

    def _unary(self) -> Expression:
        if self._at(TokenKind.PLUS):
            plus = self._take()
            try:
                return self._unary()
            except UnexpectedTokenError:  # Java looks ahead before it takes the sign, and so reports the sign
                raise unexpected(plus, {*_OPERANDS, TokenKind.NOT, TokenKind.MINUS}) from None
        if self._at(TokenKind.MINUS):
            self._take()
            return Negation(self._unary())
        if self._at(TokenKind.NOT):
            self._take()
            return Not(_as_condition(self._unary()))
        return self._primary()

    def _primary(self) -> Expression:
        if not self._at(*_OPERANDS):
            raise self._error()
        token = self._take()
        if token.kind in _BOOLEANS:
            return BooleanConstant(_BOOLEANS[token.kind])
        if token.kind is TokenKind.INTEGER:
            return Constant(integer_constant(token.text))
        if token.kind is TokenKind.DOUBLE:
            return Constant(double_constant(token.text))
        if token.kind is TokenKind.STRING:
            return Constant(_unquoted(token))
        if token.kind is TokenKind.PROPERTY:
            return Property(token.text)
        inner = self._or()
        self._want(TokenKind.CLOSE)
        return inner

    def _string(self) -> str:
        return _unquoted(self._want(TokenKind.STRING))

    def _at(self, *kinds: TokenKind) -> bool:
        if self._peek().kind in kinds:
            return True
        self._expected.update(kinds)
        return False

    def _want(self, kind: TokenKind) -> Token:
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


_KEPT_FILTERS: Final = 1000  # limit of cached filters of pulling groups


class TagFilter:
    """A filter by the tag's hash. A message with another tag and the same hash passes, and the client drops it."""

    def __init__(self, codes: frozenset[int]) -> None:
        self._codes = codes

    def matches_code(self, tags_code: int) -> bool:
        """Return whether this is the hash of a wanted tag."""
        return tags_code in self._codes

    def matches_record(self, record: bytes) -> bool:
        """Return True, because brokers compare only hashes of tags."""
        return True


class SqlFilter:
    """A filter by a condition on properties."""

    def __init__(self, condition: Condition) -> None:
        self._condition = condition

    def matches_code(self, tags_code: int) -> bool:
        """Return True, because the condition does not depend on the tag's hash."""
        return True

    def matches_record(self, record: bytes) -> bool:
        """Return whether the condition is true. Unknown, or an evaluation error, counts as false."""
        try:
            return self._condition.evaluate(stored_properties(record)) is True
        except EvaluationError:
            return False


def is_tag_type(expression_type: str | None) -> bool:
    """Return whether an expression selects tags."""
    return expression_type in (None, "", EXPRESSION_TAG)


@lru_cache(_KEPT_FILTERS)
def filter_of(subscription: SubscriptionData) -> MessageFilter | None:
    """Return the filter of a subscription; None if all messages pass. Raises ExpressionError."""
    if subscription.class_filter_mode:
        return None
    if is_tag_type(subscription.expression_type):
        return None if subscription.sub_string == SUBSCRIPTION_ALL else TagFilter(subscription.code_set)
    return SqlFilter(compiled(subscription.expression_type, subscription.sub_string))


@lru_cache(_KEPT_FILTERS)
def requested_subscription(topic: str, text: str | None, expression_type: str | None) -> SubscriptionData:
    """Return the subscription in a pull's own fields. Raises InvalidNameError if Java's parser throws an exception."""
    if expression_type not in (None, EXPRESSION_TAG):
        if not text:
            raise InvalidNameError(f"an expression of type {expression_type} must not be empty")
        return SubscriptionData(topic, text, expression_type=expression_type)
    if not text or text == SUBSCRIPTION_ALL:
        return SubscriptionData(topic)
    if not text.replace("||", ""):
        raise InvalidNameError(f"the tag expression {text!r:.80} contains no tag")
    tags = frozenset(filter(None, map(str.strip, text.split("||"))))
    return SubscriptionData(topic, text, tags, frozenset(map(java_hash, tags)))


def compiled(expression_type: str, text: str) -> Condition:
    """Parse a condition. Raises ExpressionError, also if the kind of expression is unknown."""
    if expression_type != EXPRESSION_SQL92:
        raise ExpressionError(  # the text of Java's NullPointerException
            'Cannot invoke "org.apache.rocketmq.filter.FilterSpi.compile(String)" because the return value of '
            '"org.apache.rocketmq.filter.FilterFactory.get(String)" is null'
        )
    return compile_condition(text)
