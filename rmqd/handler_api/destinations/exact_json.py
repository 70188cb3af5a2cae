"""JSON that keeps all digits of its numbers, and accepts no NaN. No I/O."""

from __future__ import annotations

import json
from decimal import Decimal, InvalidOperation
from typing import Any, NoReturn


def exact_json(value: Any) -> str:
    """Return the value as JSON, with the digits of each Decimal."""
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, list):
        return f"[{', '.join(map(exact_json, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{exact_json(str(name))}: {exact_json(inner)}' for name, inner in value.items())}}}"
    return json.dumps(value, ensure_ascii=False)


def parse_exact_json(body: bytes) -> Any:
    """Parse standard JSON, with Decimal for numbers with a decimal point or an exponent. Raises ValueError."""
    try:
        return json.loads(body, parse_float=Decimal, parse_constant=refuse_constant)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except InvalidOperation:  # not a ValueError: an exponent of more than 18 digits
        raise ValueError("the exponent of a number is too large") from None


def refuse_constant(name: str) -> NoReturn:
    """Raise ValueError for NaN and infinities, which Python's parser accepts."""
    raise ValueError(f"{name} is not valid JSON")
