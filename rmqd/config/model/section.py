"""The base class of all mappings of the configuration."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


def setting(default: object, description: str) -> Any:
    """Declare a key with its default, as a user would write it, and its description for `rmqd schema`."""
    return Field(default, description=description)


class Section(BaseModel):
    """A mapping of the configuration file. Unknown keys are refused, and it never changes after loading."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, protected_namespaces=(), hide_input_in_errors=True
    )
