"""A group's context, as its handlers see it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rmqd.handler_api.once.once_group import once_for_group
from rmqd.wire.messages.message import once_in_group


@pytest.fixture(autouse=True)
def in_group() -> Iterator[None]:
    """Run each test in the context of a handler of the group `shop`."""
    token = once_in_group.set(once_for_group("shop"))
    yield
    once_in_group.reset(token)
