"""Sends the orders through its own client, like a separate program."""

from __future__ import annotations

import asyncio
from typing import Final

from rmqd.client.instance import ClientInstance
from rmqd.demo.orders import Orders, orders_due
from rmqd.errors import RmqdError

TICK_SECONDS: Final = 0.02
IN_FLIGHT: Final = 64


class OrderProducer:
    """Sends due orders until `stop`, or until `most` orders were sent."""

    def __init__(self, client: ClientInstance, orders: Orders, most: int | None = None) -> None:
        self.sent = 0
        """The number of orders that the broker has acknowledged."""
        self.failed = 0
        """The number of failed sends; the broker may have stored some of these orders."""
        self.last_failure = ""
        self._client = client
        self._orders = orders
        self._most = most
        self._stop = asyncio.Event()

    def stop(self) -> None:
        """Send nothing more. Orders in flight still count."""
        self._stop.set()

    async def run(self) -> None:
        """Send at the demo's pace."""
        loop = asyncio.get_running_loop()
        began, begun = loop.time(), 0
        room = asyncio.Semaphore(IN_FLIGHT)
        async with asyncio.TaskGroup() as tasks:
            while not self._stop.is_set() and begun != self._most:
                due = int(orders_due(loop.time() - began))
                due = due if self._most is None else min(due, self._most)
                while begun < due and not self._stop.is_set():
                    begun += 1
                    await room.acquire()
                    tasks.create_task(self._send(room))
                await self._pause()

    async def _send(self, room: asyncio.Semaphore) -> None:
        try:
            await self._client.producer.send(self._orders.next())
            self.sent += 1
        except RmqdError as error:
            self.failed += 1
            self.last_failure = str(error)
        finally:
            room.release()

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(TICK_SECONDS):
                await self._stop.wait()
        except TimeoutError:
            pass
