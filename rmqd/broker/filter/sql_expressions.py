"""A condition as a tree. Each node is evaluated for a message's properties. None is SQL's "unknown".

`str` of a node is Java's text, which errors quote.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from rmqd.broker.filter.sql_values import Value, compare, compare_by_size, java_text, negative

Properties = Mapping[str, str]


class Expression:
    """A node with a value of any kind."""

    __slots__ = ()

    def evaluate(self, properties: Properties) -> Value:
        """Return the value for a message. Raises EvaluationError if Java throws an exception."""
        raise NotImplementedError


class Condition(Expression):
    """A node whose value is true, false or unknown. The root of a condition must be a Condition."""

    __slots__ = ()

    def evaluate(self, properties: Properties) -> bool | None:
        """Return whether the condition holds for a message; None for unknown."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Constant(Expression):
    """A string or a number."""

    value: Value

    def evaluate(self, properties: Properties) -> Value:
        return self.value

    def __str__(self) -> str:
        return java_text(self.value)


@dataclass(frozen=True, slots=True)
class BooleanConstant(Condition):
    """TRUE, FALSE or NULL."""

    value: bool | None

    def evaluate(self, properties: Properties) -> bool | None:
        return self.value

    def __str__(self) -> str:
        return java_text(self.value)


@dataclass(frozen=True, slots=True)
class Property(Expression):
    """A property of the message, by its exact name. Unknown if the message does not have it."""

    name: str

    def evaluate(self, properties: Properties) -> str | None:
        return properties.get(self.name)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class PropertyAsCondition(Condition):
    """A property in place of a condition. It is never true, because its value is a string."""

    operand: Property

    def evaluate(self, properties: Properties) -> bool | None:
        """Return None without the property, else False."""
        return None if self.operand.evaluate(properties) is None else False

    def __str__(self) -> str:
        return str(self.operand)


@dataclass(frozen=True, slots=True)
class Negation(Expression):
    """The negative of a number. Unknown for other values, including properties."""

    operand: Expression

    def evaluate(self, properties: Properties) -> Value:
        value = self.operand.evaluate(properties)
        return negative(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

    def __str__(self) -> str:
        return f"(- {self.operand})"


@dataclass(frozen=True, slots=True)
class Not(Condition):
    """NOT."""

    operand: Condition

    def evaluate(self, properties: Properties) -> bool | None:
        """Return the opposite. Unknown stays unknown."""
        value = self.operand.evaluate(properties)
        return None if value is None else not value

    def __str__(self) -> str:
        return f"(NOT {self.operand})"


@dataclass(frozen=True, slots=True)
class And(Condition):
    """AND. The right side is evaluated unless the left side is false."""

    left: Condition
    right: Condition

    def evaluate(self, properties: Properties) -> bool | None:
        """Return False if a side is false, else None if a side is unknown."""
        left = self.left.evaluate(properties)
        if left is False:
            return False
        right = self.right.evaluate(properties)
        if right is False:
            return False
        return None if left is None or right is None else True

    def __str__(self) -> str:
        return f"({self.left} && {self.right})"


@dataclass(frozen=True, slots=True)
class Or(Condition):
    """OR. The right side is evaluated unless the left side is true."""

    left: Condition
    right: Condition

    def evaluate(self, properties: Properties) -> bool | None:
        """Return True if a side is true, else None if a side is unknown."""
        left = self.left.evaluate(properties)
        if left:
            return True
        right = self.right.evaluate(properties)
        if right:
            return True
        return None if left is None or right is None else False

    def __str__(self) -> str:
        return f"({self.left} || {self.right})"


@dataclass(frozen=True, slots=True)
class Equal(Condition):
    """=, and IS NULL with NULL on the right."""

    left: Expression
    right: Expression

    def evaluate(self, properties: Properties) -> bool | None:
        """Return None if only the left side is NULL, and False if only the right side is NULL, as in Java."""
        left, right = self.left.evaluate(properties), self.right.evaluate(properties)
        if left is None:
            return True if right is None else None
        return right is not None and compare(left, right) == 0

    def __str__(self) -> str:
        return f"({self.left} == {self.right})"


SIZES: Final[Mapping[str, Callable[[int], bool]]] = {
    ">": lambda order: order > 0,
    ">=": lambda order: order >= 0,
    "<": lambda order: order < 0,
    "<=": lambda order: order <= 0,
}


@dataclass(frozen=True, slots=True)
class SizeComparison(Condition):
    """A comparison by one of the operators in SIZES."""

    left: Expression
    symbol: str
    right: Expression

    def evaluate(self, properties: Properties) -> bool | None:
        """Compare both sides. Returns None if one is unknown."""
        left = self.left.evaluate(properties)
        if left is None:
            return None
        right = self.right.evaluate(properties)
        return None if right is None else SIZES[self.symbol](compare_by_size(left, right))

    def __str__(self) -> str:
        return f"({self.left} {self.symbol} {self.right})"


@dataclass(frozen=True, slots=True)
class In(Condition):
    """IN and NOT IN."""

    operand: Property
    texts: tuple[str, ...]
    negated: bool

    def evaluate(self, properties: Properties) -> bool | None:
        """Return None without the property."""
        value = self.operand.evaluate(properties)
        return None if value is None else (value in self.texts) is not self.negated

    def __str__(self) -> str:
        return f"{self.operand} {'NOT ' if self.negated else ''}IN ( {', '.join(self.texts)} )"


TEXT_TESTS: Final[Mapping[str, Callable[[str, str], bool]]] = {
    "CONTAINS": lambda value, part: part in value,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}


@dataclass(frozen=True, slots=True)
class TextTest(Condition):
    """A test by one of TEXT_TESTS. It is false, even if negated, if a side is not a text."""

    operand: Expression
    test: str
    part: str
    negated: bool

    def evaluate(self, properties: Properties) -> bool:
        """Return the result, which is never unknown."""
        value = self.operand.evaluate(properties)
        if not self.part or not isinstance(value, str):
            return False
        return TEXT_TESTS[self.test](value, self.part) is not self.negated

    def __str__(self) -> str:
        return f"({'NOT ' if self.negated else ''}{self.test} {self.operand})"
