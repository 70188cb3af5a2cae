"""Option types for sizes and durations, in the notation of rmqd's configuration: `256KiB`, `5s`."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BeforeValidator

SIZE_UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
DURATION_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}


def parse_size_bytes(value: object) -> int:
    """Parse `100MiB` as a number of bytes. A number without a unit is an error."""
    size_bytes = _parse(value, SIZE_UNITS, "a size such as 256KiB or 100MiB")
    if not size_bytes.is_integer():
        raise ValueError(f"{value!r} is not a whole number of bytes")
    return int(size_bytes)


def parse_duration_seconds(value: object) -> float:
    """Parse `500ms` as a number of seconds. A number without a unit is an error."""
    return _parse(value, DURATION_UNITS, "a duration such as 500ms, 5s or 15m")


def _parse(value: object, units: dict[str, int] | dict[str, float], accepted: str) -> float:
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?([A-Za-z]+)", value) if isinstance(value, str) else None
    if match is None or match[2] not in units:
        raise ValueError(f"{value!r} is not {accepted} (units: {', '.join(units)})")
    return float(match[1]) * units[match[2]]


SizeBytes = Annotated[int, BeforeValidator(parse_size_bytes, json_schema_input_type=str)]
DurationSeconds = Annotated[float, BeforeValidator(parse_duration_seconds, json_schema_input_type=str)]
