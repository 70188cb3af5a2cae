"""The requests of the comparison, in the order in which they are sent."""

from tests.nightly.comparison.script import administration, groups, operators, popping, pulling, sending
from tests.nightly.comparison.traffic import Step

STEPS: list[Step] = [
    *sending.SENDING,
    *pulling.PULLING,
    *pulling.LIMITS,
    *popping.ASSIGNMENTS,
    *popping.POPPING,
    *groups.GROUPS,
    *operators.OPERATORS,
    *administration.ADMINISTRATION,
    *popping.IN_TIME,
    *sending.WAITED_FOR,
    *pulling.WAITED_FOR,
    *popping.WAITED_FOR,
]
"""Results that take time are requested at the end."""
