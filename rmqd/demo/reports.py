"""Reports of handled messages from Spark's Python processes to the demo: a hook there, a socket here.

Those processes load the hook like any other: it is an installed distribution, in a folder of the demo on their path.
They are on this machine, and send a datagram for each message by loopback. A lost datagram costs a line of the view.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from rmqd.clock import SystemClock
from rmqd.consumer.hooks import HookContext
from rmqd.demo.ledger import HandledOrder, Ledger, handled_orders
from rmqd.handler_api import Batch

LOOPBACK: Final = "127.0.0.1"
PORT: Final = "RMQD_DEMO_REPORTS"  # in the environment that Spark's processes inherit
MOST_BYTES: Final = 1024  # sent of a body; the view shows less


def install_reporter(folder: Path) -> None:
    """Create a folder with an installed distribution, whose only content is the hook."""
    information = folder / "rmqd_demo_reports-0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: rmqd-demo-reports\nVersion: 0\n")
    (information / "entry_points.txt").write_text(f"[rmqd.hooks]\ndemo = {__name__}:Reporter\n")


class Reporter:
    """The hook: sends the outcome of each message."""

    def __init__(self) -> None:
        self._address = LOOPBACK, int(os.environ.get(PORT, "0"))
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._clock = SystemClock()

    def after_batch(self, batch: Batch, context: HookContext) -> None:
        """Called in the handler's thread or loop. Does nothing if the demo no longer listens."""
        for report in _reports(batch, context, self._clock.wall()):
            try:
                self._socket.sendto(report, self._address)
            except OSError:
                return


def _reports(batch: Batch, context: HookContext, now: float) -> Iterator[bytes]:
    for order, age in handled_orders(batch, context, now):
        body = base64.b64encode(order.body[:MOST_BYTES]).decode()
        yield json.dumps([order.key, order.tag, body, order.attempt, order.verdict, age]).encode()


@asynccontextmanager
async def reports_received(ledger: Ledger) -> AsyncIterator[None]:
    """Record the reports of reporters in the ledger during the block. Raises OSError."""
    transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
        lambda: _Receiver(ledger), local_addr=(LOOPBACK, 0)
    )
    os.environ[PORT] = str(transport.get_extra_info("sockname")[1])
    try:
        yield
    finally:
        del os.environ[PORT]
        transport.close()


class _Receiver(asyncio.DatagramProtocol):
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def datagram_received(self, data: bytes, addr: tuple[str | Any, int]) -> None:
        """Called for each datagram. Any process on this machine may send one, so invalid reports are ignored."""
        try:
            key, tag, body, attempt, verdict, age = json.loads(data)
            order = HandledOrder(str(key), str(tag), base64.b64decode(body, validate=True), int(attempt), str(verdict))
            seconds = None if age is None else float(age)
        except (ValueError, TypeError):
            return
        self._ledger.note(order, seconds)
