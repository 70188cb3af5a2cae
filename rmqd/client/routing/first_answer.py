"""Asks several peers the same question: first one, then all others if it fails or is slow."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

from rmqd.clock import Clock
from rmqd.errors import RmqdError

T = TypeVar("T")


class Answer(NamedTuple, Generic[T]):
    """The address that answered, and its answer."""

    address: str
    value: T


async def first_answer(
    addresses: Sequence[str], question: Callable[[str], Awaitable[T]], clock: Clock, *, patience_seconds: float
) -> Answer[T]:
    """Ask the first address; when it fails, or has not answered for `patience_seconds`, ask all others at once.

    The first answer counts, and the other questions are cancelled. An RmqdError is a failure of its address. If all
    fail, an ExceptionGroup of their errors is raised, in the order of the failures. Any other exception is raised at
    once.
    """
    first, others = addresses[0], list(addresses[1:])
    asked = {_ask(first, question): first}
    waiting: set[asyncio.Task[T]] = set(asked)
    errors: list[RmqdError] = []
    try:
        while waiting:
            patience = patience_seconds if others else None
            done, waiting = await clock.wait(waiting, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                try:
                    return Answer(asked[task], task.result())
                except RmqdError as error:
                    errors.append(error)
            started = {_ask(address, question): address for address in others}
            others.clear()
            asked |= started
            waiting |= set(started)
        raise ExceptionGroup("no address answered", errors)
    finally:
        for task in asked:
            task.cancel()
        # takes one or two turns of the event loop: a cancelled request only drops its future
        await asyncio.gather(*asked, return_exceptions=True)


def _ask(address: str, question: Callable[[str], Awaitable[T]]) -> asyncio.Task[T]:
    async def asking() -> T:
        return await question(address)

    return asyncio.create_task(asking(), name=f"ask:{address}")
