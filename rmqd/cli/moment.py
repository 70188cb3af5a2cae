"""Times and durations in options."""

from __future__ import annotations

import typer


def moment_ms(text: str, option: str) -> int:
    """Return Unix milliseconds of a time (ISO 8601 with a zone, or @milliseconds), or of an age (10m).

    Raises typer.BadParameter, which names the option.
    """
    import time

    from rmqd.config.model.forms import PointInTime
    from rmqd.config.model.quantities import parse_duration_ms

    try:
        return round(time.time() * 1000 - parse_duration_ms(text))
    except ValueError:
        pass
    try:
        return PointInTime().check(text)
    except ValueError as error:
        raise typer.BadParameter(f"{error}, or an age such as 10m", param_hint=option) from None


def seconds(text: str, option: str) -> float:
    """Return the seconds of a duration such as 30s. Raises typer.BadParameter, which names the option."""
    from rmqd.config.model.quantities import parse_duration_ms

    try:
        return parse_duration_ms(text) / 1000
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None
