"""The requests of the comparison, in the order in which they are sent."""

from tests.comparison.script import administration, groups, operators, pulling, sending
from tests.comparison.traffic import Step

STEPS: list[Step] = [
    *sending.SENDING,
    *pulling.PULLING,
    *pulling.LIMITS,
    *groups.GROUPS,
    *operators.OPERATORS,
    *administration.ADMINISTRATION,
    *sending.WAITED_FOR,
    *pulling.WAITED_FOR,
]
"""What takes a moment is asked for at the end."""
