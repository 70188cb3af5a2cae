"""The start and stop of a handler that consists of parts with their own start and stop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from rmqd.loaded_handler import LoadedHandler
from rmqd.own_threads import call_either

Part = tuple[Callable[[], Any] | None, Callable[[], Any] | None]
"""A start and a stop. Each may be missing, synchronous or asynchronous."""


def with_parts(handler: LoadedHandler, parts: Sequence[Part]) -> LoadedHandler:
    """Return a handler whose parts start before it in order, and stop after it in reverse order."""
    own: Part = (handler.start, handler.stop)
    known = [part for part in (*parts, own) if any(part)]
    if known in ([], [own]):
        return handler
    lifecycle = _Lifecycle(known)
    return replace(handler, start=lifecycle.start, stop=lifecycle.stop)


class _Lifecycle:
    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts
        self._started = 0

    async def start(self) -> None:
        """Start each part. If one fails, the parts before it are stopped."""
        try:
            for start, _ in self._parts:
                if start is not None:
                    await call_either(start)
                self._started += 1
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stop each started part. Raises the first exception after all are stopped."""
        failure: BaseException | None = None
        while self._started:
            self._started -= 1
            _, stop = self._parts[self._started]
            try:
                if stop is not None:
                    await call_either(stop)
            except Exception as error:  # noqa: BLE001  the plugin's code; the other parts must stop too
                failure = failure or error
        if failure is not None:
            raise failure
