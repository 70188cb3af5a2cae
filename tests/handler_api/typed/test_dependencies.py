"""Dependencies of typed handlers: created once, before the first message, and closed at the end in reverse order."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import pydantic
import pytest

import rmqd
from rmqd.plugins.handler_plugin import HandlerPlugin
from rmqd.plugins.option_form import PluginFaultError
from rmqd.testing import RocketMQ, RunResult

Run = Callable[..., RunResult]
events: list[str] = []


class Order(pydantic.BaseModel):
    """An order."""

    number: int


class Settings(pydantic.BaseModel):
    """Options of a handler."""

    host: str = "db"


class Pool:
    """Something that is opened and closed."""

    def __init__(self, name: str) -> None:
        self.name = name
        events.append(f"open {name}")

    async def aclose(self) -> None:
        events.append(f"close {self.name}")


class Connection:
    """Created without arguments; its close is synchronous."""

    def __init__(self) -> None:
        events.append("open connection")

    def close(self) -> None:
        events.append("close connection")


async def make_pool(options: Settings) -> Pool:
    return Pool(f"pool at {options.host}")


def make_table(pool: Annotated[Pool, rmqd.Depends(make_pool)]) -> Iterator[str]:
    events.append("open table")
    yield f"table of {pool.name}"
    events.append("close table")


@asynccontextmanager
async def make_cache() -> AsyncIterator[str]:
    events.append("open cache")
    yield "cache"
    events.append("close cache")


@pytest.fixture(autouse=True)
def no_events() -> None:
    events.clear()


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])
def test_dependencies_are_opened_once_and_closed_in_reverse(
    rocketmq: RocketMQ, run_handler: Run, is_async: bool
) -> None:
    seen: list[Any] = []

    @rmqd.handler(json=Order)
    async def handle_async(
        order: Order,
        table: Annotated[str, rmqd.Depends(make_table)],
        pool: Annotated[Pool, rmqd.Depends(make_pool)],
        *,
        cache: Annotated[str, rmqd.Depends(make_cache)],
        connection: Annotated[Connection, rmqd.Depends()],
    ) -> None:
        seen.append((order.number, table, pool.name, cache, type(connection)))

    @rmqd.handler(json=Order)
    def handle(
        order: Order,
        table: Annotated[str, rmqd.Depends(make_table)],
        pool: Annotated[Pool, rmqd.Depends(make_pool)],
        cache: Annotated[str, rmqd.Depends(make_cache)],
        connection: Annotated[Connection, rmqd.Depends],
    ) -> None:
        seen.append((order.number, table, pool.name, cache, type(connection)))

    rocketmq.create_topic("orders")
    for number in range(3):
        rocketmq.send("orders", {"number": number})
    run_handler(handle_async if is_async else handle, topic="orders", group="mailer", options={"host": "shop"})

    assert sorted(seen) == [(n, "table of pool at shop", "pool at shop", "cache", Connection) for n in range(3)]
    assert events == [
        *("open pool at shop", "open table", "open cache", "open connection"),
        *("close connection", "close cache", "close table", "close pool at shop"),
    ]


class Mailer:
    """A class with a typed method, a start and a stop."""

    async def start(self) -> None:
        events.append("start")

    @rmqd.handler(json=Order)
    async def handle(self, order: Order, cache: Annotated[str, rmqd.Depends(make_cache)]) -> None:
        events.append(f"{order.number} with {cache}")

    def stop(self) -> None:
        events.append("stop")


def test_a_class_starts_after_its_dependencies_and_stops_before_them(rocketmq: RocketMQ, run_handler: Run) -> None:
    rocketmq.send("orders", {"number": 7})
    run_handler(Mailer, topic="orders", group="mailer")

    assert events == ["open cache", "start", "7 with cache", "stop", "close cache"]


def test_a_dependency_that_fails_closes_the_dependencies_before_it(rocketmq: RocketMQ, run_handler: Run) -> None:
    def make_mail() -> None:
        raise ConnectionError("no such server")

    @rmqd.handler(json=Order)
    async def handle(
        order: Order,
        cache: Annotated[str, rmqd.Depends(make_cache)],
        mail: Annotated[None, rmqd.Depends(make_mail)],
    ) -> None: ...

    rocketmq.create_topic("orders")
    with pytest.raises(ConnectionError, match="no such server"):
        run_handler(handle, topic="orders", group="mailer")
    assert events == ["open cache", "close cache"]


def needs(what: int) -> int:
    return what


def circle(inner: Annotated[int, rmqd.Depends(circle)]) -> int:
    return inner


@pytest.mark.parametrize(
    ("depends", "said"),
    [
        (rmqd.Depends(needs), "pool depends on 'needs', whose parameter what gets no value; expected Annotated"),
        (
            rmqd.Depends(circle),
            "inner depends on 'circle', which depends on itself; expected no circular dependencies",
        ),
        (
            rmqd.Depends("pool"),  # type: ignore[arg-type]
            r"pool depends on 'pool'; expected Depends\(function\) or Depends\(class\)",
        ),
    ],
)
def test_a_dependency_that_cannot_be_created_is_refused_at_the_start(depends: Any, said: str) -> None:
    def handle(order: Order, pool: int = depends) -> None: ...

    with pytest.raises(PluginFaultError, match=said):
        HandlerPlugin.of("shop:handle", rmqd.handler(json=Order)(handle))
