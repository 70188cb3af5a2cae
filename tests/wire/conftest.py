"""Fixtures that run the tests of decoders with both cores."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from rmqd.wire import core
from tests.wire.cores import use_core


@pytest.fixture(scope="module")
def native() -> core.NativeCore:
    """The native core; skips the test if it is not built, and fails in CI."""
    if core.native is not None:
        return core.native
    reason = "the native core is not built; run make venv with a C compiler and the headers of Python"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="module", params=["python", "native"])
def each_core(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run the tests of a module with each core."""
    with use_core(request.getfixturevalue("native") if request.param == "native" else None):
        yield
