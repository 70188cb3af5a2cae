"""Wrong options of a handler, all of them in one test."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel, ValidationError


def not_refused(model: type[BaseModel], wrong: Iterable[dict[str, Any]], **given: object) -> list[dict[str, Any]]:
    """Return the wrong options that the model accepts together with `given`."""
    return [options for options in wrong if _refusal(model, {**given, **options}) is None]


def refused_otherwise(
    model: type[BaseModel], wrong: Iterable[tuple[dict[str, Any], str]], **given: object
) -> list[tuple[dict[str, Any], str, str | None]]:
    """Return the options that are accepted, or whose error lacks the expected words, with the expected and the real
    text.
    """
    refusals = ((options, words, _refusal(model, {**given, **options})) for options, words in wrong)
    return [(options, words, told) for options, words, told in refusals if told is None or not re.search(words, told)]


def _refusal(model: type[BaseModel], options: dict[str, object]) -> str | None:
    try:
        model.model_validate(options)
    except ValidationError as error:
        return str(error)
    return None
